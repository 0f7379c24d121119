// Apply the stored colours before the first paint, so that a dark page does not flash white.
(function () {
  let chosen = null;
  try {
    chosen = localStorage.getItem("polyvoc.theme");
  } catch {
    // Storage may be blocked: the system setting applies.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
