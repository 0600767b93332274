"""Beyond the paper: what has been trained so far, dropout, which field copies, where each model looks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ...measure import copy_depth, lesions, looks, training
from ...measure.coupling import FIELDS
from ...measure.looks import Looks
from ...measure.losses import FILE
from ...measure.metrics import diverged_at
from ...measure.seeds import compare, rounded
from ...measure.tables import Table, stacked
from ...measure.training import loss_at
from ...train import Run
from ...train.world import choose_device
from ..bench import BIN_NAMES, Bench, NotRun, cell, measurement, once
from ..needs import (
    FSN,
    FSN_CONVERGED,
    FSN_DROPOUT,
    KURAMOTO,
    KURAMOTO_DROPOUT,
    KV_SHIFT,
    LITERAL_DROPOUT,
    NO_PHASES,
    REFERENCE,
    RUNGS,
    THREE,
    TRANSFORMER,
    TRANSFORMER_DROPOUT,
    Need,
    epochs_of,
)
from ..rows import MISSING, Cited, Claim, Found, Measurement, Result, Row, cite, item, joined, listed, signed
from .copy_depth import cite_margin, margin_of

# -- what has been trained so far --------------------------------------------------------------------------

SEEDS = tuple(range(10))


def papers_values() -> dict[Need, Mapping[int, Cited]]:
    """Every kind of run the registry knows, with the paper's values at the epochs it gives."""
    early = partial(cite, "early")

    def main(family: str, where: str = "enwik8@30") -> Cited:
        return cite("main_table", where, family, "mean")

    found: dict[Need, Mapping[int, Cited]] = {
        Need("transformer"): {30: main("transformer")},
        Need("fsn"): {2: early("fsn@2"), 30: main("fsn"), 50: main("fsn", "enwik8@50")},
        Need("fsn-nophase"): {2: early("fsn-nophase@2"), 30: main("fsn-nophase")},
        Need("fsn-lean"): {11: early("fsn-lean@11")},
        Need("kuramoto"): {},
        Need("fsn-mf"): {30: main("fsn-mf")},
        Need("fsn-mf-winding"): {30: main("fsn-mf-winding")},
        Need("fsn-torus-swiglu"): {2: early("fsn-torus-swiglu@2")},
        KV_SHIFT: {},
        TRANSFORMER_DROPOUT: {30: main("transformer")},
        FSN_DROPOUT: {30: main("fsn")},
        KURAMOTO_DROPOUT: {},
        Need("fsn-literal"): {},
        LITERAL_DROPOUT: {30: main("fsn")},
        Need("fsn-nodelay"): {},
        Need("fsn-noharmonics"): {},
        Need("fsn-nobound"): {1: early("no-bound@1")},
        **{Need(name): {} for name in ("fsn-dissolved", "daido", "successor")},
        **{Need(name): {} for name in ("fsn-positive-gate", "fsn-shared-kernel")},
    }
    for rung, (fsn, transformer) in list(RUNGS.items())[1:]:
        for key, need in (("transformer", transformer), ("fsn", fsn)):
            epochs = (14, 30) if rung == "8M" and key == "transformer" else (need.epochs,)
            found[need] = {e: cite("ladder", rung, f"{key}@{e}") for e in epochs}
    found[Need("transformer", role="code")] = {30: main("transformer", "code@30")}
    found[Need("fsn", role="code")] = {}
    found[Need("fsn-nophase", role="code")] = {30: cite("main_table", "code@30", "fsn-nophase", "seed0")}
    for family in ("transformer", "fsn"):
        found[Need(family, role="code", length=512)] = {30: cite("main_table", "code@30/seq512", family)}
    return {need.seed(*SEEDS): values for need, values in found.items()}


def found_runs(bench: Bench, need: Need) -> list[Run]:
    """The runs of a kind that have finished an epoch, or diverged before."""
    found = [bench.find(need, seed) for seed in SEEDS]
    return [run for run in found if run is not None and (epochs_of(run) or diverged_at(run))]


