"""Sentences about the results, made from the numbers: the page says what was found, whatever that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsn.report import escape

Model = dict[str, Any]


def bits(value: float) -> str:
    return f"{value:.3f}"


def name(model: Model) -> str:
    """With its article: "the FSN", "the Kuramoto layer", "the transformer"."""
    return {"kuramoto": "the Kuramoto layer"}.get(model["key"], f"the {model['name']}")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def difference(value: float) -> str:
    return f"{abs(value):.3f} bits {'less' if value < 0 else 'more'}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def exercise(findings: dict[str, Any]) -> str:
    """Who has learnt to copy letters: a copied letter costs less than half of what guessing would."""
    act = findings["exercise"]
    guess = act["guess"]
    known = [m for m in act["models"] if m["copied_bits"] is not None]
    if not known:
        return "The exercise has not run long enough to say anything."
    learnt = [m for m in known if m["copied_bits"] < guess / 2]
    rest = [m for m in known if m not in learnt]
    costs = [f"{m['copied_bits']:.2f} bits for {name(m)}" for m in known]
    text = f"After {act['steps']:,} steps a copied letter costs {listed(costs)}; guessing costs {guess:.2f}. "
    if not learnt:
        return text + "None of the three has found out how to copy yet. A longer run, or another seed, may."
    who = capital(listed([name(m) for m in learnt]))
    verb = "copies" if len(learnt) == 1 else "copy"
    if not rest:
        return f"{text}{who} {verb} with one layer."
    without = listed([name(m) for m in rest])
    return f"{text}{who} {verb} with one layer, {without} {'do' if len(rest) > 1 else 'does'} not."


def ranking(models: Sequence[Model], steps: int) -> str:
    """Who has the lowest validation loss, and by how much."""
    order = sorted(models, key=lambda m: m["valid_bits"])
    best, others = order[0], order[1:]
    behind = listed([f"{name(m)} {m['valid_bits'] - best['valid_bits']:.3f} bits behind" for m in others])
    return (
        f"After {steps:,} steps {name(best)} has the lowest validation loss, "
        f"{bits(best['valid_bits'])} bits per character, with {behind}."
    )


def speed(models: Sequence[Model]) -> str:
    """What a step costs, against the fastest."""
    fastest = max(models, key=lambda m: m["tokens_per_s"])
    others = [m for m in models if m is not fastest]
    slower = [f"{name(m)} {fastest['tokens_per_s'] / m['tokens_per_s']:.1f} times" for m in others]
    return f"A step of {name(fastest)} is the cheapest on this CPU; {listed(slower)} as long."


def copying(findings: dict[str, Any]) -> str:
    """The FSN on copied characters against the other two, with the interval where there is one."""
    models = {m["key"]: m for m in findings["models"]}
    ours, depth = models["fsn"], findings["depth"]
    if ours["copied_bits"] is None:
        return "The validation windows hold no copied characters to compare."
    margin = findings["margins"]["fsn"]["copied"]
    clear = margin["high"] < 0 or margin["low"] > 0
    verdict = (
        f"{difference(margin['margin'])} than the transformer"
        if clear
        else "about as much as the transformer"
    )
    against = f"{difference(ours['copied_bits'] - models['kuramoto']['copied_bits'])} than the Kuramoto layer"
    return (
        f"On the {percent(depth['copied_share'])} of characters that continue a match of {depth['from']} or more, "
        f"the FSN pays {bits(ours['copied_bits'])} bits: {verdict} "
        f"(95 % interval {margin['low']:+.3f} to {margin['high']:+.3f}), and {against}."
    ).replace("-", "−")


def overall_and_copied(findings: dict[str, Any]) -> str:
    """Is the FSN's standing against the transformer better on copied characters than overall?"""
    models = {m["key"]: m for m in findings["models"]}
    margin = findings["margins"]["fsn"]
    shallow, deep = margin["bins"]["margin"][0], margin["copied"]["margin"]
    if models["fsn"]["copied_bits"] is None or shallow != shallow:
        return ""
    side = "better" if deep < shallow else "worse"
    return (
        f"Against the transformer it stands {side} on copied characters ({deep:+.3f} bits) than on "
        f"those with hardly a match ({shallow:+.3f})."
    ).replace("-", "−")


