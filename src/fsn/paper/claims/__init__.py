"""Every sentence of the paper that a run can confirm or refute, with the check as code."""

from __future__ import annotations

from fsn.paper.claims import (
    architecture,
    capability,
    capability_code,
    code,
    comparison,
    mechanism,
    scale,
    speed,
)
from fsn.paper.claims.claim import (
    FAILS,
    HOLDS,
    NOT_RUN,
    Claim,
    Verdict,
    claims_table,
    judge,
    judge_all,
)

CLAIMS: tuple[Claim, ...] = (
    *comparison.CLAIMS,
    *code.CLAIMS,
    *capability.CLAIMS,
    *capability_code.CLAIMS,
    *mechanism.CLAIMS,
    *scale.CLAIMS,
    *architecture.CLAIMS,
    *speed.CLAIMS,
)

__all__ = [
    "CLAIMS",
    "FAILS",
    "HOLDS",
    "NOT_RUN",
    "Claim",
    "Verdict",
    "claims_table",
    "judge",
    "judge_all",
]
