"""Sections 2 and 5, Appendix A: the parts of the model, their size, and what it costs to leave one out."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import data
from ...measure import losses
from ...measure.bootstrap import SeedSummary, seed_summary
from ...measure.metrics import diverged_at, valid_bits
from ...measure.training import loss_at
from ...models import FSN as FSNModel
from ...models import Transformer, TransformerConfig, build, count_parameters, preset
from ...models.config import FSNConfig, swiglu_parameters
from ...nn import record
from ...ops import causal_softmax, coupling
from ...ops.coupling import Pair
from ...train import Recipe, Run
from ..bench import START_WINDOWS, Bench, once
from ..needs import (
    FSN,
    FSN_CONVERGED,
    LEAN,
    MEAN_FIELD,
    NO_BOUND,
    NO_DELAY,
    NO_FEEDFORWARD,
    NO_PHASES,
    TORUS,
    TRANSFORMER,
    TRANSFORMER_CONVERGED,
    WINDING,
    Need,
    epochs_of,
)
from ..rows import (
    Cited,
    Claim,
    Found,
    Measurement,
    Result,
    cite,
    item,
    listing,
    macro,
    parameter_totals,
    signed,
    told_apart,
)
from .main import difference, lower, margin, mean

# -- ablations ---------------------------------------------------------------------------------------------

FSN_EARLY, NO_PHASES_EARLY = FSN.seed(0, 1, 2).after(2), NO_PHASES.after(2)
MEAN_FIELD_EARLY = MEAN_FIELD.seed(0).after(2)


def first_epoch(runs: list[Run]) -> Measurement:
    """Loss after epoch one; infinite where training stopped on a loss that was not finite."""
    run = runs[0]
    if epochs_of(run) == 0:
        return math.inf, f"not finite in epoch {diverged_at(run)}, at step {run.step:,}"
    return loss_at([run], 1).mean if diverged_at(run) != 1 else math.inf


@item(
    "ablations",
    "Ablation screens",
    "Section 5, Section 2.4, Appendix A",
    *(FSN_EARLY, NO_PHASES_EARLY, NO_PHASES, FSN, NO_DELAY, TORUS, MEAN_FIELD_EARLY, NO_BOUND),
)
def ablations(b: Bench, out: Result) -> None:
    """What the loss costs without the delay, the static phases, the lifted feed-forward input, or the bound."""
    two, minus = b.epoch(2), partial(out.row, form="+.4f")
    fsn, real = (cite("early", f"{name}@2") for name in ("fsn", "fsn-nophase"))
    one_fsn, one_real = FSN_EARLY.seed(0), NO_PHASES_EARLY.seed(0)
    out.heading = "Static phases"
    out.row(f"FSN, epoch {two}, three seeds", fsn, [FSN_EARLY])
    out.row(f"no phases, epoch {two}, three seeds", real, [NO_PHASES_EARLY])
    minus(f"no phases minus FSN, epoch {two}", real.minus(fsn), [NO_PHASES_EARLY, FSN_EARLY])
    late = macro("nophaseThirty").minus(macro("sfnThirty"))
    minus(f"no phases minus FSN, epoch {b.epoch(30)}", late, [NO_PHASES, FSN])
    out.heading = "Screens"
    delay, torus = cite("early", "no-delay minus full @2 (screen)"), cite("early", "fsn-torus-swiglu@2")
    minus(f"no delay minus FSN, epoch {two}, seed 0", delay, [NO_DELAY, one_fsn])
    out.row(f"periodic feed-forward input, epoch {two}, seed 0", torus, [TORUS])
    zero, compared = cite("early", "fsn-nophase@2/s0"), "what the periodic input is compared with"
    out.row(f"no phases, epoch {two}, seed 0", zero, [one_real], remark=compared)
    minus("periodic feed-forward input minus no phases", macro("torusSwigluPenalty"), [TORUS, one_real])
    third, diverged = "paper: the penalty above is more than a third of this", "the paper's run diverged"
    minus(f"FSN-MF minus FSN, epoch {two}, seed 0", None, [MEAN_FIELD_EARLY, one_fsn], remark=third)
    out.row("no bound, epoch 1", cite("early", "no-bound@1"), [NO_BOUND], first_epoch, ".2f", diverged)
    out.notes.append("Removing the feed-forward block (FSN-MF) at thirty epochs is in the main table.")


# -- Section 2.5: parameters -------------------------------------------------------------------------------

SYMBOLS = {"enwik8": 205, "code": 97}


def total(name: str, vocab_size: int = 205) -> int:
    return count_parameters(preset(name, vocab_size))


def heavier(size: str, vocab_size: int = 205) -> float:
    """By how many percent the FSN is heavier than its transformer at a rung."""
    return 100.0 * (total(f"fsn-{size}", vocab_size) / total(f"transformer-{size}", vocab_size) - 1.0)


def fsn_config(name: str = "fsn-1m") -> FSNConfig:
    config = preset(name, SYMBOLS["enwik8"])
    assert isinstance(config, FSNConfig)
    return config


def coefficients_share() -> float:
    """The share of the kernel's coefficients in the total, in percent: 4 N k numbers in every layer."""
    config = fsn_config()
    return 100.0 * 4 * config.coupling.harmonics * config.k * config.layers / total("fsn-1m")