def attention(findings: dict[str, Any], act: str) -> str:
    """Where an FSN looks when it is said again: at the same place of the first saying, or the place after it."""
    layers = findings["snippets"][act]["models"]["fsn"]["layers"]
    number, top = max(enumerate(layers, 1), key=lambda item: max(item[1]["place"], item[1]["after"]))
    strongest = max(top["place"], top["after"])
    if strongest < 2 * top["chance"]:
        return (
            "no layer of the FSN looks at the same place in the first saying much more than chance would have it: "
            "it has not learnt to find the place yet"
        )
    where = (
        "the same place in the first saying" if top["place"] >= top["after"] else "the place just after it"
    )
    share, chance = percent(strongest), percent(top["chance"])
    layer = f"layer {number} of the FSN" if len(layers) > 1 else "the FSN"
    return f"{layer} puts {share} of its attention on {where} (even attention would put {chance} there)"


def kernel(findings: dict[str, Any]) -> str:
    """The two fields of the text's FSN against each other, and the signs of its higher harmonics."""
    k = findings["kernels"]["text"]
    present, successor = ([layer[0][0] for layer in field] for field in k["mean"])
    stronger = sum(abs(s) > abs(p) for p, s in zip(present, successor, strict=True))
    layers = k["layers"]
    where = "every layer" if stronger == layers else f"{stronger} of {layers} layers"
    flips = sum(pair[0] < 0 for field in k["mean"] for layer in field for pair in layer[1:])
    higher = 2 * layers * (k["harmonics"] - 1)
    return (
        f"In {where} of the text's FSN the first harmonic pulls harder towards the successor than towards the "
        "attended token. "
        f"Of the {higher} mean coefficients of higher harmonics {flips} are negative, that is, they repel."
    )


def facts(about: dict[str, Any]) -> str:
    return escape(
        f"{about['corpus']}: {about['characters']:,} characters, {about['symbols']} symbols, "
        f"sha256 {about['sha256'][:12]}. {about['steps']:,} steps of {about['batch']} windows of "
        f"{about['length']} characters, AdamW {about['lr']:g}, seed {about['seed']}. "
        f"fsn {about['fsn']}, PyTorch {about['torch']}, Python {about['python']}, {about['machine']}, "
        f"{about['date']}."
    )


CALLED = {"fsn": "the FSN", "transformer": "the transformer", "kuramoto": "Kuramoto attention"}


def ends(grown: dict[str, Any]) -> str:
    """Where the full-size models end, and when the FSN has passed the transformer's end."""
    bits = {m["key"]: m["bits"] for m in grown["models"]}
    others = [f"{CALLED[key]} at {bits[key]:.4f}" for key in ("transformer", "kuramoto") if key in bits]
    text = f"The FSN ends at {bits['fsn']:.4f} bits per character, {listed(others)}. "
    epoch, ratio = grown["crossing"]["epoch"], grown["crossing"]["ratio"]
    if epoch is None:
        return text + "The FSN does not get as low as the transformer."
    return f"{text}The FSN is as low as the transformer's end after epoch {epoch}, in {percent(ratio)} of its time."


PLACES = {0: "the same place of the first saying", 1: "what came next there"}


def where(grown: dict[str, Any]) -> str:
    """Where each model looks, most of all, when the sentence comes again."""
    looks = grown["snippet"]["looks"]
    told = []
    for key, found in looks["models"].items():
        weight = max(found["weights"])
        offset = looks["offsets"][found["weights"].index(weight)]
        place = PLACES.get(offset, f"the place {abs(offset)} {'before' if offset < 0 else 'after'} that")
        told.append(f"{CALLED[key]} puts {percent(weight)} of layer {found['layer']}'s attention on {place}")
    return f"When the sentence comes again, {listed(told)}."


def cut(grown: dict[str, Any]) -> str:
    """What the sentence costs the second time, with and without the last layer's successor field."""
    shown = grown["snippet"]["models"]
    whole, without = shown["fsn"], shown["cut"]
    others = [
        f"{CALLED[key]} {shown[key]['second']:.2f} instead of {shown[key]['first']:.2f}"
        for key in ("transformer", "kuramoto")
        if key in shown
    ]
    text = (
        f"The second time a character costs the FSN {whole['second']:.2f} bits instead of {whole['first']:.2f}, "
        f"{listed(others)}. Without the field it is {without['second']:.2f} after {without['first']:.2f}: "
    )
    if without["first"] - without["second"] < 0.1 * (whole["first"] - whole["second"]):
        return text + "the model still knows its language, but it can no longer copy."
    kept = (without["first"] - without["second"]) / max(whole["first"] - whole["second"], 1e-9)
    return text + f"{percent(min(max(kept, 0.0), 1.0))} of what saying it twice is worth remains."
