// The trained kernel as coupling functions:  f(Δ) = Σ_n [Re w_n sin nΔ + Im w_n cos nΔ]  (− Σ_n Im w_n in the co-rotating frame).
(() => {
  const { kernels, about } = reportData, POINTS = 121;
  let kernel, reach;
  const deltas = Array.from({ length: POINTS }, (_, i) => -Math.PI + (2 * Math.PI * i) / (POINTS - 1));
  const layer = document.getElementById("kernel-layer"), harmonics = document.getElementById("kernel-harmonics");

  function f(coefficients, count, delta) {
    let sum = 0;
    for (let n = 1; n <= count; n++) {
      const [re, im] = coefficients[n - 1];
      sum += re * Math.sin(n * delta) + im * (Math.cos(n * delta) - (kernel.frame === "co-rotating" ? 1 : 0));
    }
    return sum;
  }

  // Δ comes to rest where f crosses zero upwards: θ_t' = f(θ_u − θ_t), so Δ' = −f(Δ).
  function rests(curve) {
    const found = [], n = curve.length - 1;
    for (let i = 0; i < n; i++) {
      const [a, b] = [curve[i][1], curve[(i + 1) % n][1]];
      if (a < 0 && b >= 0) found.push({ x: curve[i][0] + ((curve[i + 1][0] - curve[i][0]) * -a) / (b - a), y: 0 });
    }
    return found;
  }

  function open(act) {
    kernel = kernels[act];
    layer.max = kernel.layers;
    layer.value = kernel.layers;
    layer.disabled = kernel.layers < 2;
    harmonics.max = kernel.harmonics;
    harmonics.value = kernel.harmonics;
    // One scale for every position of the sliders, so that what moves is the function.
    reach = 1.05;
    for (const field of kernel.mean) for (const w of field) for (let n = 1; n <= kernel.harmonics; n++) for (const d of deltas) reach = Math.max(reach, 1.1 * Math.abs(f(w, n, d)));
  }

  function spec(field, color) {
    const l = layer.value - 1, n = Number(harmonics.value), w = kernel.mean[field][l];
    const curve = deltas.map((d) => [d, f(w, n, d)]);
    const each = kernel.coordinates[field][l].map((c) => ({ name: "oscillator", color, width: 0.7, opacity: 0.16, legend: false, hover: false, points: deltas.map((d) => [d, f(c, n, d)]) }));
    return {
      title: "coupling function", height: 290,
      series: [...each, { name: "sin Δ", color: "var(--faint)", width: 1.6, dash: "5 4", points: deltas.map((d) => [d, Math.sin(d)]) }, { name: "learnt", color, width: 3, points: curve }],
      marks: rests(curve).map((m) => ({ ...m, color })),
      x: { label: "phase difference Δ", zero: true, ticks: [[-Math.PI, "−π"], [-Math.PI / 2, "−π/2"], [0, "0"], [Math.PI / 2, "π/2"], [Math.PI, "π"]], format: (v) => `Δ = ${Charts.number(v / Math.PI, 2)} π` },
      y: { label: "pull f(Δ)", min: -reach, max: reach },
    };
  }

  open("text");
  const charts = [[0, "kernel-present", "var(--kuramoto)"], [1, "kernel-successor", "var(--fsn)"]].map(([field, id, color]) => {
    const chart = Charts.line(document.getElementById(id), spec(field, color));
    return () => chart.update(spec(field, color));
  });
  function update() {
    document.getElementById("kernel-layer-value").textContent = `${layer.value} of ${kernel.layers}`;
    document.getElementById("kernel-harmonics-value").textContent = `${harmonics.value} of ${kernel.harmonics}`;
    for (const draw of charts) draw();
  }
  layer.oninput = harmonics.oninput = update;
  Charts.choice(document.getElementById("kernel-act"), [["text", about.corpus], ["exercise", "letters"]], "text", (act) => { open(act); update(); });
  update();
})();