def mean_field_mismatch() -> float:
    """By how many percent the mean-field block differs from the SwiGLU block it replaces."""
    config = fsn_config("fsn-mf-1m")
    block, modes = swiglu_parameters(config.k, 2 * config.k), config.collective_modes
    return 100.0 * abs(modes * (6 * config.k + 1) - block) / block


def torus_factor() -> float:
    """How many times the parameters of the block it replaces the periodic-input SwiGLU has."""
    config = fsn_config()
    extra = total("fsn-torus-swiglu-1m") - total("fsn-nophase-1m")
    return 1.0 + extra / (config.layers * swiglu_parameters(config.k, 2 * config.k))


@item("parameters", "Parameter counts", "Section 2.5 and Table 3")
def parameters(b: Bench, out: Result) -> None:
    """Totals of the models as built, exact to the digit, and the shares the text quotes. Needs no run."""

    def row(
        title: str, paper: Cited | float | None, value: float, remark: str = "", form: str = ".2f"
    ) -> None:
        out.row(title, paper, [], lambda: float(value), form, remark)

    out.heading = "Totals"
    for (family, size, symbols), paper in parameter_totals().items():
        name = f"{family}-{size}"
        row(f"{name}, {symbols} symbols", paper, total(name, symbols), form=",.0f")
    out.heading = "Shares"
    row("FSN heavier than the transformer on text, percent", macro("paramImbalance"), heavier("1m"))
    for size, name in (("2m", "Two"), ("4m", "Four"), ("8m", "Eight")):
        row(f"FSN lighter at {size.upper()}, percent", macro(f"ladder{name}Lighter"), -heavier(size))
    row("Kernel's share of the total, percent", None, coefficients_share(), "paper: below one percent")
    block, periodic = "Mean-field block against SwiGLU", "Periodic-input SwiGLU, times the block it replaces"
    row(f"{block}, percent off", None, mean_field_mismatch(), "paper: within a tenth of a percent")
    row(periodic, 3, torus_factor(), "paper: roughly three times")


# -- Table 3: configuration --------------------------------------------------------------------------------


