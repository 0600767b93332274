// A button on every box of code that copies what stands in it.
(() => {
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }
  for (const code of document.querySelectorAll("pre > code")) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "copy" });
    button.setAttribute("aria-label", "Copy this code");
    button.onclick = async () => {
      await copy(code.textContent);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    };
    code.after(button);
  }
})();