def compared_at(every: Mapping[Need, list[Run]], need: Need) -> set[int]:
    """Epochs at which a model stands beside others: the last that FSN and transformer of its size, text and
    length both have, and the last of runs of the same model with something replaced."""
    alike = [one for one in every if (one.size, one.role, one.length) == (need.size, need.role, need.length)]
    last = {one.family: max(map(epochs_of, every[one]), default=0) for one in alike if not one.overrides}
    both = {min(last["fsn"], last["transformer"])} if {"fsn", "transformer"} <= set(last) else set()
    same = [one for one in alike if one.family == need.family and not need.overrides]
    return both | {epochs_of(run) for one in same for run in every[one]}


@item("so-far", "What has been trained so far", "beyond the paper")
def so_far(b: Bench, out: Result) -> None:
    """Every run of the recipe, at the epochs it has reached; the number of seeds is what was found."""
    papers = papers_values()
    every = {need: found_runs(b, need) for need in papers}
    for need, runs in every.items():
        own = not b.stands_in(need.role)
        by_epoch = {b.epoch(e): paper for e, paper in papers[need].items()}
        long = f", windows of {need.length}" if need.length != 256 else ""
        heading = f"{b.corpus_name(need.role)}{long}"
        begun = [run for run in runs if epochs_of(run)]
        for run in (run for run in runs if not epochs_of(run)):
            remark = f"{run.name}: not finite in epoch {diverged_at(run)}"
            title = f"{need.model}, epoch 1"
            out.rows.append(Row(title, None, math.inf, None, "1", remark=remark, group=heading))
        reached = set(map(epochs_of, begun))
        shown = reached | {
            e for e in {*by_epoch, *compared_at(every, need)} if 0 < e <= max(reached, default=0)
        }
        for epoch in sorted(shown):
            there = [run for run in begun if epochs_of(run) >= epoch]
            summary, half = loss_at(there, epoch), loss_at(there, epoch, "valid_bits_second_half")
            paper, spread = by_epoch.get(epoch) if own else None, summary.std if summary.count > 1 else None
            title, remark = f"{need.model}, epoch {epoch}", f"second half of each window {half.mean:.4f}"
            best = [b.evaluated(run) for run in there if rounded(run) and epochs_of(run) == epoch]
            known = [bits for bits in best if bits is not None]
            remark += f"; best weights in float32 {listed(known)}" if known else ""
            count = str(summary.count)
            out.rows.append(Row(title, paper, summary.mean, spread, count, remark=remark, group=heading))
    if not out.rows:
        remark = "no run has finished an epoch"
        out.rows.append(Row("any run of the paper", None, None, state=MISSING, remark=remark))
    out.notes.append("The paper's value stands only where model, text and epoch are the same.")


# -- every recipe, paired by seed --------------------------------------------------------------------------


@item("recipes", "Every model and recipe beside the transformer", "beyond the paper", KV_SHIFT, TRANSFORMER)
def recipes(b: Bench, out: Result) -> None:
    """Every run on the text, whatever its recipe; the remark is its loss minus that of the transformer with the same
    seed in the paper's recipe. Single runs less than 0.015 bits apart are not told apart."""
    reference = b.find(Need("transformer"), 0)
    windows = b.scale.recipe(TRANSFORMER, 0)
    runs = [
        r
        for r in b.found
        if b.scale.role_of(r.config["corpus"]) == "text"
        and (r.recipe.length, r.recipe.eval_stride) == (windows.length, windows.eval_stride)
    ]
    for epoch, name in ((b.epoch(2), "recipes-early"), (b.epoch(30), "recipes")):
        heading, there = f"epoch {epoch}", [run for run in runs if epochs_of(run) >= epoch]
        if reference is None or epochs_of(reference) < epoch or len(there) < 2:
            remark = f"needs a transformer and another run with {epoch} epochs"
            out.rows.append(
                Row("difference by seed", None, None, state=MISSING, remark=remark, group=heading)
            )
            continue
        found = compare(there, reference, epoch)
        for row in found.tables["comparison"].rows:
            spread, count = (row["spread"] if row["spread"] > 0 else None), len(row["seeds"].split(","))
            lost, remark = row["left_out"], "" if row["difference"] is None else signed(row["difference"])
            remark += f" ± {row['half']:.4f} over {row['pairs']} pairs" if (row["pairs"] or 0) > 1 else ""
            remark = joined(remark, f"not finite: seed {lost}" if lost else "")
            bits = math.inf if math.isnan(row["bits"]) else row["bits"]
            model = row["model"].removesuffix(" (†)")  # the row has its own mark
            out.rows.append(Row(model, None, bits, spread, str(count), remark=remark, group=heading))
        caption = f"Bits minus the transformer's with the same seed, epoch {epoch}. Band: 0.015 bits."
        out.picture(name, lambda draw: draw(), found.figures["differences"], caption=caption, curves=there)


