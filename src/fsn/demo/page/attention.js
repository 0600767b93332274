// A line, twice: what each character costs, and where attention goes.
(() => {
  const { snippet, models } = reportData, { text, period } = snippet, T = text.length;
  const FRAMED = 0.08; // a successor is framed from this much attention on
  const escape = Charts.escapeText, $ = (id) => document.getElementById(id);
  const glyph = (c) => (c === "\n" ? "⏎" : c === "\t" ? "⇥" : c), named = (c) => (c === "\n" ? "⏎" : c === " " ? "␣" : c);
  const model = (key) => models.find((m) => m.key === key);

  // -- what each character costs: the two copies, one above the other
  $("strips").innerHTML = Object.entries(snippet.models).map(([key, s]) => {
    const cell = (i) => {
      const bits = i ? s.bits[i - 1] : null;
      return `<i style="--heat:${bits === null ? 0 : Math.min(88, (bits / 9) * 88).toFixed(0)}%" title="${bits === null ? "given" : `${bits.toFixed(2)} bits`}">${escape(glyph(text[i]))}</i>`;
    };
    const line = (label, from) => `<div class="line"><small>${label}</small><span class="chars">${Array.from({ length: period }, (_, i) => cell(from + i)).join("")}</span></div>`;
    return `<div class="strip" style="--shade:var(--${key})"><h3>${escape(model(key).name)}<span>${s.first.toFixed(2)} → ${s.second.toFixed(2)} bits per character</span></h3>${line("first time", 0)}${line("again", period)}</div>`;
  }).join("");

  // -- where attention goes
  const matrices = {};
  for (const [key, s] of Object.entries(snippet.models)) {
    matrices[key] = s.layers.map((l) => Float32Array.from(atob(l.weights), (c) => (c.charCodeAt(0) / 255) ** 2));
  }
  const state = { key: "fsn", layer: 0, at: Math.min(T - 2, period + Math.floor(period * 0.3)) };
  const layer = $("attention-layer"), at = $("attention-at"), canvas = $("attention-map");
  state.layer = bestLayer("fsn");
  at.max = T - 2;

  function bestLayer(key) {
    const shares = snippet.models[key].layers.map((l) => Math.max(l.place, l.after));
    return shares.indexOf(Math.max(...shares));
  }

  $("attention-text").innerHTML = [...text].map((c, i) => `<i data-i="${i}">${escape(glyph(c))}</i>${c === "\n" && i < T - 1 ? "<br>" : ""}`).join("");
  const letters = [...$("attention-text").querySelectorAll("i")];

  function draw() {
    const weights = matrices[state.key][state.layer], row = weights.subarray(state.at * T, state.at * T + T);
    const shade = `var(--${state.key})`;
    $("attention-text").style.setProperty("--shade", shade);
    const order = Array.from(row.keys()).filter((u) => u <= state.at).sort((a, b) => row[b] - row[a]);
    const top = order.filter((u) => u < state.at)[0];
    letters.forEach((letter, i) => {
      letter.style.setProperty("--heat", i < state.at ? `${Math.min(92, 100 * Math.sqrt(row[i])).toFixed(0)}%` : "0%");
      const goal = state.key === "fsn" && i > 0 && i <= state.at && row[i - 1] >= FRAMED;
      letter.className = [i > state.at ? "later" : "", i === state.at ? "here" : "", i === state.at + 1 ? "next" : "", goal ? "goal" : ""].join(" ");
    });
    says(row, top);
    map(weights);
    layer.max = matrices[state.key].length;
    layer.value = state.layer + 1;
    at.value = state.at;
    $("attention-layer-value").textContent = `${state.layer + 1} of ${matrices[state.key].length}`;
    $("attention-at-value").textContent = state.at + 1;
  }

  function says(row, top) {
    const quote = (s) => `<code>${escape([...s].map(named).join(""))}</code>`;
    const next = text[state.at + 1], bits = snippet.models[state.key].bits[state.at];
    const self = Math.round(100 * row[state.at]);
    let words = `Read so far: …${quote(text.slice(Math.max(0, state.at - 9), state.at + 1))}. `;
    if (top !== undefined) {
      const share = Math.round(100 * row[top]), around = text.slice(Math.max(0, top - 5), top + 1);
      words += `Layer ${state.layer + 1} looks most (${share}&nbsp;%) at the end of …${quote(around)}`;
      words += state.at >= period && top === state.at - period ? ", <b>the same place in the first copy</b>" : state.at >= period && top === state.at - period + 1 ? ", <b>one past the same place in the first copy</b>" : "";
      words += top + 1 <= state.at ? `, followed by ${quote(text[top + 1])}. ` : ". ";
      if (self > 0) words += `${self}&nbsp;% stays with itself. `;
    }
    words += `Next comes ${quote(next)}, to which the model gives ${(100 * 2 ** -bits).toFixed(bits > 6.6 ? 1 : 0)}&nbsp;% (${bits.toFixed(1)} bits).`;
    $("attention-says").innerHTML = words;
  }

  // How much of each layer's attention lies where a copy needs it, over the whole second line.
  const percent = (v) => `${Math.round(100 * v)} %`;
  $("attention-shares").innerHTML = `<thead><tr><th></th><th scope="col">same place</th><th scope="col">one past it</th></tr></thead><tbody>${models.map((m) => snippet.models[m.key].layers.map((l, i) => `<tr><th scope="row"><i class="key" style="--shade:var(--${m.key})"></i>${escape(m.name)}, layer ${i + 1}</th><td>${percent(l.place)}</td><td>${percent(l.after)}</td></tr>`).join("")).join("")}</tbody>`;

  function map(weights) {
    const style = getComputedStyle(document.documentElement), hex = style.getPropertyValue(`--${state.key}`).trim();
    const rgb = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    canvas.width = canvas.height = T;
    const context = canvas.getContext("2d"), image = context.createImageData(T, T);
    for (let i = 0; i < T * T; i++) {
      const t = Math.floor(i / T), u = i % T, a = Math.sqrt(weights[i]);
      const mine = t === state.at;
      image.data.set(rgb, 4 * i);
      image.data[4 * i + 3] = u > t ? 0 : Math.max(mine ? 40 : 0, 255 * Math.min(1, 1.15 * a));
      if (t === period || u === period) image.data[4 * i + 3] = Math.max(image.data[4 * i + 3], u > t ? 0 : 26);
    }
    context.putImageData(image, 0, 0);
  }

  Charts.choice($("attention-model"), models.map((m) => [m.key, m.name]), state.key, (key) => {
    state.key = key;
    state.layer = bestLayer(key);
    draw();
  });
  layer.oninput = () => { state.layer = layer.value - 1; draw(); };
  at.oninput = () => { state.at = Number(at.value); draw(); };
  const point = (event) => {
    const i = document.elementFromPoint(event.clientX, event.clientY)?.dataset?.i;
    if (i !== undefined && Number(i) < T - 1) { state.at = Number(i); draw(); }
  };
  $("attention-text").onpointermove = $("attention-text").onpointerdown = point;
  $("attention-text").onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: period, ArrowUp: -period }[event.key];
    if (!step) return;
    event.preventDefault();
    state.at = Math.max(0, Math.min(T - 2, state.at + step));
    draw();
  };
  canvas.onpointermove = (event) => {
    const place = canvas.getBoundingClientRect();
    state.at = Math.max(0, Math.min(T - 2, Math.floor(((event.clientY - place.top) / place.height) * T)));
    draw();
  };
  draw();
})();
