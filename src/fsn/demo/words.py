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


def difference(value: float) -> str:
    return f"{abs(value):.3f} bits {'less' if value < 0 else 'more'}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


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
        f"On the {depth['copied_share']:.0%} of characters that continue a match of {depth['from']} or more, "
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


def second_time(findings: dict[str, Any]) -> str:
    """What the line costs when it comes again."""
    shown = findings["snippet"]["models"]
    names = {m["key"]: name(m) for m in findings["models"]}
    order = sorted(shown, key=lambda key: shown[key]["second"])
    parts = [f"{names[key]} {shown[key]['first']:.2f} and {shown[key]['second']:.2f}" for key in order]
    return (
        "Bits per character the first time and the second: "
        + listed(parts)
        + f". The second time is cheapest for {names[order[0]]}."
    )


def attention(findings: dict[str, Any]) -> str:
    """Where the FSN looks in the second copy: at the same place of the first, or at the place after it."""
    layers = findings["snippet"]["models"]["fsn"]["layers"]
    number, top = max(enumerate(layers, 1), key=lambda item: max(item[1]["place"], item[1]["after"]))
    strongest = max(top["place"], top["after"])
    if strongest < 2 * top["chance"]:
        return (
            "So far no layer of this FSN looks at the first copy much more than chance would have it: "
            "it has not learnt to find the place yet. A longer run may show more."
        )
    where = "the same place in the first copy" if top["place"] >= top["after"] else "the place just after it"
    share, chance = f"{strongest:.0%}", f"{top['chance']:.0%}"
    return (
        f"In the second copy, layer {number} of the FSN puts {share} of its attention on {where} "
        f"(even attention would put {chance} there)."
    )


def kernel(findings: dict[str, Any]) -> str:
    """How far training moved the weights of the two fields, harmonic by harmonic."""
    k = findings["kernel"]
    present, successor = ([layer[0][0] for layer in field] for field in k["mean"])
    stronger = sum(abs(s) > abs(p) for p, s in zip(present, successor, strict=True))
    layers = k["layers"]
    where = "every layer" if stronger == layers else f"{stronger} of {layers} layers"
    flips = sum(pair[0] < 0 for field in k["mean"] for layer in field for pair in layer[1:])
    higher = 2 * layers * (k["harmonics"] - 1)
    return (
        f"The first harmonic pulls harder towards the successor than towards the attended token in {where}. "
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
