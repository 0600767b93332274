// Coupling functions to play with:  f(Δ) = Σ_n [Re w_n sin nΔ + Im w_n cos nΔ], less Σ_n Im w_n in the co-rotating frame.
// Kernel.draw(element, kernels): one kernel, or [[name, kernel], …] to choose from, each as fsn.measure.coupling_data makes it:
// {frame, layers, harmonics, steps: [{label, weights[field][layer][harmonic] = [re, im]}], coordinates?[field][layer][k][harmonic]}
const Kernel = (() => {
  const POINTS = 181, { escapeText } = Charts;
  const deltas = Array.from({ length: POINTS }, (_, i) => -Math.PI + (2 * Math.PI * i) / (POINTS - 1));
  const TICKS = [[-Math.PI, "−π"], [-Math.PI / 2, "−π/2"], [0, "0"], [Math.PI / 2, "π/2"], [Math.PI, "π"]];
  const slider = (id, label, min, max, step) => `<label>${label} <input type="range" id="kernel-${id}" min="${min}" max="${max}" step="${step}"><output id="kernel-${id}-value"></output></label>`;

  // θ_t' = f(θ_u − θ_t), so Δ' = −f(Δ): Δ rests where f crosses zero upwards.
  function rests(curve) {
    const found = [];
    for (let i = 0; i + 1 < curve.length; i++) {
      const [a, b] = [curve[i][1], curve[i + 1][1]];
      if (a < 0 && b >= 0) found.push({ x: curve[i][0] + ((curve[i + 1][0] - curve[i][0]) * -a) / (b - a), y: 0 });
    }
    return found;
  }

  function draw(element, kernels) {
    const named = Array.isArray(kernels) ? kernels : [["", kernels]];
    element.innerHTML = `<div class="controls"><span id="kernel-choice"></span>${slider("layer", "layer", 1, 1, 1)}${slider("training", "training", 0, 0, 1)}${slider("angle", "frustration angles ×", 0, 5, 0.1)}<span class="checks" id="kernel-harmonics"></span></div>
      <div class="pair"><div><h3>Towards the attended token</h3><div class="chart" id="kernel-present"></div></div><div><h3>Towards its successor</h3><div class="chart" id="kernel-successor"></div></div></div>`;
    const get = (id) => element.querySelector(`#kernel-${id}`), value = (id) => Number(get(id).value);
    let kernel, boxes, reach, charts;

    function f(w, delta) {
      let sum = 0;
      for (let n = 1; n <= w.length; n++) {
        if (!boxes[n - 1].checked) continue;
        const [re, im] = w[n - 1];
        sum += re * Math.sin(n * delta) + value("angle") * im * (Math.cos(n * delta) - (kernel.frame === "co-rotating" ? 1 : 0));
      }
      return sum;
    }

    function spec(field, color) {
      const trained = value("training") === kernel.steps.length - 1, l = value("layer") - 1;
      const curve = (w) => deltas.map((d) => [d, f(w, d)]), mean = curve(kernel.steps[value("training")].weights[field][l]);
      const each = trained && kernel.coordinates ? kernel.coordinates[field][l] : [];
      return {
        title: `coupling function ${field ? "towards the successor" : "towards the attended token"}, layer ${l + 1}`, height: 280,
        series: [
          ...each.map((w) => ({ name: "oscillator", color, width: 0.7, opacity: 0.16, legend: false, hover: false, points: curve(w) })),
          { name: "sin Δ", color: "var(--faint)", width: 1.6, dash: "5 4", points: deltas.map((d) => [d, Math.sin(d)]) },
          { name: "this layer", color, width: 3, points: mean },
        ],
        marks: rests(mean).map((m) => ({ ...m, color })),
        x: { label: "phase difference Δ", zero: true, ticks: TICKS, format: (v) => `Δ = ${Charts.number(v / Math.PI, 2)} π` },
        y: { label: "pull f(Δ)", min: -reach, max: reach },
      };
    }

    function update() {
      get("layer-value").textContent = `${value("layer")} of ${kernel.layers}`;
      get("training-value").textContent = kernel.steps[value("training")].label;
      get("angle-value").textContent = Charts.number(value("angle"), 1);
      charts ??= [[0, "present", "var(--kuramoto)"], [1, "successor", "var(--fsn)"]].map(([field, id, color]) => ({ field, color, chart: Charts.line(get(id), spec(field, color)) }));
      for (const { field, color, chart } of charts) chart.update(spec(field, color));
    }

    function open(name) {
      kernel = named.find(([each]) => each === name)[1];
      get("layer").max = kernel.layers;
      get("layer").value = get("angle").value = 1;
      get("training").max = kernel.steps.length - 1;  // before the value, which may not exceed it
      get("training").value = kernel.steps.length - 1;
      get("layer").closest("label").hidden = kernel.layers < 2;
      get("training").closest("label").hidden = kernel.steps.length < 2;
      get("harmonics").innerHTML = Array.from({ length: kernel.harmonics }, (_, i) => `<label><input type="checkbox" data-harmonic="${i + 1}" checked> n = ${i + 1}</label>`).join("");
      boxes = [...get("harmonics").querySelectorAll("input")];
      // One scale for every position of the sliders, so that what moves is the function.
      reach = 1.05;
      for (const { weights } of kernel.steps) for (const field of weights) for (const w of field) reach = Math.max(reach, 1.02 * w.reduce((sum, [re, im]) => sum + Math.abs(re) + Math.abs(im), 0));
      for (const control of [get("layer"), get("training"), get("angle"), ...boxes]) control.oninput = update;
      update();
    }

    if (named.length > 1) Charts.choice(get("choice"), named.map(([name]) => [name, name]), named[0][0], open);
    open(named[0][0]);
  }

  return { draw };
})();
