"""The page that the demo writes: fixed words, and what was measured as charts and tables."""

from __future__ import annotations

from string import Template
from typing import Any

from ...report import asset, escape, page, table

SCRIPTS = ("toy.js", "results.js", "strips.js", "attention.js", "full_size.js")
EXAMPLE = "self.name"
"""What stands in front of the example's last letter, and stood in front of one before."""


def build_page(findings: dict[str, Any]) -> str:
    """The whole page as text."""
    about, models = findings["about"], findings["models"]
    minutes, seconds = divmod(round(about["seconds"]), 60)
    told = {
        "corpus": escape(about["corpus"]),
        "trained": f"{minutes} min {seconds} s" if minutes else f"{seconds} s",
        "steps": f"{about['steps']:,}",
        "table": results_table(findings),
        "example": str(len(EXAMPLE)),
        "example_text": escape(EXAMPLE),
        **recall_words(findings["recall"]),
        "layers": str(findings["kernel"]["layers"]),
        "k": str(len(findings["kernel"]["coordinates"][0][0])),
        "prompt": escape(findings["prompt"].strip() or "⏎"),
        "temperature": f"{about['temperature']:g}",
        "samples": "".join(sample_figure(model, findings["prompt"]) for model in models),
        "full_size": full_size_section(findings["full_size"]),
        "folder": escape(about["folder"]),
        "facts": escape(about["facts"]),
    }
    return page(
        "Attention as frustrated synchronization: a demo",
        Template(asset(__package__, "body.html")).substitute(told),
        data=findings,
        styles=[asset(__package__, "demo.css")],
        scripts=[asset("fsn.report", "kernel.js"), *(asset(__package__, name) for name in SCRIPTS)],
        description="Three small models trained on one computer: an FSN, the Kuramoto layer, a transformer.",
    )


def recall_words(recall: dict[str, Any]) -> dict[str, str]:
    """What the section on recall says, from what was measured."""
    shares = [f"{escape(model['name'])} {100 * model['accuracy']:.1f} %" for model in recall["models"]]
    return {
        "pairs": str(recall["pairs"]),
        "recall_symbols": str(recall["symbols"]),
        "recall_length": str(recall["length"]),
        "recall_found": f"Right answers after {recall['steps']:,} steps: {', '.join(shares)}. To know it is one of "
        f"the {recall['pairs']} values, and to guess which, gives {100 / recall['pairs']:.0f} %.",
    }


def full_size_section(found: dict[str, Any] | None) -> str:
    """The models at full size and where they look, or nothing where there are none."""
    if found is None:
        return ""
    columns = ("bits per character", "validated in", "as low as the transformer's end")
    rows = []
    for model in found["models"]:
        reached = (
            f"epoch {model['epoch']}, {100 * model['share']:.0f} % of its time" if model["epoch"] else "—"
        )
        rows.append([named(model), f"{model['bits']:.4f}", escape(model["validated_in"]), reached])
    told = {"text": escape(found["text"]), "table": table(["", *columns], rows, kind="stacked")}
    return Template(asset(__package__, "full_size.html")).substitute(told)


def named(model: dict[str, Any]) -> str:
    """A model's name in a table, with its colour and what it does."""
    about = f'<span class="sub">{escape(model["about"])}</span>'
    return f'<i class="key" style="--shade:var(--{model["key"]})"></i>{escape(model["name"])}{about}'


def results_table(findings: dict[str, Any]) -> str:
    """The models with their sizes, losses and speeds; the best of each column is bold."""
    models = findings["models"]
    columns = (
        ("parameters", "parameters", "{:,.0f}", None),
        ("valid_bits", "bits per character", "{:.3f}", min),
        ("copied_bits", f"on copies (depth ≥ {findings['depth']['from']})", "{:.3f}", min),
        ("tokens_per_s", "characters a second", "{:,.0f}", max),
    )
    rows = []
    for model in models:
        shade = f"--shade:var(--{model['key']})"
        cells = [named(model)]
        for field, _, form, pick in columns:
            known = [m[field] for m in models if m[field] is not None]
            if model[field] is None:
                cells.append("—")
                continue
            text = form.format(model[field])
            best = pick is not None and model[field] == pick(known)
            share = 100 * model[field] / max(known)
            bar = f'<span class="row-bar" style="{shade};width:{share:.0f}%"></span>' if pick else ""
            cells.append(f'<span class="{"best" if best else ""}">{text}</span>{bar}')
        rows.append(cells)
    return table(["", *(heading for _, heading, _, _ in columns)], rows, kind="stacked")


def sample_figure(model: dict[str, Any], prompt: str) -> str:
    return (
        f'<figure style="--shade:var(--{model["key"]})"><figcaption>{escape(model["name"])}</figcaption>'
        f"<pre><b>{escape(prompt)}</b>{escape(model['sample'].rstrip())}</pre></figure>"
    )
