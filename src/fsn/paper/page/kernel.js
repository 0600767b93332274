// The kernel of the coupling figure, if there is a run to read it from.
(() => {
  const { kernel } = reportData.live;
  if (!kernel) return;
  Kernel.draw(document.getElementById("kernel"), kernel);
  document.getElementById("kernel-note").textContent = `${kernel.run}, best weights of ${kernel.epochs} epochs, ${kernel.frame} frame.`;
})();
