// Charts drawn as SVG from plain data. Each call draws into an element and redraws when its width changes;
// call .update(spec) on what it returns to draw something else. Colours are CSS, so both colour schemes work.
const Charts = (() => {
  let clips = 0;
  const escapeText = (s) => String(s).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const finite = (v) => v !== null && v !== undefined && Number.isFinite(v);

  // Round ticks inside [low, high]: steps of 1, 2 or 5 times a power of ten.
  function ticks(low, high, about) {
    const rough = (high - low) / Math.max(about, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * power >= rough * 0.999) * power;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return { found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  const number = (v, digits) => (v < 0 ? "−" : "") + Math.abs(v).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  function extent(values, axis) {
    const real = values.filter(finite);
    let low = axis.min ?? Math.min(...real), high = axis.max ?? Math.max(...real);
    if (!real.length) [low, high] = [axis.min ?? 0, axis.max ?? 1];
    if (axis.zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    const pad = (high - low) * (axis.pad ?? 0);
    return [axis.min ?? (axis.zero && low === 0 ? 0 : low - pad), axis.max ?? (axis.zero && high === 0 ? 0 : high + pad)];
  }

  function frame(spec, width, height, left, bottom) {
    return { left, right: width - 14, top: 12, bottom: height - bottom };
  }

  function yAxis(box, y, low, high) {
    const { found, digits } = ticks(low, high, Math.max(2, (box.bottom - box.top) / 48));
    const at = (v) => box.bottom - ((v - low) / (high - low)) * (box.bottom - box.top);
    let out = "";
    for (const v of found) {
      const zero = Math.abs(v) < 1e-12;
      out += `<line class="${zero && low < 0 ? "axis" : "grid"}" x1="${box.left}" x2="${box.right}" y1="${at(v)}" y2="${at(v)}"/>`;
      out += `<text x="${box.left - 9}" y="${at(v) + 4}" text-anchor="end">${number(v, digits)}</text>`;
    }
    if (y.label) out += `<text transform="translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)" text-anchor="middle">${escapeText(y.label)}</text>`;
    return { out, at };
  }

  function legend(series) {
    const shown = series.filter((s) => s.legend !== false);
    if (shown.length < 2) return "";
    return `<div class="legend">${shown.map((s) => `<span><svg viewBox="0 0 22 10" aria-hidden="true">${s.bar
      ? `<rect x="5" y="0" width="12" height="10" rx="2" style="fill:${s.color}"/>`
      : `<line x1="1" x2="21" y1="5" y2="5" style="stroke:${s.color};stroke-width:2.4;${s.dash ? "stroke-dasharray:4 3" : ""}"/>`}</svg>${escapeText(s.name)}</span>`).join("")}</div>`;
  }

  function attach(element, draw) {
    const chart = { spec: null };
    const redraw = () => chart.spec && element.clientWidth > 0 && draw(element, chart.spec);
    chart.update = (spec) => { chart.spec = spec; redraw(); return chart; };
    let last = 0;
    new ResizeObserver(() => { if (Math.abs(element.clientWidth - last) > 1) { last = element.clientWidth; redraw(); } }).observe(element);
    return chart;
  }

  function tooltip(element, title, rows) {
    return { show(x, y) {
      const tip = element.querySelector(".tip"), area = element.querySelector("svg.plot");
      tip.innerHTML = `<b>${escapeText(title)}</b>` + rows.map((r) => `<div><span><i class="key" style="--shade:${r.color}"></i>${escapeText(r.name)}</span><span>${escapeText(r.value)}</span></div>`).join("");
      const over = area.offsetTop ?? 0, wide = tip.offsetWidth;
      const left = x + 16 + wide > element.clientWidth ? x - wide - 16 : x + 16;
      tip.style.transform = `translate(${Math.max(0, left)}px, ${Math.max(0, over + y - tip.offsetHeight / 2)}px)`;
      tip.style.opacity = 1;
    } };
  }

  // spec: {height, x: {label, min, max, ticks: [[value, label]], format}, y: {label, min, max, pad},
  //        series: [{name, color, points: [[x, y]], width, dash, dots, opacity, legend, hover}], marks: [{x, y, color}]}
  function drawLine(element, spec) {
    const width = element.clientWidth, height = spec.height ?? 320;
    const box = frame(spec, width, height, 56, spec.x.label ? 46 : 28);
    const points = spec.series.flatMap((s) => s.points);
    const [x0, x1] = extent(points.map((p) => p[0]), spec.x);
    const [y0, y1] = extent(points.map((p) => p[1]), { pad: 0.05, ...spec.y });
    const y = yAxis(box, spec.y, y0, y1);
    const px = (v) => box.left + ((v - x0) / (x1 - x0)) * (box.right - box.left);
    const automatic = ticks(x0, x1, Math.max(2, width / 110));
    const named = spec.x.ticks ?? automatic.found.map((v) => [v, number(v, automatic.digits)]);
    const clip = `clip-${++clips}`;
    let out = `<clipPath id="${clip}"><rect x="${box.left - 5}" y="${box.top - 5}" width="${box.right - box.left + 10}" height="${box.bottom - box.top + 10}"/></clipPath>${y.out}`;
    for (const [v, label] of named) out += `<text x="${px(v)}" y="${box.bottom + 19}" text-anchor="middle">${escapeText(label)}</text>`;
    if (spec.x.zero) out += `<line class="axis" x1="${px(0)}" x2="${px(0)}" y1="${box.top}" y2="${box.bottom}"/>`;
    if (spec.x.label) out += `<text x="${(box.left + box.right) / 2}" y="${height - 6}" text-anchor="middle">${escapeText(spec.x.label)}</text>`;
    out += `<g clip-path="url(#${clip})">`;
    for (const s of spec.series) {
      const kept = s.points.filter((p) => finite(p[0]) && finite(p[1]));
      const d = kept.map((p, i) => `${i ? "L" : "M"}${px(p[0]).toFixed(1)} ${y.at(p[1]).toFixed(1)}`).join("");
      out += `<path data-series="${escapeText(s.name)}" d="${d}" style="stroke:${s.color};stroke-width:${s.width ?? 2.2};opacity:${s.opacity ?? 1};${s.dash ? `stroke-dasharray:${s.dash}` : ""}"/>`;
      if (s.dots) for (const p of kept) out += `<circle cx="${px(p[0])}" cy="${y.at(p[1])}" r="3.4" style="fill:${s.color};stroke:var(--card);stroke-width:1.4"/>`;
    }
    out += "</g>";
    for (const m of spec.marks ?? []) out += `<circle cx="${px(m.x)}" cy="${y.at(m.y)}" r="5" style="fill:var(--card);stroke:${m.color};stroke-width:2.4"/>`;
    element.innerHTML = `${legend(spec.series)}<svg class="plot" viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="${escapeText(spec.title ?? "")}">${out}<line class="cursor" y1="${box.top}" y2="${box.bottom}" visibility="hidden"/></svg><div class="tip"></div>`;
    const svg = element.querySelector("svg.plot"), cursor = svg.querySelector(".cursor"), tip = element.querySelector(".tip");
    svg.onpointermove = (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      if (at < box.left - 6 || at > box.right + 6) return svg.onpointerleave();
      const here = x0 + ((at - box.left) / (box.right - box.left)) * (x1 - x0);
      const near = (s) => s.points.reduce((a, b) => (Math.abs(b[0] - here) < Math.abs(a[0] - here) ? b : a));
      const told = spec.series.filter((s) => s.hover !== false && s.points.length).map((s) => ({ name: s.name, color: s.color, point: near(s) }));
      if (!told.length) return;
      const x = told[0].point[0];
      cursor.setAttribute("x1", px(x)); cursor.setAttribute("x2", px(x)); cursor.setAttribute("visibility", "visible");
      const format = spec.x.format ?? ((v) => number(v, 0));
      tooltip(element, format(x), told.map((t) => ({ ...t, value: number(t.point[1], spec.y.digits ?? 3) }))).show(px(x), event.clientY - svg.getBoundingClientRect().top);
    };
    svg.onpointerleave = () => { tip.style.opacity = 0; cursor.setAttribute("visibility", "hidden"); };
  }

  // A name in the room it has: on one line, on a line for each word, or in smaller letters.
  function name(text, x, y, room) {
    const wide = (s, size) => s.length * size * 0.58, lines = wide(text, 12) > room - 4 ? text.split(" ") : [text];
    const longest = Math.max(...lines.map((s) => wide(s, 12))), size = Math.max(8, Math.min(12, (12 * (room - 2)) / longest));
    return `<text y="${y}" text-anchor="middle" style="fill:var(--ink);font-size:${size}px">${lines.map((s, i) => `<tspan x="${x}" dy="${i ? size * 1.1 : 0}">${escapeText(s)}</tspan>`).join("")}</text>`;
  }

  // spec: {height, groups: [name], notes: [text under the name], x: {label}, y: {label, zero},
  //        series: [{name, color, values, low, high}]}: bars side by side, with error bars where low and high are given
  function drawBars(element, spec) {
    const width = element.clientWidth, height = spec.height ?? 320, groups = spec.groups.length;
    const box = frame(spec, width, height, 56, (spec.notes ? 44 : 40) + (spec.x?.label ? 20 : 0));
    const values = [...spec.series.flatMap((s) => [...s.values, ...(s.low ?? []), ...(s.high ?? [])])];
    const [y0, y1] = extent(values, { zero: true, pad: 0.06, ...spec.y });
    const y = yAxis(box, spec.y, y0, y1);
    const room = (box.right - box.left) / groups, count = spec.series.length;
    const bar = Math.min(34, (room * 0.76) / count), gap = Math.min(3, bar * 0.12);
    let out = y.out;
    spec.groups.forEach((group, g) => {
      const middle = box.left + room * (g + 0.5);
      out += name(group, middle, box.bottom + 19, room);
      if (spec.notes) out += `<text x="${middle}" y="${box.bottom + 36}" text-anchor="middle" style="font-size:11px;fill:var(--faint)">${escapeText(spec.notes[g])}</text>`;
      spec.series.forEach((s, i) => {
        const v = s.values[g];
        if (!finite(v)) return;
        const left = middle - (count * bar) / 2 + i * bar + gap / 2, top = y.at(Math.max(v, 0)), tall = Math.abs(y.at(v) - y.at(0));
        out += `<rect data-series="${escapeText(s.name)}" x="${left.toFixed(1)}" y="${top.toFixed(1)}" width="${(bar - gap).toFixed(1)}" height="${Math.max(tall, 0.8).toFixed(1)}" rx="2" style="fill:${s.color}"/>`;
        if (finite(s.low?.[g]) && finite(s.high?.[g])) {
          const x = left + (bar - gap) / 2;
          out += `<line x1="${x}" x2="${x}" y1="${y.at(s.low[g])}" y2="${y.at(s.high[g])}" style="stroke:var(--ink);stroke-width:1.3;opacity:.65"/>`;
        }
      });
      out += `<rect data-group="${g}" x="${box.left + room * g}" y="${box.top}" width="${room}" height="${box.bottom - box.top + 40}" style="fill:transparent"/>`;
    });
    if (spec.x?.label) out += `<text x="${(box.left + box.right) / 2}" y="${height - 4}" text-anchor="middle">${escapeText(spec.x.label)}</text>`;
    element.innerHTML = `${legend(spec.series.map((s) => ({ ...s, bar: true })))}<svg class="plot" viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="${escapeText(spec.title ?? "")}">${out}</svg><div class="tip"></div>`;
    const svg = element.querySelector("svg.plot"), tip = element.querySelector(".tip");
    svg.onpointermove = (event) => {
      const g = event.target.dataset?.group;
      if (g === undefined) return svg.onpointerleave();
      const digits = spec.y.digits ?? 3;
      const rows = spec.series.filter((s) => finite(s.values[g])).map((s) => {
        const interval = finite(s.low?.[g]) ? `  [${number(s.low[g], digits)}, ${number(s.high[g], digits)}]` : "";
        return { name: s.name, color: s.color, value: number(s.values[g], digits) + interval };
      });
      const place = svg.getBoundingClientRect();
      tooltip(element, spec.titles?.[g] ?? spec.groups[g], rows).show(event.clientX - place.left, event.clientY - place.top);
    };
    svg.onpointerleave = () => { tip.style.opacity = 0; };
  }

  // A row of buttons of which one is pressed; calls back with its value.
  function choice(element, options, chosen, onChange) {
    element.classList.add("choice");
    element.setAttribute("role", "group");
    element.innerHTML = options.map(([value, label]) => `<button type="button" data-value="${escapeText(value)}" aria-pressed="${value === chosen}">${escapeText(label)}</button>`).join("");
    element.onclick = (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      for (const other of element.children) other.setAttribute("aria-pressed", String(other === button));
      onChange(button.dataset.value);
    };
  }

  return {
    escapeText, number, choice,
    line: (element, spec) => attach(element, drawLine).update(spec),
    bars: (element, spec) => attach(element, drawBars).update(spec),
  };
})();
