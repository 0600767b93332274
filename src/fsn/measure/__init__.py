"""Instruments: they take finished runs, or models, and return findings (a sentence, tables, figures).

Each is one file that measures, draws, and makes itself known (:mod:`~fsn.measure.finding` says how):

- :mod:`~fsn.measure.copy_depth`: where in the text a model is ahead, by the length of the match a target continues
- :mod:`~fsn.measure.coupling`: the trained kernel as coupling functions
- :mod:`~fsn.measure.lesions`: what a field of a layer does, by taking it out
- :mod:`~fsn.measure.looks`: where attention goes when a passage is repeated
- :mod:`~fsn.measure.states`: do token states come to agree through depth?
- :mod:`~fsn.measure.training`: loss against epochs and time, time to a target loss, speed and memory, failed runs
- :mod:`~fsn.measure.updates`: how far each layer moves the phases, and whether its blocks work inside their bound

They share :mod:`~fsn.measure.metrics` (what a run logged), :mod:`~fsn.measure.losses` (the loss of every token),
:mod:`~fsn.measure.bootstrap`, :mod:`~fsn.measure.tables` and :mod:`~fsn.measure.style`.
"""

from __future__ import annotations

from .copy_depth import BINS, Battery, battery, bin_name, label, label_corpus, margin_table
from .coupling import coupling_data, read_kernel
from .finding import Finding, Subject, inspect_run
from .lesions import without_field
from .looks import Looks, look
from .losses import battery_losses, evaluating, token_losses
from .metrics import finished_epochs, pace_notes
from .tables import Table
from .training import curve_of, time_to_target

__all__ = [
    "BINS", "Battery", "Finding", "Looks", "Subject", "Table", "battery", "battery_losses", "bin_name",
    "coupling_data", "curve_of", "evaluating", "finished_epochs", "inspect_run", "label", "label_corpus",
    "look", "margin_table", "pace_notes", "read_kernel", "time_to_target", "token_losses",
    "without_field",
]  # fmt: skip
