"""The page that the demo writes: the findings, told."""

from __future__ import annotations

import os
from pathlib import Path
from string import Template
from typing import Any

from fsn.demo import words
from fsn.io import write_text_atomic
from fsn.report import asset, escape, page, table

PAGE = "fsn.demo.page"
SCRIPTS = ("toy.js", "results.js", "strips.js", "attention.js", "kernel.js", "grown.js")
EXAMPLE = "self.name"
"""What stands in front of the example's last letter, and stood in front of one before."""


def build_page(findings: dict[str, Any]) -> str:
    """The whole page as text."""
    about, models = findings["about"], findings["models"]
    told = {
        "corpus": escape(about["corpus"]),
        "trained": escape(words.duration(about["seconds"])),
        "steps": f"{about['steps']:,}",
        "table": results_table(findings),
        "ranking": escape(words.ranking(models, about["steps"])),
        "speed": escape(words.speed(models)),
        "example": str(len(EXAMPLE)),
        "example_text": escape(EXAMPLE),
        "copying": escape(words.copying(findings)),
        "contrast": escape(words.overall_and_copied(findings)),
        "exercise": escape(words.exercise(findings)),
        "exercise_steps": f"{findings['exercise']['steps']:,}",
        "layers": number(findings["kernels"]["text"]["layers"]),
        "letters": str(findings["exercise"]["letters"]),
        "attention_exercise": escape(words.attention(findings, "exercise")),
        "attention_text": escape(words.attention(findings, "text")),
        "kernel": escape(words.kernel(findings)),
        "k": str(len(findings["kernels"]["text"]["coordinates"][0][0])),
        "prompt": escape(findings["prompt"].strip() or "⏎"),
        "temperature": f"{about['temperature']:g}",
        "samples": "".join(sample_figure(model, findings["prompt"]) for model in models),
        "grown": grown_section(findings.get("grown")),
        "folder": escape(about["folder"]),
        "facts": words.facts(about),
    }
    return page(
        "Attention as frustrated synchronization: a demo",
        Template(asset(PAGE, "body.html")).substitute(told),
        data=findings,
        styles=[asset(PAGE, "demo.css")],
        scripts=[asset(PAGE, name) for name in SCRIPTS],
        description="Three small models trained on one computer: an FSN, the Kuramoto layer, a transformer.",
    )


def grown_section(found: dict[str, Any] | None) -> str:
    """The models at full size, or nothing where there are none."""
    if found is None:
        return ""
    ends = words.listed([f"{m['paper']:.3f} ({m['name']})" for m in found["models"] if m["paper"]])
    told = {
        "count": number(len(found["models"])),
        "text": escape(found["text"]),
        "pace": ""
        if found["even"]
        else "Epochs that shared the GPU with other work count as a run's median epoch.",
        "paper": escape(ends),
        "ends": escape(words.ends(found)),
        "cut": escape(words.cut(found)),
        "where": escape(words.where(found)),
    }
    return Template(asset(PAGE, "grown.html")).substitute(told)


def number(n: int) -> str:
    """Small numbers as words."""
    return ("no", "one", "two", "three", "four", "five", "six")[n] if n < 7 else str(n)


def write_page(findings: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the page in one step and return where it is."""
    write_text_atomic(path, build_page(findings))
    return Path(path)


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
        about = f'<span class="sub">{escape(model["about"])}</span>'
        cells = [f'<i class="key" style="{shade}"></i>{escape(model["name"])}{about}']
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
    return table(["", *(heading for _, heading, _, _ in columns)], rows)


def sample_figure(model: dict[str, Any], prompt: str) -> str:
    return (
        f'<figure style="--shade:var(--{model["key"]})"><figcaption>{escape(model["name"])}</figcaption>'
        f"<pre><b>{escape(prompt)}</b>{escape(model['sample'].rstrip())}</pre></figure>"
    )