@item("configuration", "Configuration of the main runs", "Table 3")
def configuration(b: Bench, out: Result) -> None:
    """The resolved configuration, read off models that were built and off the recipe's defaults. Needs no run."""

    def row(title: str, paper: float, ours: float, remark: str = "") -> None:
        out.row(title, paper, [], lambda: float(ours), ".4g", remark)

    def seeds(of: str, need: Need) -> None:
        out.row(f"seeds of {of}", len(need.seeds), [need], lambda runs: float(len(runs)), ".0f")

    out.heading = "Models"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build("fsn-1m", vocab_size=SYMBOLS["enwik8"])
    assert isinstance(model, FSNModel)
    config = model.config
    layer: Any = model.layers[0]
    kernel = layer.kernel.coefficients()
    present, successor = (float(kernel[name].detach()[0, 0, 0]) for name in ("w0", "w1"))
    alpha = float(layer.attention_bound.alpha.detach())
    row("FSN: layers", 4, len(model.layers))
    row("FSN: phases per token k", 176, config.k)
    row("FSN: hidden multiplier of SwiGLU", 2, (config.hidden or 2 * config.k) / config.k)
    row("FSN: harmonics N", 3, config.coupling.harmonics)
    row("FSN: first harmonic of the present field at the start", 0.18, present)
    row("FSN: first harmonic of the successor field at the start", 0.82, successor)
    row("FSN: deviation of the imaginary parts at the start", 0.05, config.coupling.noise)
    row("FSN: α of the bound at the start, in units of 2π", 1, alpha / (2 * math.pi))
    dropout = "differs: the paper lists 0.1 and not where; no place that was tried is told apart from none"
    row("FSN: dropout", 0.1, config.dropout, dropout)
    base, code = (preset("transformer-1m", symbols) for symbols in SYMBOLS.values())
    assert isinstance(base, TransformerConfig) and isinstance(code, TransformerConfig)
    with torch.device("meta"):
        row("Transformer: layers", 4, len(Transformer(base).layers))
    row("Transformer: width on text", 120, base.width)
    row("Transformer: width on code", 124, code.width)
    row("Transformer: heads", 1, base.heads)
    row("Transformer: hidden multiplier of SwiGLU", 4, (base.hidden or 4 * base.width) / base.width)
    row("Transformer: dropout", 0.1, base.dropout, dropout)
    out.heading, recipe = "Recipe", Recipe()
    row("AdamW: weight decay", 0.01, recipe.weight_decay)
    row("AdamW: β₁", 0.9, recipe.beta1)
    row("AdamW: β₂", 0.999, recipe.beta2)
    row("learning rate, constant", 1e-3, recipe.lr)
    row("gradient clip, global norm", 1.0, recipe.clip)
    row("batch", 64, recipe.batch_size)
    row("window length", 256, recipe.length, "512 in the long-context arm")
    row("training stride", 64, recipe.train_stride)
    row("evaluation stride", 128, recipe.eval_stride)
    out.row("symbols of the text", 205, [], lambda: float(b.text("text").vocab_size), ".4g")
    row("symbols of the code", 97, len(data.CODE_SYMBOLS))
    seeds("the FSN with 30 epochs", FSN)
    seeds("the transformer with 30 epochs", TRANSFORMER)
    seeds("the FSN with 50 epochs", FSN_CONVERGED)
    seeds("the converged transformer bar, 50 epochs", TRANSFORMER_CONVERGED)
    settings = sorted({str(run.config["recipe"].get("precision")) for run in b.found})
    out.notes.append("The paper trains in float32 on one A100-class GPU without compilation.")
    if settings:
        out.notes.append(f"Runs found here were trained in {', '.join(settings)}.")


# -- the init ramp -----------------------------------------------------------------------------------------

SEEDS = (0, 1, 2)


@once()
def ramps(b: Bench) -> dict[tuple[str, str], SeedSummary]:
    """RMS of the ``state`` the feed-forward block reads and of its ``raw`` output in the ``first`` layer and in the
    ``last`` of a fresh model, and the ``growth`` from one to the other."""
    text = b.text("text")
    tokens = text.start[:, :-1].long()
    found: dict[tuple[str, str], list[float]] = {}
    for seed in SEEDS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build("fsn-nophase-1m", vocab_size=text.vocab_size).double()  # the same digits on any CPU
        with losses.evaluating(model), record(model, "phases", "layers.*") as points:
            model(tokens)
        last = len(model.layers) - 1  # type: ignore[arg-type]
        before = (points["phases"], points[f"layers.{last - 1}.state"])
        read = (x + points[f"layers.{i}.update.bounded"] for x, i in zip(before, (0, last), strict=True))
        raw = (points[f"layers.{i}.feedforward.raw"] for i in (0, last))
        for name, pair in (("state", read), ("raw", raw)):
            start, end = (x.double().pow(2).mean().sqrt().item() for x in pair)
            for where, value in (("first", start), ("last", end), ("growth", end / start)):
                found.setdefault((name, where), []).append(value)
    return {key: seed_summary(values) for key, values in found.items()}


