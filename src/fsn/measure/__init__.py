"""Instruments: they take finished runs, or models, and return tables, arrays and figures.

- :mod:`~fsn.measure.copy_depth`, :mod:`~fsn.measure.losses`, :mod:`~fsn.measure.margins`: where in the text a model is
  ahead, by the length of the earlier match a target continues
- :mod:`~fsn.measure.kernel`: the trained kernel as coupling functions
- :mod:`~fsn.measure.lesions`: what a field of a layer does, by taking it out
- :mod:`~fsn.measure.looks`: where attention goes when a text says something again
- :mod:`~fsn.measure.synchronization`: do token states come to agree through depth?
- :mod:`~fsn.measure.wallclock`, :mod:`~fsn.measure.efficiency`, :mod:`~fsn.measure.pace`, :mod:`~fsn.measure.health`:
  time to a target loss, speed and memory, epochs that shared their device, failed runs
- :mod:`~fsn.measure.plots`: the figures (needs matplotlib; imported on demand)
"""

from __future__ import annotations

from fsn.measure.bootstrap import Interval, SeedSummary, cluster_bootstrap, position_bootstrap, seed_summary
from fsn.measure.copy_depth import BINS, EARLY_BINS, Battery, CopyDepth, battery, label_corpus, label_split
from fsn.measure.curves import (
    Best,
    always_ahead,
    best_epoch,
    crossing_epochs,
    epoch_margins,
    epochs_ahead,
    loss_at,
    loss_table,
)
from fsn.measure.efficiency import Efficiency, efficiency_table, kernel_share, measure_efficiency
from fsn.measure.health import Finding, check_runs, divergence, health_table, plateaus
from fsn.measure.kernel import (
    KernelReading,
    coupling_function,
    history_table,
    read_gates,
    read_history,
    read_kernel,
    thinned,
    through_training,
)
from fsn.measure.lesions import lesion_table, without_field
from fsn.measure.looks import Looks, look, said_again
from fsn.measure.losses import battery_losses, per_token_losses, run_losses
from fsn.measure.margins import (
    DepthCurve,
    depth_curve,
    depth_distance_table,
    depth_losses,
    family_table,
    margin_table,
    recombined,
)
from fsn.measure.pace import held_up, pace_notes
from fsn.measure.runs import check_comparable, check_corpus, load_runs
from fsn.measure.synchronization import DepthProfile, depth_profile, diagnose
from fsn.measure.tables import Table, stacked
from fsn.measure.wallclock import Curve, TargetLoss, crossing_table, curve_of, time_to_target, wallclock_table

__all__ = [
    "BINS",
    "EARLY_BINS",
    "Battery",
    "Best",
    "CopyDepth",
    "Curve",
    "DepthCurve",
    "DepthProfile",
    "Efficiency",
    "Finding",
    "Interval",
    "KernelReading",
    "Looks",
    "SeedSummary",
    "Table",
    "TargetLoss",
    "always_ahead",
    "battery",
    "battery_losses",
    "best_epoch",
    "check_comparable",
    "check_corpus",
    "check_runs",
    "cluster_bootstrap",
    "coupling_function",
    "crossing_epochs",
    "crossing_table",
    "curve_of",
    "depth_curve",
    "depth_distance_table",
    "depth_losses",
    "depth_profile",
    "diagnose",
    "divergence",
    "efficiency_table",
    "epoch_margins",
    "epochs_ahead",
    "family_table",
    "health_table",
    "held_up",
    "history_table",
    "kernel_share",
    "label_corpus",
    "label_split",
    "lesion_table",
    "load_runs",
    "look",
    "loss_at",
    "loss_table",
    "margin_table",
    "measure_efficiency",
    "pace_notes",
    "per_token_losses",
    "plateaus",
    "position_bootstrap",
    "read_gates",
    "read_history",
    "read_kernel",
    "recombined",
    "run_losses",
    "said_again",
    "seed_summary",
    "stacked",
    "thinned",
    "through_training",
    "time_to_target",
    "wallclock_table",
    "without_field",
]
