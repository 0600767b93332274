// The models at full size: loss against time, a sentence said twice, and where they look the second time.
(() => {
  const { grown } = reportData;
  if (!grown) return;
  const shade = (key) => `var(--${key})`;
  const target = grown.models.find((m) => m.key === "transformer").bits, end = Math.max(...grown.models.map((m) => m.curve[m.curve.length - 1][0]));
  Charts.line(document.getElementById("grown-curves"), {
    title: "Validation loss against time", height: 320,
    series: [
      ...grown.models.map((m) => ({ name: m.name, color: shade(m.key), width: 2.6, points: m.curve })),
      { name: "the transformer's end", color: "var(--faint)", width: 1.4, dash: "5 4", hover: false, points: [[0, target], [end, target]] },
    ],
    x: { label: `minutes on one ${grown.device}`, min: 0, format: (v) => `${Charts.number(v, 1)} min` },
    y: { label: "bits per character", max: 1.72, digits: 4 },
  });
  Strips.draw(document.getElementById("grown-strips"), grown.snippet, [
    ["transformer", "transformer", shade("transformer")],
    ...(grown.snippet.models.kuramoto ? [["kuramoto", "Kuramoto", shade("kuramoto")]] : []),
    ["fsn", "FSN", shade("fsn")],
    ["cut", "FSN without its last successor field", shade("fsn")],
  ]);
  const { offsets, models } = grown.snippet.looks;
  const place = (offset) => (offset === 0 ? "same place" : offset === 1 ? "next" : `${offset < 0 ? "−" : "+"}${Math.abs(offset)}`);
  Charts.bars(document.getElementById("grown-looks"), {
    title: "Attention by offset from the same place", height: 280, groups: offsets.map(place),
    series: grown.models.map((m) => ({ name: `${m.name}, layer ${models[m.key].layer}`, color: shade(m.key), values: models[m.key].weights })),
    y: { label: "mean attention", zero: true, digits: 3 },
  });
})();