# -- beyond the paper: at matched epochs -------------------------------------------------------------------

MATCHED = {
    "Kuramoto": Need("kuramoto"),
    "FSN": Need("fsn"),
    "No phases": Need("fsn-nophase"),
    "transformer-kvshift": KV_SHIFT.seed(0),
}


def by_best_epoch(b: Bench, need: Need) -> dict[int, Run]:
    """The seed-0 runs of a model, by the epoch of the weights they kept: their best."""
    found: dict[int, Run] = {}
    for run in b.matching(need, 0):
        if epochs_of(run) and any((run.folder / name).is_file() for name in ("best.safetensors", FILE)):
            found.setdefault(training.best_epoch(run), run)
    return found


def matched(b: Bench) -> tuple[int, Run, dict[str, Run]]:
    """The last weights of a transformer beside which another model has its own, and the runs that do.

    Those of another model are of the same epoch, or earlier by a tenth at most: that can only be to its disadvantage.
    """
    references = by_best_epoch(b, Need("transformer"))
    others = {name: by_best_epoch(b, need) for name, need in MATCHED.items()}
    for epoch in sorted(references, reverse=True):
        models: dict[str, Run] = {}
        for name, runs in others.items():
            near = max((e for e in runs if 0.9 * epoch <= e <= epoch), default=None)
            if near is not None:
                models[name if near == epoch else f"{name} (epoch {near})"] = runs[near]
        if models:
            return epoch, references[epoch], models
    raise NotRun("no transformer and FSN of seed 0 with weights of the same epoch")


@item("copy-depth-so-far", "Copy depth at matched epochs", "beyond the paper")
def depth_so_far(b: Bench, out: Result) -> None:
    """The copy-depth margins of seed 0 against the transformer's best weights; a model's own best are of the same
    epoch, or of the earlier one that is named."""
    try:
        epoch, reference, models = matched(b)
    except NotRun as reason:
        out.rows.append(Row("margins at matched epochs", None, None, state=MISSING, remark=str(reason)))
        return

    def against(heading: str, theirs: Run, ours: Mapping[str, Run]) -> Table:
        found = b.against("text", ours, b.losses(theirs, "text"))
        for line in found.rows:
            margin, remark = margin_of(line, "{tokens:,} targets")
            title = f"{line['run']}, depth {line['bin']}"
            out.rows.append(Row(title, None, margin, None, "1", form="+.4f", remark=remark, group=heading))
        return found

    margins = against(f"Against epoch {epoch} of {reference.name}", reference, models)
    by_name = {name.partition(" (")[0]: (name, run) for name, run in models.items()}
    if {"transformer-kvshift", "FSN"} <= set(by_name):
        (shift, run), (_, fsn) = by_name["transformer-kvshift"], by_name["FSN"]
        against(f"Against epoch {training.best_epoch(fsn)} of {fsn.name}", fsn, {f"{shift} minus FSN": run})
    losses = {name: b.losses(run, "text") for name, run in {"transformer": reference, **models}.items()}
    levels = copy_depth.depth_losses(losses, b.battery("text"))
    out.tables.append(("Bits per target by copy depth", levels))
    caption = f"Margins against the transformer's weights of epoch {epoch} by copy depth, seed 0. "
    caption += "Below zero the model is ahead."
    families = copy_depth.seed_mean_table(margins, {name: [name] for name in models})
    out.picture("copy-depth-so-far", copy_depth.draw_depth_bars, families, margins, caption)


# -- beyond the paper: dropout -----------------------------------------------------------------------------


Pair = tuple[str, Need, Need, str, str]
"""A model without and with dropout on the feed-forward output, what the paper's table calls it, and its figure."""
DROPOUT_FSN: Pair = ("FSN", FSN.seed(0), FSN_DROPOUT, "FSN", "dropout")
DROPOUT_KURAMOTO: Pair = (
    "Kuramoto attention",
    KURAMOTO.seed(0).after(30),
    KURAMOTO_DROPOUT,
    "Base layer",
    "dropout-kuramoto",
)
PAIRS = (DROPOUT_FSN, DROPOUT_KURAMOTO)


