"""Attention as the kernels leave it: rows in one piece and tile by tile, at once and in chunks, rounded or not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.fused.interpreter import Interpreter

CASES = [
    {"length": 40, "dtype": "bfloat16"},
    {"length": 40, "dtype": "float32"},
    {"length": 300, "dtype": "bfloat16", "chunk": 128},
    {"length": 300, "dtype": "float32", "chunk": 128},
    {"length": 600, "dtype": "bfloat16"},
    {"length": 600, "dtype": "bfloat16", "chunk": 192},
]


def differences(
    length: int, dtype: str, rounded: bool, device: str = "cpu", **limits: int
) -> dict[str, float]:
    """Largest differences from a softmax in float64, of the weights and of what is noted of their rows.

    Scores are large, so that rounding them to bfloat16 changes weights by a fifth.
    """
    import torch

    from fsn.ops.fused import tiles
    from fsn.ops.fused.common import round_up
    from fsn.ops.fused.scores import attention_chunks
    from tests.ops.fused.inputs import limited

    kind, d, batch, tau = getattr(torch, dtype), 32, 2, 1.5
    torch.manual_seed(0)
    tp = round_up(length, tiles.BLOCK)
    q, key = (torch.randn(batch, tp, d, device=device) for _ in range(2))
    q[:, :, 0], key[:, :, 0] = 8.0, 12.0  # a hundred that all scores have in common
    q, key = q.to(kind), key.to(kind)
    scores = q[:, :length].double() @ key[:, :length].double().transpose(1, 2)
    if rounded and dtype == "bfloat16":
        scores = scores.to(torch.bfloat16).double()
    scores = (scores / tau).masked_fill(torch.ones(length, length, device=device).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    diagonal = weights.diagonal(dim1=1, dim2=2)

    own = torch.full((4, batch * length), torch.nan, device=device)
    flat = [x.reshape(batch * tp, d) for x in (q, key)]
    with limited(**limits):

        def run(again: bool) -> torch.Tensor:
            chunks = attention_chunks(
                *flat, torch.tensor(tau, device=device), own, batch, length, rounded, again
            )
            whole = torch.zeros(batch, tp, tp, dtype=kind, device=device)
            for r0, a in chunks:  # columns that none of its rows can see are left as they are
                last = r0 + a.shape[1]
                whole[:, r0:last, :last] = a[:, :, :last]
            return whole

        first, noted = run(False), own.clone()
        second = run(True)
    found = first[:, :length, :length].double()
    rest = first.clone()
    rest[:, :length] = rest[:, :length].triu()
    return {
        "weights": (found - weights.tril(-1)).abs().max().item(),
        "diagonal": (noted[0].view(batch, length) - diagonal).abs().max().item(),
        "sums": (noted[1].view(batch, length) - found.sum(-1)).abs().max().item(),
        "above the diagonal and behind the sequence": rest.float().abs().max().item(),
        "the second time": (second.float() - first.float()).abs().max().item(),
        "notes, the second time": (own - noted).nan_to_num().abs().max().item(),
    }


def check(found: dict[str, float], dtype: str) -> None:
    limit = 3e-3 if dtype == "bfloat16" else 1e-5
    exact = {"above the diagonal and behind the sequence", "the second time", "notes, the second time"}
    wrong = {name: error for name, error in found.items() if not error <= (0 if name in exact else limit)}
    assert not wrong, wrong


def test_blocks_of_features_fit_into_every_width() -> None:
    """Products load whole blocks: one of 128 features read into the next row where a head has 64."""
    from fsn.ops.fused.tiles import Tile

    wide = Tile(64, 128, 128, 4, 1)
    assert [wide.inner_of(d) for d in (32, 64, 96, 128, 384)] == [32, 64, 32, 128, 128]


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_weights_in_the_interpreter(interpreter: Interpreter, case: dict[str, Any], rounded: bool) -> None:
    check(interpreter("tests.ops.fused.test_scores:differences", rounded=rounded, **case), case["dtype"])


@pytest.mark.gpu
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("length", [63, 256, 300, 512, 600, 1500, 2500])
def test_weights_on_a_gpu(length: int, dtype: str, rounded: bool) -> None:
    check(differences(length, dtype, rounded, device="cuda"), dtype)
