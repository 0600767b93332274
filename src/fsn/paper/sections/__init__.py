"""The paper section by section: its tables and figures, and the sentences a run can confirm or refute."""

from __future__ import annotations

from ...errors import UserError, did_you_mean
from ..bench import MEASUREMENTS as MEASUREMENTS
from ..needs import FIRST, Need
from ..rows import Claim, Item
from . import beyond, copy_depth, coupling, main, parts, scale

ITEMS: tuple[Item, ...] = (
    beyond.so_far,
    beyond.depth_so_far,
    main.main_table,
    copy_depth.bars,
    copy_depth.on_text,
    copy_depth.exact_depths,
    copy_depth.distance,
    copy_depth.early_transfer,
    beyond.dropout,
    beyond.recipes,
    coupling.coupling_functions,
    beyond.which_field_copies,
    beyond.where_it_looks,
    scale.ladder,
    scale.wall_clock,
    scale.wall_clock_figure,
    scale.at_the_crossing,
    parts.ablations,
    copy_depth.on_code,
    main.sequence_512,
    scale.code_wall_clock,
    main.failures,
    scale.efficiency,
    coupling.synchronization,
    parts.parameters,
    parts.configuration,
    parts.init_ramp,
)
"""Every table and figure, in the order in which a reader asks for them."""

CLAIMS: tuple[Claim, ...] = (
    *main.CLAIMS,
    *copy_depth.CLAIMS,
    *coupling.CLAIMS,
    *beyond.CLAIMS,
    *scale.CLAIMS,
    *parts.CLAIMS,
    *scale.SPEED_CLAIMS,
)


def item_named(name: str) -> Item:
    found = {item.name: item for item in ITEMS}
    if name in found:
        return found[name]
    hint = did_you_mean(name, [*found, "claims"])
    raise UserError(f"there is no item {name!r}; {hint}the items are {', '.join(found)} and claims")


def needs_of(item: str | None = None) -> list[Need]:
    """The runs of one item, of the claims, or of everything: then those that say the most come first."""
    claims = [need for claim in CLAIMS for need in claim.needs]
    if item == "claims":
        return claims
    return list(item_named(item).needs) if item else [*FIRST, *(n for i in ITEMS for n in i.needs), *claims]