@item("init-ramp", "The init ramp", "Section 2.4")
def init_ramp(b: Bench, out: Result) -> None:
    """Scale through depth at initialization, of the state the feed-forward block reads and of the block's raw output.
    Needs a text, no run."""

    def row(title: str, name: str, where: str, paper: Cited | None = None) -> None:
        out.row(title, paper, [], lambda: ramps(b)[name, where], ".1f" if where == "growth" else ".6f")

    raw, read = "RMS of the raw feed-forward output, {} layer", "RMS of the state the block reads, {} layer"
    growth = "{}, growth from first to last layer"
    row(raw.format("first"), "raw", "first", cite("init_ramp", "layer0"))
    row(raw.format("last"), "raw", "last", cite("init_ramp", "layer3"))
    row(growth.format("raw output"), "raw", "growth")
    row(read.format("first"), "state", "first")
    row(read.format("last"), "state", "last")
    row(growth.format("state"), "state", "growth", macro("rmsRamp"))
    out.notes.append(
        "The paper's text gives a growth of 33 for the state the block reads; a note in its source has that number "
        "from the block's raw output. Both are measured here: fsn-nophase-1m, untrained, seeds "
        f"{', '.join(map(str, SEEDS))}, {START_WINDOWS} windows of 255 tokens of {b.corpus_name('text')}."
    )


# -- claims ------------------------------------------------------------------------------------------------


def totals_to_the_digit(b: Bench) -> Found:
    stated = parameter_totals()
    same = sum(total(f"{family}-{size}", n) == stated[family, size, n] for family, size, n in stated)
    return same == len(stated), f"{same} of {len(stated)} totals are the paper's to the digit"


def kernel_adds_4nk(b: Bench) -> Found:
    config, (full, base) = fsn_config(), (preset(name, 205, k=176) for name in ("fsn-1m", "kuramoto-1m"))
    more = (count_parameters(full) - count_parameters(base)) / config.layers
    expected = 4 * config.coupling.harmonics * 176
    return more == expected, f"{more:,.0f} per layer more than the base layer at k = 176; 4Nk = {expected:,}"


def drawn() -> tuple[Tensor, Tensor, Pair]:
    """Phases (B, T, k), attention (B, T, T) and a plain sine in float64, to try equations on."""
    generator = torch.Generator().manual_seed(0)
    theta = 6 * torch.rand(2, 12, 5, dtype=torch.float64, generator=generator)
    scores = torch.randn(2, 12, 12, dtype=torch.float64, generator=generator)
    return theta, causal_softmax(scores), Pair(torch.ones(1, 5, dtype=torch.float64), None)


def base_is_a_gradient(b: Bench) -> Found:
    """Coupling to attended tokens by the op that the model uses, against autograd of their disagreement with θ_t."""
    theta, attention, one = drawn()
    ours = coupling(theta, attention, one, None, harmonics=1, frame="rest")
    own = theta.clone().requires_grad_()
    disagreement = 1 - torch.cos(theta[:, None] - own[:, :, None])  # (B, t, u, k)
    (gradient,) = torch.autograd.grad((attention[..., None] * disagreement).sum(), own)
    return equal(ours, -gradient)


def equal(ours: Tensor, theirs: Tensor) -> Found:
    largest = float((ours - theirs).abs().max())
    return largest < 1e-12, f"largest difference {largest:.0e} over {ours.numel()} couplings in float64"


