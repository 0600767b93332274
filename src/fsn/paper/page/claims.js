// Which claims are shown: all of them, or those of one verdict.
(() => {
  const rows = [...document.querySelectorAll("table.claims tbody tr")], shown = document.getElementById("claims-count");
  const count = (kind) => rows.filter((row) => kind === "all" || row.dataset.verdict === kind).length;
  function show(kind) {
    for (const row of rows) row.hidden = kind !== "all" && row.dataset.verdict !== kind;
    shown.textContent = `${count(kind)} of ${rows.length}`;
  }
  const options = [["all", "all"], ["holds", "holds"], ["fails", "fails"], ["open", "not run yet"]].map(([kind, word]) => [kind, `${word} (${count(kind)})`]);
  Charts.choice(document.getElementById("claims-filter"), options, "all", show);
  show("all");
})();