def models_of(pair: Pair) -> dict[str, tuple[Need, Need]]:
    """A pair's models, each with the transformer of the same dropout, which it is measured against. Without dropout
    there are two, of thirty epochs and, as in the paper, of fifty."""
    name, without, dropped, *_ = pair
    return {
        f"{name}, no dropout": (without.best, TRANSFORMER.seed(0).best),
        f"{name}, no dropout, transformer of 50 epochs": (without.best, REFERENCE.best),
        f"{name}, dropout 0.1": (dropped.best, TRANSFORMER_DROPOUT.best),
    }


@once()
def dropout_margins(b: Bench, pair: Pair) -> Table:
    """One row per bin and model that is there, against the transformer of the same dropout."""
    return stacked(
        [
            b.against("text", {name: run}, b.losses(b.run(rival), "text"))
            for name, (need, rival) in models_of(pair).items()
            if b.by_seed(rival)
            for run in b.by_seed(need).values()
        ]
    )


def beside_the_paper(ours: Table, pair: Pair) -> Table:
    """Our margins with the paper's three seeds as one more family."""
    name, *_, label, _ = pair
    papers = [
        {"run": f"s{seed}", "bin": depth, "margin": cite_margin("text", f"{label}, s{seed}", depth).value}
        | {"tokens": 0, "loss": math.nan}
        for seed, depth in itertools.product(THREE, BIN_NAMES)
    ]
    families = {run: [run] for run in dict.fromkeys(ours.column("run"))}
    families |= {f"{name} in the paper": [f"s{seed}" for seed in THREE]}
    return copy_depth.seed_mean_table(Table(ours.columns, [*ours.rows, *papers]), families)


@item(
    "dropout",
    "What dropout does to copying",
    "beyond the paper",
    *dict.fromkeys(need for pair in PAIRS for both in models_of(pair).values() for need in both),
)
def dropout(b: Bench, result: Result) -> None:
    """Copy-depth margins of the FSN and of Kuramoto attention, with and without dropout on the feed-forward output,
    beside the paper's. The transformer that a model is measured against has the same dropout."""

    def margin(pair: Pair, model: str, name: str, *_: list[Run]) -> Measurement:
        return margin_of(cell(dropout_margins(b, pair), model, name), "{loss:.4f} bits per target")

    for pair in PAIRS:
        rows = []
        for model, both in models_of(pair).items():
            epochs = next((epochs_of(run) for run in b.by_seed(both[0]).values()), b.epoch(both[0].epochs))
            result.heading = f"{model}, best of {epochs} epochs"
            for name in BIN_NAMES:
                title, paper = f"{model}, depth {name}", cite_margin("text", f"{pair[3]}, mean", name)
                measure = partial(margin, pair, model, name)  # of other epochs than the paper's, one seed
                rows.append(result.row(title, paper, both, measure, "+.4f", comparable=False))
        if all(row.ours is not None for row in rows):
            ours = dropout_margins(b, pair)
            caption = (
                f"{pair[0]}: margins by copy depth against the transformer, both without dropout, the same against the "
                "transformer of fifty epochs, both with dropout 0.1, and the paper's. Below zero the model is ahead."
            )
            families = beside_the_paper(ours, pair)
            result.picture(pair[4], copy_depth.draw_depth_bars, families, ours, caption)
    if result.pictures:
        result.notes.append(
            "Best weights of each model. The paper lists dropout 0.1 for both models; its transformer has 50 epochs."
        )


# -- which field copies ------------------------------------------------------------------------------------

SHALLOW, DEEP = ("0–1",), ("16–23", "24–32")


@measurement("lesions", Table, FSN.seed(0))
def lesions_of(b: Bench, run: Run) -> Table:
    """The lesion table of a run's best weights, on a sample of the copy-depth battery."""
    model = run.load_model("best", choose_device(b.device))
    return lesions.lesion_table(model, b.corpus("text").valid, b.battery("text").sample())


def rise(table: Table, field: str, layer: int, depths: tuple[str, ...]) -> float:
    """Bits by which targets of these depths cost more without a field, over all of them."""
    rows = table.where(field=field, layer=layer).rows
    rows = [row for row in rows if row["depth"] in depths and row["targets"]]
    if not rows:
        return math.nan
    return float(np.average([row["rise"] for row in rows], weights=[row["targets"] for row in rows]))


