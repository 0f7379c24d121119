// Which colours does the page start with? Runs before the first paint, so that a dark page never flashes white.
(function () {
  let chosen = null;
  try {
    chosen = localStorage.getItem("polyvoc.theme");
  } catch {
    // Storage may be forbidden: then the system decides.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