def proposition_1(b: Bench) -> Found:
    """Coupling to successors by the op that the model uses, against Sakaguchi's form with δ_u as its angle."""
    theta, attention, one = drawn()
    ours = coupling(theta, attention, None, one, harmonics=1, frame="rest")
    steps = theta[:, 1:] - theta[:, :-1]
    apart = theta[:, None, :-1] - theta[:, :, None]  # θ_u − θ_t: (B, t, u, k)
    return equal(ours, (attention.tril(-1)[:, :, :-1, None] * torch.sin(apart + steps[:, None])).sum(dim=2))


PENALTIES = {
    "delay": (NO_DELAY, FSN_EARLY),
    "phases": (NO_PHASES_EARLY, FSN_EARLY),
    "periodic input": (TORUS, NO_PHASES_EARLY),
    "mean field": (MEAN_FIELD_EARLY, FSN_EARLY),
}
"""What is left out, or put in place of another part, and with what it is compared."""


def penalties(b: Bench, *names: str) -> list[float]:
    """What each costs at epoch two, seed 0."""
    return [margin(b, *(need.seed(0) for need in PENALTIES[name])) for name in names]


def delay_matters_most(b: Bench) -> Found:
    """Against the other subtractions that are there."""
    b.run(NO_DELAY)
    others = {name: [need.seed(0) for need in pair] for name, pair in PENALTIES.items() if name != "delay"}
    names = ["delay", *b.in_hand(others)]
    found = penalties(b, *names)
    verdict = listing(found, lambda p: p[0] > max(p[1:]), signed, f"{{}} ({', '.join(names)})")
    told_apart(b, [NO_DELAY], [found[0] - max(found[1:])], verdict[1])
    return verdict


def lead_closes(b: Bench) -> Found:
    early = margin(b, NO_PHASES_EARLY, FSN_EARLY)
    late, error = difference(b, NO_PHASES, FSN.seed(0, 1, 2))
    evidence = f"{signed(early)} at epoch {b.epoch(2)}, {signed(late)} ± {error:.4f} at {b.epoch(30)}"
    return early > 0 and late < early and late <= 2 * error, evidence


TEN = (NO_FEEDFORWARD, MEAN_FIELD.seed(0).after(10), FSN.seed(0).after(10))


def mean_field_recovers(b: Bench) -> Found:
    none, mf, swiglu = (mean(b, need) for need in TEN)
    share = (none - mf) / (none - swiglu) if none != swiglu else math.nan
    evidence = f"{none:.4f} without, {mf:.4f} mean field, {swiglu:.4f} SwiGLU: {share:.0%}"
    return none > swiglu and share > 0.5, evidence


def bound_is_essential(b: Bench) -> Found:
    run = b.run(NO_BOUND)
    if diverged_at(run) is not None:
        return diverged_at(run) == 1, f"not finite in epoch {diverged_at(run)}"
    loss, guessing = valid_bits(run)[0], math.log2(run.model_config.vocab_size)
    return loss > guessing, f"{loss:.2f} bits at epoch 1; guessing has {guessing:.2f}"


