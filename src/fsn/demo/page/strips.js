// The same thing, repeated: what each character costs, the first and the second time one above the other.
const Strips = (() => {
  const DARKEST = 7; // bits at which a character is as dark as it gets
  const glyph = (c) => (c === "\n" ? "⏎" : c === "\t" ? "⇥" : c);

  // rows: [key of the snippet's models, title, colour]
  function draw(element, snippet, rows) {
    const { text, period } = snippet, escape = Charts.escapeText;
    element.classList.add("strips");
    element.style.setProperty("--period", period);
    element.innerHTML = rows.map(([key, title, shade]) => {
      const s = snippet.models[key];
      const cell = (i) => {
        const bits = i ? s.bits[i - 1] : null;
        return `<i style="--heat:${bits === null ? 0 : Math.min(90, (bits / DARKEST) * 90).toFixed(0)}%" title="${bits === null ? "given" : `${bits.toFixed(2)} bits`}">${escape(glyph(text[i]))}</i>`;
      };
      const line = (label, from) => `<div class="line"><small>${label}</small><span class="chars">${Array.from({ length: period }, (_, i) => cell(from + i)).join("")}</span></div>`;
      return `<div class="strip" style="--shade:${shade}"><h3><b>${escape(title)}</b><span>${s.first.toFixed(2)} → ${s.second.toFixed(2)} bits per character</span></h3>${line("first time", 0)}${line("again", period)}</div>`;
    }).join("");
  }
  return { draw, glyph };
})();