@item("lesions", "Which field copies", "beyond the paper", FSN.seed(0))
def which_field_copies(b: Bench, out: Result) -> None:
    """The present and the successor field of every layer, taken out in turn: what new text and long copies
    cost then."""
    need = FSN.seed(0)
    run = b.reached(need, 0)

    def measure(field: str, layer: int, depths: tuple[str, ...], runs: list[Run]) -> float:
        return rise(lesions_of(b, runs[0]), field, layer, depths)

    layers = range(1, run.model_config.layers + 1) if run is not None else range(1, 2)
    kinds = (("new text (depth 0–1)", SHALLOW), ("long copies (depth 16 and more)", DEEP))
    for field, layer, (words, depths) in itertools.product(FIELDS, layers, kinds):
        title = f"without the {field} field of layer {layer}, {words}: rise in bits"
        out.row(title, None, [need], partial(measure, field, layer, depths), "+.3f")
    if run is not None and any(row.ours is not None for row in out.rows):
        out.notes.append(
            "Nothing is trained again after a field is taken out, so a rise says what the rest relies on; what a model "
            "that never had it would lose is for the ablations to say."
        )
        caption = f"Rise of the loss, in bits per target, when one field of one layer of {run.name} is taken out, by "
        out.picture("lesions", lesions.draw_lesions, lesions_of(b, run), caption=caption + "copy depth.")


# -- where it looks ----------------------------------------------------------------------------------------

LOOKING: dict[str, Need] = {
    "FSN": FSN.seed(0).best,
    "No phases": NO_PHASES.seed(0).best,
    "Kuramoto": KURAMOTO.seed(0).after(30).best,
    "transformer": TRANSFORMER.seed(0).best,
}


@measurement("looks", Looks, *LOOKING.values())
def looks_of(b: Bench, run: Run) -> Looks:
    """What a run's best weights do with passages of the validation split."""
    windows, period = looks.repeated(b.corpus("text").valid, 256)
    return looks.look(b.model(run), windows, period, run.name)


@item("looks", "Where it looks", "beyond the paper", *tuple(LOOKING.values()))
def where_it_looks(b: Bench, out: Result) -> None:
    """Attention when a text says something again: at the place itself, or at what came next."""

    def most(offset: int, runs: list[Run]) -> Measurement:
        layer, weight = looks_of(b, runs[0]).most(offset)
        return weight, f"layer {layer}"

    def saved(runs: list[Run]) -> Measurement:
        one = looks_of(b, runs[0])
        return one.second - one.first, f"from {one.first:.3f} to {one.second:.3f}"

    found = []
    for name, need in LOOKING.items():
        for offset, words in ((0, "the same place"), (1, "what came next")):
            title = f"{name}: attention of the layer that looks most at {words}"
            out.row(title, None, [need], partial(most, offset), ".3f")
        title = f"{name}: bits a symbol, second saying minus first"
        if out.row(title, None, [need], saved, "+.3f").ours is not None:
            found.append(replace(looks_of(b, b.run(need)), name=name))
    if found:
        out.notes.append(
            "Passages of two fifths of a window, one fifth of other text, the passage again. Attention passes on what "
            "lies where it looks, so a transformer that copies looks one place further, at what came next. Coupling to "
            "successors passes that on from the place itself."
        )
        out.picture("looks", looks.draw_looks, found, stacked([one.table() for one in found]))


def finds_the_place(b: Bench) -> Found:
    looks = looks_of(b, b.run(FSN_CONVERGED.seed(0).best))
    same, after, first, second = looks.most(0)[1], looks.most(1)[1], looks.first, looks.second
    words = f"attention {same:.3f} at the same place, {after:.3f} at what came next; "
    return (
        same > after and second < first,
        f"{words}{first:.3f} bits a symbol the first time, {second:.3f} the second",
    )


# fmt: off
CLAIMS = (
    Claim("attention-finds-the-place", "Section 3.2",
          "Attention selects positions whose history resembles the present, and the coupling moves the state towards "
          "where these contexts went next (here: in a repeated passage it looks at the same place, not one further, "
          "and copies).",
          (FSN_CONVERGED.seed(0).best,), finds_the_place, early=30),
)