# fmt: off
CLAIMS = (
    Claim("parameter-totals", "Section 2.5",
          "The realized parameter counts of both models on text and code, and of the 8M rung.",
          (), totals_to_the_digit),
    Claim("kernel-below-one-percent", "Section 2.5", "The kernel's coefficients are below one percent of the total.",
          (), lambda b: listing([coefficients_share()], lambda v: v[0] < 1, ".2f", "{} percent")),
    Claim("kernel-adds-4nk", "Section 2.5", "The kernel adds 4Nk real parameters per layer over the base layer.",
          (), kernel_adds_4nk),
    Claim("base-coupling-is-a-gradient", "Section 3.1",
          "The base coupling is the negative gradient of the disagreement with the attended tokens.",
          (), base_is_a_gradient),
    Claim("delay-is-sakaguchi-frustration", "Proposition 1",
          "Coupling to the successor of a token is Kuramoto–Sakaguchi coupling to the token itself, frustrated by its "
          "transition.", (), proposition_1),
    Claim("counts-within-four-percent", "Section 4.1",
          "Realized counts of the main pairs differ by under four percent, in directions that vary by corpus.",
          (), lambda b: listing([heavier("1m", symbols) for symbols in SYMBOLS.values()],
                                lambda v: max(map(abs, v)) < 4 and v[0] * v[1] < 0, "+.2f", "{} percent (text, code)")),
    Claim("mean-field-matches-block", "Section 2.4",
          "The mean-field block has the parameter count of the SwiGLU block to within a tenth of a percent.",
          (), lambda b: listing([mean_field_mismatch()], lambda v: v[0] < 0.1, ".3f", "{} percent off")),
    Claim("periodic-block-is-larger", "Section 2.4",
          "The periodic-input block has roughly three times the parameters of the block it replaces.",
          (), lambda b: listing([torus_factor()], lambda v: 2.5 <= v[0] <= 3.5, ".2f", "{} times")),
    Claim("init-ramp", "Section 2.4",
          "At initialization the scale of the state the SwiGLU reads grows by roughly 33 from first layer to last (25 "
          "to 41).",
          (), lambda b: listing([ramps(b)[name, "growth"].mean for name in ("state", "raw")],
                                lambda v: 25 <= v[0] <= 41, ".1f", "{} times (the block's raw output: {} times)")),
    Claim("delay-matters-most", "Sections 3.3 and 5",
          "Removing the delay is the largest single subtraction at epoch two (phases, periodic input, feed-forward).",
          (NO_DELAY, FSN_EARLY.seed(0), NO_PHASES_EARLY.seed(0), TORUS, MEAN_FIELD_EARLY),
          delay_matters_most),
    Claim("delay-helps", "Section 5", "Without the delay, harmonics alone, the loss at epoch two is higher.",
          (NO_DELAY, FSN_EARLY.seed(0)), lambda b: listing(penalties(b, "delay"), lambda p: p[0] > 0, signed)),
    Claim("phases-help-early", "Section 5", "Early in training the static phases help: lower seed mean at epoch two.",
          (FSN_EARLY, NO_PHASES_EARLY), lambda b: lower(b, FSN_EARLY, NO_PHASES_EARLY)),
    Claim("phases-lead-closes", "Section 5",
          "The lead of the phases closes by thirty epochs (here: not above two standard errors).",
          (FSN_EARLY, NO_PHASES_EARLY, FSN.seed(0, 1, 2), NO_PHASES), lead_closes),
    Claim("noise-acts-early", "Section 2.3",
          "The effect of the noisy start concentrates early: the lean model's gap is larger at epoch two than at "
          "eleven.", (LEAN, FSN.seed(0).after(11)),
          lambda b: listing([mean(b, LEAN, e) - mean(b, FSN.seed(0).after(11), e) for e in (2, 11)],
                            lambda gaps: abs(gaps[0]) > abs(gaps[1]), signed)),
    Claim("periodic-input-costs", "Section 2.4",
          "Restricting the SwiGLU's input to periodic functions of the state costs loss at epoch two.",
          (TORUS, NO_PHASES_EARLY.seed(0)),
          lambda b: listing(penalties(b, "periodic input"), lambda p: p[0] > 0, signed)),
    Claim("periodic-input-third-of-gap", "Section 2.4",
          "That penalty is more than a third of the mean-field gap at the same checkpoint.",
          (TORUS, NO_PHASES_EARLY.seed(0), MEAN_FIELD_EARLY, FSN_EARLY.seed(0)),
          lambda b: listing(penalties(b, "periodic input", "mean field"), lambda p: p[0] > p[1] / 3, signed)),
    Claim("mean-field-recovers-most", "Section 2.4",
          "The mean field recovers most of the SwiGLU block's contribution (against a stack without any block, at ten "
          "epochs).",
          TEN, mean_field_recovers),
    Claim("winding-register-helps", "Appendix A",
          "The winding register has lower validation loss than the plain mean-field row.",
          (WINDING, MEAN_FIELD), lambda b: lower(b, WINDING, MEAN_FIELD)),
    Claim("bound-is-essential", "Appendix A",
          "Without the bound the run diverges within the first epoch (not finite, or worse than guessing).",
          (NO_BOUND,), bound_is_essential),
)
