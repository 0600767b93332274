"""Section 4.2 and Appendix C: copy depth on code, and what text and code share."""

from __future__ import annotations

import itertools

from fsn.paper import depth, needs
from fsn.paper.bench import Bench, NotRun
from fsn.paper.claims.capability import LAST, PEAK, cells
from fsn.paper.claims.claim import Claim, claim, listed, signed
from fsn.paper.claims.comparison import final
from fsn.paper.depth import BIN_NAMES, DEEP_BINS

CLAIMS: list[Claim] = []

CODE = (needs.CODE_TRANSFORMER, needs.CODE_FSN, needs.CODE_FSN.seed(2))


def healthy(b: Bench) -> list[str]:
    """The code seeds that did not end on a plateau."""
    runs = b.by_seed(needs.CODE_FSN)
    losses = {seed: final(run, b) for seed, run in runs.items()}
    return [f"FSN, s{seed}" for seed, loss in losses.items() if loss <= min(losses.values()) + 0.1]


@claim(
    CLAIMS,
    "code-grows-with-depth",
    "Section 4.2",
    "On code the advantage of the healthy seeds grows monotonically with depth over the four bins from "
    "four on.",
    *CODE,
    every=True,
)
def _(b: Bench) -> tuple[bool, str]:
    table, parts, fine = depth.margins(b, "code"), [], True
    for run in healthy(b):
        found = [depth.cell(table, run, name)["margin"] for name in DEEP_BINS]
        fine &= all(x > y for x, y in itertools.pairwise(found))
        parts.append(f"{run}: {listed(found, signed)}")
    return fine, "; ".join(parts)


@claim(
    CLAIMS,
    "code-deep-bins-clear",
    "Section 4.2",
    "On the two deepest bins the healthy seeds are ahead with intervals clear of zero.",
    *CODE,
    every=True,
    macros=("cdcDeepLo", "cdcDeepHi"),
)
def _(b: Bench) -> tuple[bool, str]:
    names = healthy(b)
    found = [cell for cell in cells(b, "FSN", [PEAK, LAST], "code") if cell[0] in names]
    clear = sum(below for *_, below in found)
    span = f"{signed(min(c[2] for c in found))} to {signed(max(c[2] for c in found))}"
    return clear == len(found), f"{clear} of {len(found)} clear of zero, {span}"


@claim(
    CLAIMS,
    "failed-seed-keeps-copying",
    "Section 4.2",
    "The plateau seed is behind on the shallowest bin, yet ahead on the two deepest with intervals clear "
    "of zero.",
    *CODE,
    macros=("cdcFailZeroOne", "cdcFailSixteen", "cdcFailTwentyFour"),
    conditional=True,
)
def _(b: Bench) -> tuple[bool, str]:
    names = healthy(b)
    failed = [run for run in depth.labels(b, "code", "FSN") if run not in names]
    if not failed:
        raise NotRun("none of our code seeds ended on a plateau")
    table, run = depth.margins(b, "code"), failed[0]
    first, *deep = (depth.cell(table, run, name) for name in (BIN_NAMES[0], PEAK, LAST))
    fine = first["margin"] > 0 and all(one["high"] < 0 for one in deep)
    return fine, f"{run}: {signed(first['margin'])}, then {listed([c['margin'] for c in deep], signed)}"


@claim(
    CLAIMS,
    "deep-targets-commoner-on-code",
    "Section 4.2",
    "Targets of depth 24 and beyond are far commoner on code (3.0 percent) than on text (0.6 percent).",
    macros=("codeDeepShare", "enwikDeepShare"),
)
def _(b: Bench) -> tuple[bool, str]:
    text, code = (100 * b.labels(role).share(24) for role in ("text", "code"))
    return code > 2 * text, f"{code:.2f} percent against {text:.2f} percent"


@claim(
    CLAIMS,
    "code-margins-smaller",
    "Appendix C",
    "The code margins are smaller in absolute terms than the text margins on every deep bin (seed 0).",
    needs.CODE_TRANSFORMER,
    needs.CODE_FSN.seed(0),
    needs.REFERENCE,
    needs.FSN_CONVERGED.seed(0),
)
def _(b: Bench) -> tuple[bool, str]:
    rows = {
        role: [depth.cell(depth.margins(b, role), "FSN, s0", n)["margin"] for n in DEEP_BINS]
        for role in ("text", "code")
    }
    fine = all(abs(c) < abs(t) for c, t in zip(rows["code"], rows["text"], strict=True))
    return fine, f"code {listed(rows['code'], signed)}; text {listed(rows['text'], signed)}"


@claim(
    CLAIMS,
    "code-copies-less-surprising",
    "Appendix C",
    "On the two deepest bins absolute losses on code are below those on text for both architectures.",
    needs.CODE_TRANSFORMER,
    needs.CODE_FSN.seed(0),
    needs.REFERENCE,
    needs.FSN_CONVERGED.seed(0),
)
def _(b: Bench) -> tuple[bool, str]:
    pairs = []
    for name in (PEAK, LAST):
        code, text = (depth.cell(depth.margins(b, role), "FSN, s0", name) for role in ("code", "text"))
        pairs += [(code[column], text[column]) for column in ("loss", "reference")]
    shown = "; ".join(f"{c:.3f} against {t:.3f}" for c, t in pairs)
    return all(c < t for c, t in pairs), shown
