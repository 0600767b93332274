// Which claims are shown: those with a verdict, all, or those of one verdict.
(() => {
  const rows = [...document.querySelectorAll("table.claims tbody tr")], shown = document.getElementById("claims-count");
  const fits = (row, kind) => kind === "all" || (kind === "judged" ? row.dataset.verdict !== "not-run-yet" : row.dataset.verdict === kind);
  const count = (kind) => rows.filter((row) => fits(row, kind)).length;
  function show(kind) {
    for (const row of rows) row.hidden = !fits(row, kind);
    shown.textContent = `${count(kind)} of ${rows.length}`;
  }
  const words = ["holds", "fails", "holds so far", "fails so far", "no such case", "open", "not run yet"];
  const kinds = [["judged", "with a verdict"], ...words.map((word) => [word.replaceAll(" ", "-"), word]), ["all", "all"]];
  const options = kinds.map(([kind, word]) => [kind, `${word} (${count(kind)})`]);
  Charts.choice(document.getElementById("claims-filter"), options, "judged", show);
  show("judged");
})();
