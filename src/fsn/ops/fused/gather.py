"""The head of a training step in one kernel: the windows of the batch the run stands before, as tokens and targets.

    start = stride · order[position · batch + row]
    tokens[row] = text[start : start + T],   targets[row] = text[start + 1 : start + T + 1]

``position`` is read on the device, so that a captured step goes on to the next batch by itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit(do_not_specialize=["batch", "first_row", "stride", "T"])
def gather_kernel(
    position_ptr, order_ptr, text_ptr, tokens_ptr, targets_ptr,
    batch, first_row, stride, T, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK positions of one row; rows are counted from this process's first."""
    row = tl.program_id(0)
    start = tl.load(order_ptr + tl.load(position_ptr) * batch + first_row + row) * stride
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = t < T
    out = row.to(tl.int64) * T + t
    tl.store(tokens_ptr + out, tl.load(text_ptr + start + t, mask=mask, other=0).to(tl.int64), mask=mask)
    tl.store(targets_ptr + out, tl.load(text_ptr + start + t + 1, mask=mask, other=0).to(tl.int64), mask=mask)


def gather(
    position: Tensor, order: Tensor, text: Tensor, batch: int, rows: range, stride: int, length: int
) -> tuple[Tensor, Tensor]:
    """Rows ``rows`` of batch ``position``: tokens and targets, int64 (len(rows), length - 1).

    ``position`` is the first number of an int64 tensor, ``order`` int64, ``text`` any integers. The whole batch
    holds ``batch`` windows, also where the last one of an epoch holds fewer; all of ``rows`` must be there.
    """
    tokens, targets = (
        torch.empty(len(rows), length - 1, dtype=torch.int64, device=text.device) for _ in range(2)
    )
    gather_kernel[(len(rows), triton.cdiv(length - 1, BLOCK))](
        position, order, text, tokens, targets, batch, rows.start, stride, length - 1, BLOCK
    )
    return tokens, targets
