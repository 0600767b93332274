"""The paper's opening claim, measured: do token states come to agree through depth?"""

from __future__ import annotations

import torch

from fsn.data import Windows
from fsn.measure import DepthProfile, depth_profile, stacked
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.item import Item, Result, picture
from fsn.paper.needs import Need
from fsn.paper.rows import compare
from fsn.train import Run

MODELS: dict[str, Need] = {
    "FSN": needs.FSN_CONVERGED.seed(0),
    "Kuramoto": needs.KURAMOTO.seed(0),
    "transformer": needs.REFERENCE,
}
WINDOWS = 16


def profile(bench: Bench, name: str) -> DepthProfile:
    """States of one model through depth, on the first validation windows."""
    run = bench.run(MODELS[name])

    def measure() -> DepthProfile:
        windows = Windows(bench.corpus("text").valid, bench.scale.length(256), bench.scale.length(256))
        tokens = windows.gather(torch.arange(min(WINDOWS, len(windows))))[:, :-1]
        return depth_profile(bench.model(run), tokens, name)

    return bench.memo(("profile", name), measure)


def change(found: DepthProfile, quantity: str) -> float:
    """Last layer minus embedding."""
    return found.values[quantity][-1] - found.values[quantity][0]


def compute_item(bench: Bench) -> Result:
    rows = []
    for name, need in MODELS.items():
        for quantity, words in (
            ("cosine", "mean cosine of token pairs"),
            ("effective_rank", "effective rank"),
        ):

            def measure(runs: list[Run], name: str = name, quantity: str = quantity) -> tuple[float, str]:
                series = profile(bench, name).values[quantity]
                return series[-1] - series[0], f"from {series[0]:.3f} to {series[-1]:.3f}"

            title = f"{name}: {words}, last layer minus embedding"
            rows.append(compare(bench, title, None, [need], measure, "+.3f"))
    result = Result(rows=rows)
    profiles = [
        profile(bench, name) for name, row in zip(MODELS, rows[::2], strict=True) if row.ours is not None
    ]
    if profiles:
        result.pictures.append(
            picture(
                "synchronization",
                "Consensus, rank, order and winding of token states from the embedding through the layers; "
                "the dotted line is what scattered phases would show.",
                lambda plots, surface: plots.depth_profiles(profiles, surface),
                stacked([p.table() for p in profiles]),
            )
        )
    return result


ITEM = Item(
    "synchronization",
    "Consensus through depth",
    "Section 1",
    "The opening claim: attention drives token states toward consensus. Clustering, rank, order parameters "
    "and winding through depth, for FSN, Kuramoto attention and the transformer.",
    compute_item,
    tuple(MODELS.values()),
    ("text",),
)
