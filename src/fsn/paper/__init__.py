"""The paper's tables, figures and claims, each beside what was measured here.

    bench = Bench.open([Path("runs"), Path("results")])
    result = item_named("main").compute(bench)
    verdicts = [(claim, judge(claim, bench)) for claim in CLAIMS]

- :mod:`~fsn.paper.needs`: which runs a statement rests on
- :mod:`~fsn.paper.bench`: those that are there and how to make the others, the texts, what was measured on them
- :mod:`~fsn.paper.rows`: the paper's numbers, rows, items, claims and verdicts
- :mod:`~fsn.paper.sections`: the paper section by section, as items and claims
- :mod:`~fsn.paper.writing`, :mod:`~fsn.paper.page`: CSV, figures, Markdown, one HTML page
- :mod:`~fsn.paper.archive`: runs kept for good in ``results/``
"""
