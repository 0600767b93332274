// The explorer: what one types goes to the server in this computer, and what the models did comes back.
(() => {
  const { models, longest, bytes, fields, coupling } = reportData;
  const DARKEST = 8, COPIED = 4, CLOCKS = 6, FRAMED = 0.12; // bits; depth; clocks at first; share of all pulls from which a successor is framed
  const EXAMPLES = [
    ["a sentence, twice", "The zorblat of Quokkahaven feeds on lupin leaves and moonlight. The zorblat of Quokkahaven feeds on lupin leaves and moonlight. "],
    ["a link", "The [[Republic of Venice]] was ruled by the [[Doge]]. In 1797 the [[Republic of Venice]] came to its end."],
    ["random letters", "qzvkxjwpfhdmbt qzvkxjwpfhdmbt qzvkxjwpfhdmbt"],
    ["no repetition", "Anarchism originated as a term of abuse first used against early working class radicals."],
  ];
  const $ = (id) => document.getElementById(id);
  const has = (field) => fields.some((layer) => layer.includes(field)), successors = has("successor");
  const [main, other] = models.map((m) => m.name);
  const shade = (name) => (name === "cut" ? "var(--cut)" : name === main ? "var(--main)" : "var(--other)");
  const title = (name) => (name === "cut" ? `${main}, with fields off` : name);
  const cuts = new Set(); // "layer field"
  const state = { reading: null, look: null, at: 0, shown: null, chosen: null };

  // Everything a person or a model wrote becomes text, never markup.
  function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("--")) element.style.setProperty(name, value);
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }
  const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
  const draw = (tag, attributes, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const glyph = (label) => (label === "" ? "‥" : label === "\n" ? "⏎" : label === "\t" ? "⇥" : label);
  const named = (label) => (label === " " ? "␣" : glyph(label));
  const code = (...labels) => make("code", {}, labels.map(named).join(""));
  const percent = (p) => (p > 0.0995 ? `${Math.round(100 * p)} %` : p > 0.00095 ? `${(100 * p).toFixed(1)} %` : "< 0.1 %");
  const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

  // -- asking ------------------------------------------------------------------------------------------------
  async function ask(path, question) {
    const list = [...cuts].map((c) => [Number(c.split(" ")[0]), c.split(" ")[1]]);
    const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...question, cuts: list }) });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  // One question at a time; of those that come up meanwhile only the last is asked.
  function lately(work) {
    let running = false, waiting = false;
    return async function run() {
      if (running) { waiting = true; return; }
      running = true;
      try { await work(); } finally { running = false; }
      if (waiting) { waiting = false; run(); }
    };
  }

  function refuse(message) {
    $("refusal").textContent = message ?? "";
    $("refusal").hidden = !message;
    $("text").setAttribute("aria-invalid", String(Boolean(message)));
    $("strips").classList.toggle("stale", Boolean(message));
  }

  // Where symbols are bytes the page can count them; else the server does, as it reads.
  const symbols = (text) => (bytes ? new TextEncoder().encode(text).length : text && state.reading?.text === text ? state.reading.labels.length : Math.min(text.length, longest));
  function count() {
    const n = symbols($("text").value);
    $("count").textContent = bytes || state.reading?.text === $("text").value ? `${n.toLocaleString("en-US")} of ${longest} symbols` : `up to ${longest} symbols`;
    $("count").classList.toggle("over", n > longest);
    return n;
  }

  const read = lately(async () => {
    const text = $("text").value, n = count();
    if (!n) { refuse("Type at least one character."); return; }
    if (n > longest) { refuse(`This text is too long: the models read at most ${longest} symbols at a time; shorten it.`); return; }
    try {
      state.reading = { text, ...(await ask("/read", { text })) };
    } catch (error) { refuse(sentence(error)); return; }
    refuse(null);
    count();
    state.at = Math.min(state.at, state.reading.labels.length - 1);
    drawStrips();
    drawMeans();
    look();
  });

  const look = lately(async () => {
    if (!state.reading) return;
    const { text } = state.reading, at = state.at;
    if (at >= state.reading.labels.length) return;
    try { state.look = { text, ...(await ask("/look", { text, at })) }; } catch (error) { refuse(sentence(error)); return; }
    if (state.look.text !== state.reading.text) return;
    drawCharacter();
    drawLooks();
    drawClocks();
    document.body.dataset.seen = String(Number(document.body.dataset.seen ?? 0) + 1);
  });

  const sentence = (error) => {
    const text = error instanceof TypeError ? "the server has gone; start fsn explore again" : error.message;
    return text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");
  };

  // -- the text ------------------------------------------------------------------------------------------------
  function letters(labels, each) {
    const row = make("div", { class: "letters" });
    let word; // lines break between words
    labels.forEach((label, i) => {
      if (!i || /\s$/.test(labels[i - 1]) || /^\s\S/.test(label)) row.append(word = make("span"));
      word.append(make("i", { "data-i": i, ...each(i) }, glyph(label)));
      if (label === "\n") row.append(make("b"));
    });
    return row;
  }

  function drawStrips() {
    const { labels, depth, models: seen } = state.reading;
    const copied = depth.map((d, i) => i).filter((i) => depth[i] >= COPIED);
    $("strips").replaceChildren(...order(seen).map((name) => {
      const { bits } = seen[name];
      const all = mean(bits), deep = mean(copied.map((i) => bits[i]));
      const heat = (i) => `${Math.min(92, (bits[i] / DARKEST) * 92).toFixed(0)}%`;
      const row = letters(labels, (i) => ({
        "--heat": heat(i), "--deep": Math.min(1, 0.18 + depth[i] / 16).toFixed(2), class: `${depth[i] ? "deep" : ""} ${i === state.at ? "here" : ""}`,
        title: `${bits[i].toFixed(2)} bits, copy depth ${depth[i]}`,
      }));
      // Not onclick: an answer may redraw the text before the button is released.
      row.onpointerdown = (event) => { const i = event.target.dataset?.i; if (i !== undefined) choose(Number(i)); };
      const numbers = `${all.toFixed(2)} bits per symbol${deep === null ? "" : `, ${deep.toFixed(2)} at copy depth ${COPIED} and more`}`;
      return make("div", { class: "strip", "--shade": shade(name), "data-model": name }, make("h3", {}, make("b", {}, title(name)), make("span", {}, numbers)), row);
    }));
  }
  const order = (seen) => [main, "cut", other].filter((name) => name && seen[name]);

  function choose(at) {
    state.at = Math.max(0, Math.min(state.reading.labels.length - 1, at));
    for (const i of $("strips").querySelectorAll("i[data-i]")) i.classList.toggle("here", Number(i.dataset.i) === state.at);
    look();
  }

  // -- fields ----------------------------------------------------------------------------------------------------
  function drawSwitches() {
    const board = $("switches");
    board.replaceChildren(make("span"), make("span", {}, "present"), make("span", {}, "successor"));
    fields.forEach((there, layer) => {
      board.append(make("span", {}, `layer ${layer + 1}`));
      for (const field of ["present", "successor"]) {
        const key = `${layer} ${field}`, on = !cuts.has(key);
        const button = make("button", { type: "button", "aria-pressed": String(on), "data-cut": key, "aria-label": `${field} field of layer ${layer + 1}` }, on ? "on" : "off");
        button.disabled = !there.includes(field);
        if (button.disabled) button.textContent = "none";
        button.onclick = () => { if (cuts.has(key)) cuts.delete(key); else cuts.add(key); drawSwitches(); drawCurves(); read(); $("switches").querySelector(`[data-cut="${key}"]`).focus(); };
        board.append(button);
      }
    });
    const all = make("button", { type: "button", class: "all" }, "all on again");
    all.disabled = !cuts.size;
    all.onclick = () => { cuts.clear(); drawSwitches(); drawCurves(); read(); };
    board.append(all);
  }

  function drawMeans() {
    const { depth, models: seen } = state.reading;
    const groups = [["all", () => true], ["new", (d) => d === 0], [`depth 1–${COPIED - 1}`, (d) => d > 0 && d < COPIED], [`depth ${COPIED}+`, (d) => d >= COPIED]];
    const places = groups.map(([, test]) => depth.map((d, i) => i).filter((i) => test(depth[i])));
    const head = make("tr", {}, make("th", {}, "bits per symbol"), ...groups.map(([name], g) => make("th", { scope: "col", class: g === 2 ? "wide" : "" }, name, make("small", {}, `${places[g].length} symbols`))));
    const rows = order(seen).map((name) => make("tr", { "data-model": name }, make("th", { scope: "row" }, make("i", { class: "key", "--shade": shade(name) }), name === "cut" ? "fields off" : name),
      ...places.map((where, g) => make("td", { class: g === 2 ? "wide" : "" }, where.length ? mean(where.map((i) => seen[name].bits[i])).toFixed(2) : "–"))));
    $("means").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
    const verdict = $("verdict"), deep = places[3];
    if (!cuts.size) verdict.textContent = deep.length ? `Try the ${fields.at(-1)?.at(-1)} field of the last layer.` : "Type something that repeats itself: then there is something to copy.";
    else {
      const cost = (where) => mean(where.map((i) => seen.cut.bits[i])) - mean(where.map((i) => seen[main].bits[i]));
      const fresh = places[1];
      verdict.textContent = deep.length
        ? `Without ${phrase()}, what could be copied costs ${signed(cost(deep))} bits per symbol${fresh.length ? `; what is new, ${signed(cost(fresh))}` : ""}.${cost(deep) > 1 ? " It has forgotten how to copy." : ""}`
        : `Without ${phrase()}, a symbol costs ${signed(cost(places[0]))} bits.`;
    }
  }
  const signed = (v) => `${Charts.number(Math.abs(v), 2)} ${v < 0 ? "fewer" : "more"}`;
  const phrase = () => (cuts.size === 1 ? `the ${[...cuts][0].split(" ")[1]} field of layer ${Number([...cuts][0].split(" ")[0]) + 1}` : `${cuts.size} fields`);

  // -- one character ---------------------------------------------------------------------------------------------
  function drawCharacter() {
    const { labels, depth, distance, models: seen } = state.reading, at = state.at, label = labels[at];
    const before = labels.slice(Math.max(0, at - 9), at);
    const words = [before.length ? "After … " : "At the beginning", before.length ? code(...before) : "", " comes ", code(label), ". "];
    if (depth[at]) words.push("Its copy depth is ", make("b", {}, String(depth[at])), ": ", code(...labels.slice(at - Math.min(depth[at], 32), at)), ` stood ${distance[at]} symbols earlier, followed by `, code(label), " too.");
    else words.push("Nothing before it stood before the same character earlier: it cannot be copied.");
    $("chosen").replaceChildren(...words);
    $("guesses").replaceChildren(...order(seen).map((name) => {
      const { bits, likeliest } = seen[name], list = likeliest[at].map(([l, p]) => [l, p, l === label]);
      if (!list.some(([, , right]) => right)) list.push([label, 2 ** -bits[at], true]);
      return make("div", { class: "guess", "--shade": shade(name) }, make("h3", {}, `${title(name)}: ${bits[at].toFixed(2)} bits`),
        ...list.map(([l, p, right]) => make("div", { class: `bar${right ? " right" : ""}` }, code(l), make("span", { class: "rail" }, make("i", { style: `width:${(100 * p).toFixed(1)}%` })), make("span", {}, percent(p)))));
    }));
  }

  // -- looks -----------------------------------------------------------------------------------------------------
  function drawLooks() {
    const { attention, inside } = state.look, at = state.at, { labels } = state.reading;
    const name = attention[state.shown] ? state.shown : state.look.main, pulling = inside && name === state.look.main;
    const framed = pulling && successors, transformer = models.some((m) => m.name === name && !m.phases);
    const options = order(attention).map((n) => [n, title(n)]), buttons = $("looks-model");
    if (buttons.dataset.options !== `${options} ${name}`) Charts.choice(buttons, options, name, (value) => { state.shown = value; drawLooks(); });
    buttons.dataset.options = `${options} ${name}`;
    const texts = ["¶", ...labels]; // position 0 is the line break before the text
    $("looks").replaceChildren(...attention[name].map((row, layer) => {
      const pull = pulling ? inside.layers[layer] : null;
      const total = pull ? [...pull.present, ...pull.successor].reduce((a, b) => a + b, 0) || 1 : 1;
      const strip = letters(texts.slice(0, Math.min(texts.length, at + 26)), (i) => {
        const goal = pull && i > 0 && i <= at && pull.successor[i - 1] / total >= FRAMED;
        return { "--heat": i <= at ? `${Math.min(92, 100 * Math.sqrt(row[i])).toFixed(0)}%` : "0%", class: `${i > at + 1 ? "later" : i === at + 1 ? "next" : ""} ${i === 0 ? "mute" : ""} ${goal ? "goal" : ""}`, title: i <= at ? `attention ${percent(row[i])}` : "" };
      });
      return make("div", { class: "look", "--shade": shade(name) }, make("b", {}, `Layer ${layer + 1}`), strip, make("p", {}, ...lookWords(row, pull, total, texts, at)));
    }));
    $("looks-intro").textContent = `While it predicts the character on the solid background. Shaded: the tokens it attends to.${framed ? " Framed: the successors that pull on it." : ""}`;
    $("looks-note").textContent = framed ? "A successor is framed when its pull is at least an eighth of all pulls of the layer. Layers that look at the same place in an earlier passage and frame the character after it are copying." : transformer ? "A transformer passes on what lies where it looks: to copy, it looks one past the same place." : "";
  }
  function lookWords(row, pull, total, texts, at) {
    let top = 0;
    for (let u = 1; u <= at; u++) if (row[u] > row[top]) top = u;
    const back = (u) => (u === at ? "itself" : `${at - u} back`);
    const words = ["Looks most at ", code(texts[top]), `, ${back(top)} (${percent(row[top])}).`];
    if (pull?.goal) words.push(" Of the successors ", code(texts[pull.goal]), ` pulls hardest, the one after `, code(texts[pull.goal - 1]), ` ${back(pull.goal - 1)} (${percent(pull.successor[pull.goal - 1] / total)} of all pulls).`);
    return words;
  }

  // -- clocks ----------------------------------------------------------------------------------------------------
  function drawClocks() {
    const { inside } = state.look;
    if (!inside) return;
    const chosen = state.chosen ?? inside.order.slice(0, CLOCKS), layers = inside.moves.length;
    if (document.activeElement !== $("coordinates")) $("coordinates").value = chosen.map((c) => c + 1).join(", ");
    const grid = $("clocks");
    grid.style.gridTemplateColumns = `auto repeat(${layers + 1}, auto)`;
    const heads = ["", "symbol", ...inside.moves.map((_, l) => `layer ${l + 1}`)].map((h) => make("span", {}, h));
    const rows = chosen.flatMap((c) => [make("span", { class: "name" }, `θ${sub(c + 1)}`), ...inside.states.map((now, s) => clock({
      now: now[c], before: s ? inside.states[s - 1][c] : null, turn: s ? inside.moves[s - 1][c] : 0,
      goal: s && inside.layers[s - 1].goal ? inside.goals[s - 1][c] : null, prototype: s === layers ? inside.prototype[c] : null,
    }))]);
    grid.replaceChildren(...heads, ...rows);
  }
  const sub = (n) => String(n).replace(/\d/g, (d) => "₀₁₂₃₄₅₆₇₈₉"[d]);
  function clock({ now, before, turn, goal, prototype }) {
    const at = (angle, r) => [50 + r * Math.cos(angle), 50 - r * Math.sin(angle)].map((v) => v.toFixed(2));
    const line = (angle, r, kind) => { const [x, y] = at(angle, r); return draw("line", { x1: 50, y1: 50, x2: x, y2: y, class: kind }); };
    const svg = draw("svg", { viewBox: "0 0 100 100", role: "img", "aria-label": `phase ${now.toFixed(2)}${before === null ? "" : `, turned by ${turn.toFixed(2)}`}` }, draw("circle", { cx: 50, cy: 50, r: 40, class: "rim" }));
    if (before !== null) {
      svg.append(line(before, 33, "before"));
      const span = Math.max(-2 * Math.PI + 0.01, Math.min(2 * Math.PI - 0.01, turn)), [x0, y0] = at(before, 33), [x1, y1] = at(before + span, 33);
      if (Math.abs(span) > 0.02) svg.append(draw("path", { d: `M${x0} ${y0}A33 33 0 ${Math.abs(span) > Math.PI ? 1 : 0} ${span > 0 ? 0 : 1} ${x1} ${y1}`, class: "turn" }));
    }
    if (goal !== null) { const [x, y] = at(goal, 40); svg.append(draw("circle", { cx: x, cy: y, r: 5.5, class: "goal-dot" })); }
    if (prototype !== null) { const [x, y] = at(prototype, 40); svg.append(draw("rect", { x: x - 4.5, y: y - 4.5, width: 9, height: 9, rx: 1.5, class: "proto" })); }
    svg.append(line(now, 31, "hand"), draw("circle", { cx: 50, cy: 50, r: 3.4, class: "axle" }));
    return svg;
  }

  // -- coupling functions ------------------------------------------------------------------------------------------
  const charts = {};
  function drawCurves() {
    if (!coupling) return;
    const COLORS = ["#d9a520", "#dd6a3c", "#b8468f", "#5b63d3", "#2f93b8", "#3f9e6b", "#8c7a3d", "#7f7f8f"];
    const reach = 1.1 * Math.max(1, ...coupling.curves.flat(2).map(Math.abs));
    ["present", "successor"].forEach((field, f) => {
      if (!has(field)) return;
      const series = coupling.curves[f].map((curve, l) => {
        const off = cuts.has(`${l} ${field}`);
        return { name: `layer ${l + 1}${off ? ", off" : ""}`, color: COLORS[l % COLORS.length], width: off ? 1.2 : 2.6, dash: off ? "3 4" : "", points: coupling.delta.map((d, i) => [d, off ? 0 : curve[i]]) };
      });
      const spec = {
        title: `coupling functions of the ${field} field`, height: 280,
        series: [{ name: "sin Δ", color: "var(--faint)", width: 1.4, dash: "5 4", points: coupling.delta.map((d) => [d, Math.sin(d)]) }, ...series],
        x: { label: "phase difference Δ", zero: true, ticks: [[-Math.PI, "−π"], [-Math.PI / 2, "−π/2"], [0, "0"], [Math.PI / 2, "π/2"], [Math.PI, "π"]], format: (v) => `Δ = ${Charts.number(v / Math.PI, 2)} π` },
        y: { label: "pull f(Δ)", min: -reach, max: reach },
      };
      charts[field] = charts[field]?.update(spec) ?? Charts.line($(`curve-${field}`), spec);
    });
  }

  // -- beginning -----------------------------------------------------------------------------------------------------
  $("who").textContent = models.map((m) => `${m.name} (${(m.parameters / 1e6).toFixed(2)} M)`).join(" · ");
  for (const id of ["fields-part", "clocks-part", "coupling-part"]) $(id).hidden = !models[0].phases;
  for (const field of ["present", "successor"]) $(`curve-${field}`).parentElement.hidden = !has(field);
  $("goal-note").hidden = !successors;
  for (const [name, text] of EXAMPLES) {
    const button = make("button", { type: "button" }, name);
    button.onclick = () => { $("text").value = text; state.at = Math.floor(text.length * 0.72); read(); };
    $("examples").append(button);
  }
  let timer;
  $("text").oninput = () => { count(); clearTimeout(timer); timer = setTimeout(read, 120); };
  $("coordinates").oninput = () => {
    const most = state.look?.inside?.states[0].length ?? 0;
    const wanted = ($("coordinates").value.match(/\d+/g) ?? []).map((n) => Number(n) - 1).filter((c) => c >= 0 && c < most);
    if (wanted.length) { state.chosen = [...new Set(wanted)].slice(0, 24); drawClocks(); }
  };
  $("most").onclick = () => { state.chosen = null; $("coordinates").blur(); drawClocks(); };
  document.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || /TEXTAREA|INPUT/.test(event.target.tagName) || !state.reading) return;
    event.preventDefault();
    choose(state.at + step);
  };
  drawSwitches();
  drawCurves();
  $("text").value = EXAMPLES[0][1];
  state.at = 84; // within a name that no encyclopedia has, the second time
  read();
})();
