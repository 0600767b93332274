// The models at full size: loss by epoch, a repeated sentence, and where they look the second time.
(() => {
  const full = reportData.full_size;
  if (!full) return;
  const shade = (key) => `var(--${key})`;
  const target = full.models.find((m) => m.key === "transformer").bits, epochs = Math.max(...full.models.map((m) => m.curve.length));
  Charts.line(document.getElementById("full-curves"), {
    title: "Validation loss by epoch", height: 320,
    series: [
      ...full.models.map((m) => ({ name: m.name, color: shade(m.key), width: 2.6, points: m.curve.map(([, bits], i) => [i + 1, bits]) })),
      { name: "the transformer's end", color: "var(--faint)", width: 1.4, dash: "5 4", hover: false, points: [[0, target], [epochs, target]] },
    ],
    x: { label: `epochs on one ${full.device}`, min: 0, format: (v) => `epoch ${v}` },
    y: { label: "bits per character", max: 1.72, digits: 4 },
  });
  Strips.draw(document.getElementById("full-strips"), full.snippet, [
    ["transformer", "transformer", shade("transformer")],
    ...(full.snippet.models.kuramoto ? [["kuramoto", "Kuramoto", shade("kuramoto")]] : []),
    ...(full.snippet.models["transformer-kvshift"] ? [["transformer-kvshift", "transformer with KV shift", shade("transformer-kvshift")]] : []),
    ["fsn", "FSN", shade("fsn")],
    ["cut", "FSN without its last successor field", shade("fsn")],
  ]);
  // Of every model the layer that looks back most.
  const best = (key) => full.snippet.models[key].looks.reduce((top, weights, layer) => (Math.max(...weights) > Math.max(...top.weights) ? { layer, weights } : top), { layer: 0, weights: [0] });
  const place = (offset) => (offset === 0 ? "same place" : offset === 1 ? "next" : `${offset < 0 ? "−" : "+"}${Math.abs(offset)}`);
  Charts.bars(document.getElementById("full-looks"), {
    title: "Attention by offset from the same place", height: 280, groups: full.snippet.models.fsn.offsets.map(place),
    series: full.models.map((m) => ({ name: `${m.name}, layer ${best(m.key).layer + 1}`, color: shade(m.key), values: best(m.key).weights })),
    y: { label: "mean attention", zero: true, digits: 3 },
  });
})();
