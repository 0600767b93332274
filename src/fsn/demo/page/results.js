// Right answers of single layers, loss curves, loss by copy depth, coupling functions.
(() => {
  const { recall, models, depth, margins } = reportData, shade = (key) => `var(--${key})`;

  // -- recall
  Charts.line(document.getElementById("recall-curves"), {
    title: "Right answers while training", height: 300,
    series: [
      ...recall.models.map((m) => ({ name: m.name, color: m.key.endsWith("kvshift") ? "#c8a21f" : shade(m.key), width: 2.4, points: m.curve.map(([step, share]) => [step, 100 * share]) })),
      { name: "one of the values", color: "var(--faint)", width: 1.4, dash: "2 4", hover: false, points: [[0, 100 / recall.pairs], [recall.steps, 100 / recall.pairs]] },
    ],
    x: { label: "steps", min: 0, format: (v) => `step ${Charts.number(v, 0)}` },
    y: { label: "right answers, %", min: 0, max: 100, digits: 1 },
  });

  // -- the text
  const chart = Charts.line(document.getElementById("curves"), curveSpec("steps"));
  Charts.choice(document.getElementById("curve-axis"), [["steps", "per step"], ["seconds", "per second"]], "steps", (axis) => chart.update(curveSpec(axis)));

  function curveSpec(axis) {
    const bySteps = axis === "steps";
    // Seconds of a training point: its share of the run's own time, which is even enough on one core.
    const seconds = (m, step) => (step / m.valid[m.valid.length - 1][0]) * m.valid[m.valid.length - 1][2];
    const series = models.flatMap((m) => [
      { name: `${m.name}, training`, color: shade(m.key), width: 1.1, opacity: 0.45, legend: false, hover: false,
        points: m.train.map(([step, bits]) => [bySteps ? step : seconds(m, step), bits]) },
      { name: m.name, color: shade(m.key), width: 2.6, dots: true,
        points: m.valid.map(([step, bits, s]) => [bySteps ? step : s, bits]) },
    ]);
    const top = Math.max(...models.flatMap((m) => m.valid.map((v) => v[1])));
    return {
      title: "Loss while training", height: 340, series,
      x: { label: bySteps ? "steps" : "seconds on one core", min: 0, format: (v) => (bySteps ? `step ${Charts.number(v, 0)}` : `${Charts.number(v, 0)} s`) },
      y: { label: "bits per character", max: Math.min(7, top + 0.6) },
    };
  }

  const note = document.getElementById("depth-note");
  const about = {
    loss: "Bits per character on the same validation characters. The two deepest bins are rare and also draw on windows chosen for their long repeats.",
    margin: "Bits against the transformer on the very same characters: below zero is better than the transformer. Thin lines are 95 % intervals over windows.",
  };
  const bars = Charts.bars(document.getElementById("depths"), depthSpec("loss"));
  Charts.choice(document.getElementById("depth-view"), [["loss", "loss"], ["margin", "against the transformer"]], "loss", (view) => bars.update(depthSpec(view)));

  function depthSpec(view) {
    note.textContent = about[view];
    const series = view === "loss"
      ? models.map((m) => ({ name: m.name, color: shade(m.key), values: m.depth }))
      : models.filter((m) => margins[m.key]).map((m) => ({ name: m.name, color: shade(m.key), values: margins[m.key].margin, low: margins[m.key].low, high: margins[m.key].high }));
    return {
      title: "Loss by copy depth", height: 340, series, groups: depth.bins,
      notes: depth.tokens.map((n) => Charts.number(n, 0)), titles: depth.bins.map((b, i) => `copy depth ${b} · ${Charts.number(depth.tokens[i], 0)} characters`),
      x: { label: "copy depth, and number of characters" }, y: { label: view === "loss" ? "bits per character" : "bits against the transformer", zero: true },
    };
  }

  Kernel.draw(document.getElementById("coupling"), reportData.kernel);
})();
