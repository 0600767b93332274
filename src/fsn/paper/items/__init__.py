"""Every table and figure of the paper, in the order in which a reader asks for them."""

from __future__ import annotations

from fsn.errors import UserError
from fsn.paper.item import Item
from fsn.paper.items import (
    ablations,
    code_wall_clock,
    configuration,
    copy_depth,
    copy_depth_figures,
    coupling,
    crossing,
    depth_so_far,
    dropout,
    early_transfer,
    efficiency,
    failures,
    init_ramp,
    ladder,
    lesions,
    looks,
    main_table,
    parameters,
    sequence_512,
    so_far,
    synchronization,
    wall_clock,
)

ITEMS: tuple[Item, ...] = (
    so_far.ITEM,
    depth_so_far.ITEM,
    main_table.ITEM,
    copy_depth_figures.BARS,
    copy_depth.TEXT,
    copy_depth_figures.CURVE,
    copy_depth_figures.DISTANCE,
    early_transfer.ITEM,
    dropout.ITEM,
    coupling.ITEM,
    lesions.ITEM,
    looks.ITEM,
    ladder.ITEM,
    wall_clock.TABLE,
    wall_clock.FIGURE,
    crossing.ITEM,
    ablations.ITEM,
    copy_depth.CODE,
    sequence_512.ITEM,
    code_wall_clock.ITEM,
    failures.ITEM,
    efficiency.ITEM,
    synchronization.ITEM,
    parameters.ITEM,
    configuration.ITEM,
    init_ramp.ITEM,
)


def item_named(name: str) -> Item:
    for item in ITEMS:
        if item.name == name:
            return item
    raise UserError(
        f"there is no item {name!r}; the items are {', '.join(item.name for item in ITEMS)} and claims"
    )
