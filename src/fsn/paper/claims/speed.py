"""Section 2.5 and Appendix B: what a step costs."""

from __future__ import annotations

from fsn.measure import kernel_share as share_of_step
from fsn.paper import needs
from fsn.paper.bench import Bench
from fsn.paper.claims.claim import Claim, claim, listed
from fsn.paper.items import efficiency
from fsn.paper.needs import Need

CLAIMS: list[Claim] = []


@claim(
    CLAIMS,
    "step-three-to-four-times",
    "Section 2.5",
    "A training step of the FSN costs roughly three to four times that of the transformer (here: 2.5 to "
    "4.5).",
    efficiency.FSN,
    efficiency.TRANSFORMER,
    macros=("tpsFSNOneM", "tpsXFOneM", "slowdownOneM"),
)
def _(b: Bench) -> tuple[bool, str]:
    found = _slower(b, efficiency.FSN, efficiency.TRANSFORMER)
    return 2.5 <= found <= 4.5, f"{found:.2f} times"


def _slower(b: Bench, ours: Need, theirs: Need) -> float:
    groups = b.runs(ours), b.runs(theirs)
    b.same_setting(*groups)
    return efficiency.slowdown(*groups)


@claim(
    CLAIMS,
    "kernel-is-not-the-overhead",
    "Appendix B",
    "The kernel accounts for roughly 12 percent of the training step (here: under 25); the rest is "
    "elsewhere.",
    efficiency.FSN,
    needs.NO_KERNEL,
    macros=("kernelShare", "tpsNophaseOneM", "slowdownNophaseOneM"),
)
def _(b: Bench) -> tuple[bool, str]:
    full, without = b.runs(efficiency.FSN), b.runs(needs.NO_KERNEL)
    b.same_setting(full, without)
    found = 100 * share_of_step(efficiency.speed(full).mean, efficiency.speed(without).mean)
    return found < 25, f"{found:.1f} percent"


@claim(
    CLAIMS,
    "without-kernel-still-slower",
    "Appendix B",
    "Without the harmonic kernel the stack is still slower than the transformer.",
    needs.NO_KERNEL,
    efficiency.TRANSFORMER,
)
def _(b: Bench) -> tuple[bool, str]:
    found = _slower(b, needs.NO_KERNEL, efficiency.TRANSFORMER)
    return found > 1, f"{found:.2f} times slower"


@claim(
    CLAIMS,
    "slowdown-falls-at-4m",
    "Appendix B",
    "At four million parameters the factor is smaller than at one million.",
    efficiency.FSN,
    efficiency.TRANSFORMER,
    efficiency.FSN_4M,
    efficiency.TRANSFORMER_4M,
    macros=("tpsFSNFourM", "tpsXFFourM", "slowdownFourM"),
)
def _(b: Bench) -> tuple[bool, str]:
    small = _slower(b, efficiency.FSN, efficiency.TRANSFORMER)
    large = _slower(b, efficiency.FSN_4M, efficiency.TRANSFORMER_4M)
    return large < small, f"{large:.2f} against {small:.2f}"


@claim(
    CLAIMS,
    "seeds-vary-under-two-percent",
    "Appendix B",
    "Per-seed mean throughputs of the FSN vary by under two percent.",
    efficiency.FSN,
)
def _(b: Bench) -> tuple[bool, str]:
    runs = b.runs(efficiency.FSN)
    b.same_setting(runs)
    found = efficiency.speed(runs)
    spread = 100 * found.range / found.mean
    return spread < 2, f"{spread:.1f} percent over {found.count} seeds"


@claim(
    CLAIMS,
    "code-speed-like-text",
    "Appendix B",
    "The code corpus gives nearly identical throughput (within five percent) for both models.",
    efficiency.FSN,
    efficiency.TRANSFORMER,
    efficiency.CODE_FSN,
    efficiency.CODE_TRANSFORMER,
    macros=("tpsFSNCode", "tpsXFCode"),
)
def _(b: Bench) -> tuple[bool, str]:
    pairs = ((efficiency.CODE_FSN, efficiency.FSN), (efficiency.CODE_TRANSFORMER, efficiency.TRANSFORMER))
    found = []
    for code, text in pairs:
        b.same_setting(b.runs(code), b.runs(text))
        found.append(efficiency.speed(b.runs(code)).mean / efficiency.speed(b.runs(text)).mean)
    return all(abs(r - 1) < 0.05 for r in found), f"{listed(found, lambda v: f'{v:.3f}')} (FSN, transformer)"


@claim(
    CLAIMS,
    "evaluation-gap-smaller",
    "Appendix B",
    "On the evaluation pass the gap in throughput is smaller than in training.",
    efficiency.FSN,
    efficiency.TRANSFORMER,
    macros=("tpsEvalFSN", "tpsEvalXF"),
)
def _(b: Bench) -> tuple[bool, str]:
    ours, theirs = b.runs(efficiency.FSN), b.runs(efficiency.TRANSFORMER)
    training = _slower(b, efficiency.FSN, efficiency.TRANSFORMER)
    key = "eval_tokens_per_s"
    evaluation = efficiency.speed(theirs, key).mean / efficiency.speed(ours, key).mean
    return evaluation < training, f"{evaluation:.2f} times against {training:.2f} in training"


@claim(
    CLAIMS,
    "more-memory",
    "Appendix B",
    "The FSN's peak training memory is larger than the transformer's.",
    efficiency.FSN,
    efficiency.TRANSFORMER,
    macros=("memFSNOneM", "memXFOneM"),
)
def _(b: Bench) -> tuple[bool, str]:
    ours, theirs = (
        efficiency.speed(b.runs(n), "peak_memory_gb").mean for n in (efficiency.FSN, efficiency.TRANSFORMER)
    )
    return ours > theirs, f"{ours:.2f} GB against {theirs:.2f} GB"


@claim(
    CLAIMS,
    "mean-field-slower",
    "Appendix B",
    "The FSN-MF trains more slowly than the FSN.",
    efficiency.MEAN_FIELD,
    efficiency.FSN,
    macros=("tpsMFOneM",),
)
def _(b: Bench) -> tuple[bool, str]:
    found = _slower(b, efficiency.MEAN_FIELD, efficiency.FSN)
    return found > 1, f"{found:.2f} times slower"
