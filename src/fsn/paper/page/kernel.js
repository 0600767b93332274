// The kernel as coupling functions:  f(Δ) = Σ_n [Re w_n sin nΔ + Im w_n cos nΔ], less Σ_n Im w_n in the co-rotating frame.
(() => {
  const kernel = reportData.live.kernel;
  if (!kernel) return;
  const POINTS = 181, get = (id) => document.getElementById(id);
  const deltas = Array.from({ length: POINTS }, (_, i) => -Math.PI + (2 * Math.PI * i) / (POINTS - 1));
  const layer = get("kernel-layer"), training = get("kernel-training"), angle = get("kernel-angle");
  layer.max = kernel.layers;
  layer.value = 1;
  get("kernel-harmonics").innerHTML = Array.from({ length: kernel.harmonics }, (_, i) => `<label><input type="checkbox" data-harmonic="${i + 1}" checked> n = ${i + 1}</label>`).join("");
  const boxes = [...document.querySelectorAll("#kernel-harmonics input")];
  get("kernel-note").textContent = `${kernel.run}, best weights of ${kernel.epochs} epochs, ${kernel.frame} frame.`;

  // Coefficients as they were: at the start, after every epoch that was kept, at the best epoch.
  training.max = kernel.steps.length - 1;
  training.value = kernel.steps.length - 1;
  const weights = (field, l, step) => kernel.steps[step].weights[field][l];

  function f(w, on, turn, delta) {
    let sum = 0;
    for (let n = 1; n <= w.length; n++) {
      if (!on[n - 1]) continue;
      const [re, im] = w[n - 1];
      sum += re * Math.sin(n * delta) + turn * im * (Math.cos(n * delta) - (kernel.frame === "co-rotating" ? 1 : 0));
    }
    return sum;
  }

  // θ_t' = f(θ_u − θ_t), so Δ' = −f(Δ): Δ rests where f crosses zero upwards.
  function rests(curve) {
    const found = [];
    for (let i = 0; i + 1 < curve.length; i++) {
      const [a, b] = [curve[i][1], curve[i + 1][1]];
      if (a < 0 && b >= 0) found.push({ x: curve[i][0] + ((curve[i + 1][0] - curve[i][0]) * -a) / (b - a), y: 0 });
    }
    return found;
  }

  // One scale for every position of the sliders, so that what moves is the function.
  let reach = 1.05;
  for (const part of kernel.steps.keys()) for (const field of [0, 1]) for (let l = 0; l < kernel.layers; l++) {
    const all = weights(field, l, part).reduce((sum, [re, im]) => sum + Math.abs(re) + Math.abs(im), 0);
    reach = Math.max(reach, 1.02 * all);
  }

  function spec(field, color) {
    const w = weights(field, layer.value - 1, Number(training.value)), on = boxes.map((box) => box.checked);
    const curve = deltas.map((d) => [d, f(w, on, Number(angle.value), d)]);
    return {
      title: "coupling function", height: 280,
      series: [
        { name: "sin Δ", color: "var(--faint)", width: 1.6, dash: "5 4", points: deltas.map((d) => [d, Math.sin(d)]) },
        { name: "this layer", color, width: 3, points: curve },
      ],
      marks: rests(curve).map((m) => ({ ...m, color })),
      x: { label: "phase difference Δ", zero: true, ticks: [[-Math.PI, "−π"], [-Math.PI / 2, "−π/2"], [0, "0"], [Math.PI / 2, "π/2"], [Math.PI, "π"]], format: (v) => `Δ = ${Charts.number(v / Math.PI, 2)} π` },
      y: { label: "pull f(Δ)", min: -reach, max: reach },
    };
  }

  const charts = [[0, "kernel-present", "var(--kuramoto)"], [1, "kernel-successor", "var(--fsn)"]].map(([field, id, color]) => {
    const chart = Charts.line(get(id), spec(field, color));
    return () => chart.update(spec(field, color));
  });
  function update() {
    get("kernel-layer-value").textContent = `${layer.value} of ${kernel.layers}`;
    get("kernel-training-value").textContent = kernel.steps[training.value].label;
    get("kernel-angle-value").textContent = Charts.number(Number(angle.value), 1);
    for (const draw of charts) draw();
  }
  for (const control of [layer, training, angle, ...boxes]) control.oninput = update;
  update();
})();
