// A sentence, twice, through the models at full size: where attention goes.
(() => {
  const full = reportData.full_size;
  if (!full) return;
  const { snippet, models } = full, { text, period } = snippet, T = text.length;
  const FRAMED = 0.08; // a successor is framed from this much attention on
  const escape = Charts.escapeText, $ = (id) => document.getElementById(id);
  const { glyph } = Strips, named = (c) => (c === " " ? "␣" : glyph(c));
  const title = (key) => models.find((m) => m.key === key).name, percent = (v) => `${Math.round(100 * v)} %`;
  const layer = $("attention-layer"), at = $("attention-at"), canvas = $("attention-map");
  const matrices = Object.fromEntries(models.map(({ key }) => [key, snippet.models[key].maps.map((bytes) => Float32Array.from(atob(bytes), (c) => (c.charCodeAt(0) / 255) ** 2))]));
  at.max = T - 2;
  $("attention-text").innerHTML = [...text].map((c, i) => `<i data-i="${i}">${escape(glyph(c))}</i>${i === period - 1 ? "<br>" : ""}`).join("");
  const letters = [...$("attention-text").querySelectorAll("i")];

  // Attention of a layer to the same place the first time (0) or the place after it (1).
  const looks = (key, i, offset) => snippet.models[key].looks[i][snippet.models[key].offsets.indexOf(offset)];

  function bestLayer(key) {
    const found = snippet.models[key].looks.map((_, i) => Math.max(looks(key, i, 0), looks(key, i, 1)));
    return found.indexOf(Math.max(...found));
  }

  const state = { key: "fsn", layer: bestLayer("fsn"), at: Math.min(T - 2, period + Math.floor(period * 0.4)) };
  Charts.choice($("attention-model"), models.map((m) => [m.key, m.name]), state.key, (key) => { state.key = key; state.layer = bestLayer(key); draw(); });

  function draw() {
    const weights = matrices[state.key][state.layer], row = weights.subarray(state.at * T, state.at * T + T);
    $("attention-text").style.setProperty("--shade", `var(--${state.key})`);
    let top;
    for (let u = 0; u < state.at; u++) if (top === undefined || row[u] > row[top]) top = u;
    letters.forEach((letter, i) => {
      letter.style.setProperty("--heat", i < state.at ? `${Math.min(92, 100 * Math.sqrt(row[i])).toFixed(0)}%` : "0%");
      const goal = state.key === "fsn" && i > 0 && i <= state.at && row[i - 1] >= FRAMED;
      letter.className = [i > state.at ? "later" : "", i === state.at ? "here" : "", i === state.at + 1 ? "next" : "", goal ? "goal" : ""].join(" ");
    });
    says(row, top);
    map(weights);
    layer.max = matrices[state.key].length;
    layer.value = state.layer + 1;
    layer.disabled = matrices[state.key].length < 2;
    at.value = state.at;
    $("attention-layer-value").textContent = `${state.layer + 1} of ${matrices[state.key].length}`;
    $("attention-at-value").textContent = state.at + 1;
  }

  function says(row, top) {
    const quote = (s) => `<code>${escape([...s].map(named).join(""))}</code>`;
    const bits = snippet.models[state.key].bits[state.at], self = percent(row[state.at]);
    let words = `Read so far: … ${quote(text.slice(Math.max(0, state.at - 7), state.at + 1))}. `;
    if (top !== undefined) {
      const again = state.at >= period;
      words += `The ${escape(title(state.key))} looks at itself with ${self} and, of the rest, most at ${quote(text[top])}`;
      words += again && top === state.at - period ? ", <b>the same place the first time</b>" : again && top === state.at - period + 1 ? ", <b>one past the same place the first time</b>" : "";
      words += ` (${percent(row[top])})`;
      words += top + 1 <= state.at ? `, which was followed by ${quote(text[top + 1])}. ` : ". ";
    }
    const chance = 100 * 2 ** -bits;
    $("attention-says").innerHTML = `${words}Next comes ${quote(text[state.at + 1])}; the model gives it ${chance.toFixed(chance < 1 ? 1 : 0)} % (${bits.toFixed(1)} bits).`;
  }

  function map(weights) {
    const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${state.key}`).trim();
    const rgb = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    canvas.width = canvas.height = T;
    const context = canvas.getContext("2d"), image = context.createImageData(T, T);
    for (let i = 0; i < T * T; i++) {
      const t = Math.floor(i / T), u = i % T;
      if (u > t) continue;
      image.data.set(rgb, 4 * i);
      image.data[4 * i + 3] = Math.max(t === state.at ? 46 : t === period || u === period ? 20 : 0, 255 * Math.min(1, 1.15 * Math.sqrt(weights[i])));
    }
    context.putImageData(image, 0, 0);
  }

  const move = (to) => { state.at = Math.max(0, Math.min(T - 2, to)); draw(); };
  layer.oninput = () => { state.layer = layer.value - 1; draw(); };
  at.oninput = () => move(Number(at.value));
  $("attention-text").onpointermove = $("attention-text").onpointerdown = (event) => {
    const i = document.elementFromPoint(event.clientX, event.clientY)?.dataset?.i;
    if (i !== undefined) move(Number(i));
  };
  $("attention-text").onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: period, ArrowUp: -period }[event.key];
    if (!step) return;
    event.preventDefault();
    move(state.at + step);
  };
  canvas.onpointermove = (event) => {
    const place = canvas.getBoundingClientRect();
    move(Math.floor(((event.clientY - place.top) / place.height) * T));
  };
  draw();
})();
