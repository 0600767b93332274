// The toy: one oscillator per token, symbols at fixed phases of a ring. The last token moves by
//     θ' = Σ_u A_u sin(goal_u − θ),   goal_u = θ_u (consensus) or θ_{u+1} (frustration),
// and the symbol it comes to rest nearest to is written down. A_u grows with the length of the past that u and t share.
(() => {
  const TURN = 2 * Math.PI, CENTRE = 160, RADIUS = 112, WRITE_MAX = 44, GAIN = 3.4, REST_S = 1.5, PAUSE_S = 0.35;
  const escape = Charts.escapeText, shown = (c) => (c === " " ? "␣" : c);
  const place = (phase, r = RADIUS) => [CENTRE + r * Math.sin(phase), CENTRE - r * Math.cos(phase)];
  const wrap = (phase) => phase - TURN * Math.round(phase / TURN);

  // Attention of the last token: softmax over earlier u of 3 × (length of the common past of u and t).
  function attend(text) {
    const last = text.length - 1, weights = [];
    for (let u = 0; u < last; u++) {
      let n = 0;
      while (n <= u && n < 8 && text[u - n] === text[last - n]) n++;
      weights.push(Math.exp(3 * n));
    }
    const sum = weights.reduce((a, b) => a + b, 0);
    return weights.map((w) => w / sum);
  }

  function arc(from, to, r) {
    const [x0, y0] = place(from, r), [x1, y1] = place(to, r), turn = to - from;
    return `M${x0} ${y0}A${r} ${r} 0 ${Math.abs(turn) > Math.PI ? 1 : 0} ${turn > 0 ? 1 : 0} ${x1} ${y1}`;
  }

  class Ring {
    constructor(figure) {
      this.law = figure.dataset.law;
      this.svg = figure.querySelector("svg");
      this.tape = figure.querySelector(".tape");
    }
    start(text, symbols) {
      this.given = text.length;
      this.text = text;
      this.symbols = symbols;
      this.begin();
    }
    phase(symbol) { return (TURN * this.symbols.indexOf(symbol)) / this.symbols.length; }
    begin() {
      this.weights = attend(this.text);
      this.top = this.weights.indexOf(Math.max(...this.weights));
      this.u = this.phase(this.text[this.top]);
      this.goal = this.law === "fsn" ? this.phase(this.text[this.top + 1]) : this.u;
      const own = this.phase(this.text[this.text.length - 1]);
      this.theta = this.from = own + (this.law === "fsn" ? 0 : 0.42 * (this.text.length % 2 ? 1 : -1));
      this.clock = 0;
      this.paint();
    }
    force() {
      let sum = 0;
      this.weights.forEach((w, u) => { sum += w * Math.sin(this.phase(this.text[this.law === "fsn" ? u + 1 : u]) - this.theta); });
      return sum;
    }
    // A goal exactly opposite gives no force (the paper's reason for harmonics): a nudge starts the move.
    move(seconds) {
      this.clock += seconds;
      for (let i = 0; i < 4; i++) {
        let f = this.force();
        if (Math.abs(f) < 0.02 && Math.cos(this.goal - this.theta) < -0.9) f = 0.1;
        this.theta += (GAIN * f * seconds) / 4;
      }
      this.animate();
      if (this.clock < REST_S + PAUSE_S) return;
      const nearest = this.symbols.reduce((a, b) => (Math.cos(this.phase(b) - this.theta) > Math.cos(this.phase(a) - this.theta) ? b : a));
      this.text += nearest;
      this.begin();
    }
    paint() {
      const at = this.text[this.top], next = this.text[this.top + 1], goal = this.law === "fsn" ? next : at;
      let out = `<circle class="orbit" cx="${CENTRE}" cy="${CENTRE}" r="${RADIUS}"/>`;
      if (this.law === "fsn" && next !== at) out += `<path class="lag" d="${arc(this.u, this.u + wrap(this.goal - this.u), RADIUS + 36)}"/>`;
      const small = Math.min(15, (TURN * RADIUS) / this.symbols.length / 2.5);
      for (const s of this.symbols) {
        const [x, y] = place(this.phase(s));
        out += `<g class="symbol${s === at ? " u" : ""}${s === goal ? " goal" : ""}"><circle cx="${x}" cy="${y}" r="${small}"/><text x="${x}" y="${y + small * 0.34}" style="font-size:${small}px">${escape(shown(s))}</text></g>`;
      }
      if (this.law === "fsn" && next !== at) {
        const [x, y] = place(this.u + wrap(this.goal - this.u) / 2, RADIUS + 51);
        out += `<text class="say" x="${x}" y="${y + 4}" style="font-style:italic">δ</text>`;
      }
      out += `<path class="trail" d=""/><line class="pull"/><circle class="token" r="8"/>`;
      out += `<text class="say" x="${CENTRE}" y="${CENTRE - 18}">${this.law === "fsn" ? "what came next" : "where it is"}</text><text class="say big" x="${CENTRE}" y="${CENTRE + 20}">${escape(shown(goal))}</text>`;
      this.svg.innerHTML = out;
      const letters = [...this.text].map((c, i) => {
        const kind = [i >= this.given ? "new" : "", i === this.top ? "u" : "", i === this.top + 1 && this.law === "fsn" ? "goal" : ""].join(" ").trim();
        return kind ? `<span class="${kind}">${escape(c)}</span>` : escape(c);
      });
      this.tape.innerHTML = letters.join("");
      this.animate();
    }
    animate() {
      const [x, y] = place(this.theta, RADIUS - 28), f = this.force();
      const token = this.svg.querySelector(".token");
      token.setAttribute("cx", x); token.setAttribute("cy", y);
      const [tx, ty] = place(this.theta + 0.62 * f, RADIUS - 28), pull = this.svg.querySelector(".pull");
      pull.setAttribute("x1", x); pull.setAttribute("y1", y); pull.setAttribute("x2", tx); pull.setAttribute("y2", ty);
      this.svg.querySelector(".trail").setAttribute("d", Math.abs(this.theta - this.from) > 0.02 ? arc(this.from, this.theta, RADIUS - 28) : "");
    }
  }

  const rings = [...document.querySelectorAll("#toy figure")].map((f) => new Ring(f));
  const input = document.getElementById("toy-text"), play = document.getElementById("toy-play");
  let playing = !matchMedia("(prefers-reduced-motion: reduce)").matches, visible = true, before = null;
  const label = () => { play.textContent = playing ? "Pause" : "Play"; play.setAttribute("aria-pressed", String(playing)); };

  function restart() {
    const text = input.value.length >= 3 ? input.value : "abcab";
    const symbols = [...new Set(text)];
    for (const ring of rings) ring.start(text, symbols);
  }
  function frame(now) {
    const seconds = before === null ? 0 : Math.min(0.05, (now - before) / 1000);
    before = now;
    if (playing && visible) {
      for (const ring of rings) ring.move(seconds);
      if (rings[0].text.length > rings[0].given + WRITE_MAX) restart();
    }
    requestAnimationFrame(frame);
  }
  input.oninput = restart;
  play.onclick = () => { playing = !playing; label(); };
  document.getElementById("toy-again").onclick = () => { restart(); playing = true; label(); };
  new IntersectionObserver((seen) => { visible = seen[0].isIntersecting; }).observe(document.getElementById("toy"));
  label();
  restart();
  requestAnimationFrame(frame);
})();
