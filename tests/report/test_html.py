"""Pages that stand alone: data that cannot break out, tables, colours of the figures."""

from __future__ import annotations

import json
import re

from fsn.measure.style import COLOURS
from fsn.report import embed, escape, page, table


def data_of(html: str) -> object:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_data_arrives_as_it_was_sent() -> None:
    data = {"text": '</script><b>&amp; \u2028 π \\ "', "list": (1, 2.5, None), "deep": {"a": [True]}}
    html = page("title", "<p>body</p>", data=data)
    assert data_of(html) == {"text": data["text"], "list": [1, 2.5, None], "deep": {"a": [True]}}
    assert html.count("</script>") == 2, "no text of the data ends a script element"


def test_numbers_that_are_not_finite_become_null() -> None:
    assert json.loads(embed({"a": [float("nan"), float("inf"), 1.0]})) == {"a": [None, None, 1.0]}


def test_the_page_carries_everything() -> None:
    html = page(
        "a < b", "<p>body</p>", styles=["p{color:red}"], scripts=["console.log(1)"], description='say "hi"'
    )
    assert "<title>a &lt; b</title>" in html and "say &quot;hi&quot;" in html
    assert "p{color:red}" in html and "console.log(1)" in html and "const Charts" in html
    assert all(f"--{name}:{shade}" in html for name, shade in COLOURS.items())
    assert "prefers-color-scheme: dark" in html
    assert "http://" not in html and "https://" not in html


def test_table_and_escape() -> None:
    text = table(["", "bits"], [["<b>FSN</b>", "1.5"]], "caption")
    assert '<th scope="row"><b>FSN</b></th><td>1.5</td>' in text and "<caption>caption</caption>" in text
    assert escape("<\"'&>") == "&lt;&quot;&#x27;&amp;&gt;"
