"""Instruments: they take finished runs, or models, and return findings (a sentence, tables, figures).

Each is one file that measures, draws, and makes itself known (:mod:`~fsn.measure.finding` says how):

- :mod:`~fsn.measure.copy_depth`: where in the text a model is ahead, by the length of the match a target continues
- :mod:`~fsn.measure.coupling`: the trained kernel as coupling functions
- :mod:`~fsn.measure.lesions`: what a field of a layer does, by taking it out
- :mod:`~fsn.measure.looks`: where attention goes when a passage is repeated
- :mod:`~fsn.measure.states`: do token states come to agree through depth?
- :mod:`~fsn.measure.training`: loss against epochs and time, time to a target loss, speed and memory, failed runs

They share :mod:`~fsn.measure.runs` (what a run logged), :mod:`~fsn.measure.losses` (the loss of every token),
:mod:`~fsn.measure.bootstrap`, :mod:`~fsn.measure.tables` and :mod:`~fsn.measure.style`.
"""

from __future__ import annotations

from .bootstrap import Interval, SeedSummary, cluster_bootstrap, position_bootstrap, seed_summary
from .copy_depth import (
    BINS,
    EARLY_BINS,
    Battery,
    CopyDepth,
    DepthCurve,
    battery,
    bin_name,
    depth_curve,
    depth_distance_table,
    depth_losses,
    draw_depth_bars,
    draw_depth_curves,
    draw_depth_distance,
    label,
    label_corpus,
    margin_table,
    seed_mean_table,
)
from .coupling import (
    FIELDS,
    KernelReading,
    coupling_data,
    coupling_function,
    draw_coupling,
    draw_coupling_history,
    read_gates,
    read_kernel,
    thinned,
    through_training,
)
from .finding import Finding, Instrument, Subject, applicable, inspect_run, instrument, instruments
from .lesions import draw_lesions, lesion_table, without_field
from .looks import Looks, draw_looks, look, repeated
from .losses import (
    battery_losses,
    evaluating,
    run_losses,
    store_losses,
    stored_losses,
    token_losses,
    weights_hash,
)
from .runs import (
    check_comparable,
    check_corpus,
    check_metrics,
    diverged_at,
    epoch_value,
    epoch_values,
    finished_epochs,
    load_runs,
    pace_notes,
    valid_bits,
    vocabulary_of,
)
from .states import DepthProfile, depth_profile, diagnose, draw_states
from .style import save_figure
from .tables import Table, stacked
from .training import (
    Best,
    Crossing,
    Curve,
    TargetLoss,
    best_epoch,
    crossing_epochs,
    crossing_table,
    curve_of,
    draw_loss_curves,
    draw_wallclock,
    epoch_margins,
    epochs_ahead,
    health_table,
    loss_at,
    loss_table,
    measure_efficiency,
    time_to_target,
    wallclock_table,
)

# fmt: off
__all__ = [
    "BINS", "EARLY_BINS", "FIELDS", "Battery", "Best", "CopyDepth", "Crossing", "Curve", "DepthCurve", "DepthProfile",
    "Finding", "Instrument", "Interval", "KernelReading", "Looks", "SeedSummary", "Subject", "Table",
    "TargetLoss", "applicable", "battery", "battery_losses", "best_epoch", "bin_name", "check_comparable",
    "check_corpus", "check_metrics", "cluster_bootstrap", "coupling_data", "coupling_function", "crossing_epochs",
    "crossing_table", "curve_of", "depth_curve", "depth_distance_table", "depth_losses", "depth_profile", "diagnose",
    "diverged_at", "draw_coupling", "draw_coupling_history", "draw_depth_bars", "draw_depth_curves",
    "draw_depth_distance", "draw_lesions", "draw_looks", "draw_loss_curves", "draw_states", "draw_wallclock",
    "epoch_margins", "epoch_value", "epoch_values", "epochs_ahead", "evaluating", "finished_epochs",
    "health_table", "inspect_run", "instrument", "instruments", "label", "label_corpus", "lesion_table",
    "load_runs", "look", "loss_at", "loss_table", "margin_table", "measure_efficiency", "pace_notes",
    "position_bootstrap", "read_gates", "read_kernel", "repeated", "run_losses", "save_figure", "seed_mean_table",
    "seed_summary", "stacked", "store_losses", "stored_losses", "thinned", "through_training", "time_to_target",
    "token_losses", "valid_bits", "vocabulary_of", "wallclock_table", "weights_hash", "without_field",
]
# fmt: on
