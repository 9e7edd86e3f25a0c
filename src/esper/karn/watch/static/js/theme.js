// Light or dark, set before anything is drawn, so that nothing flashes. Not a module: those run after the first paint.
"use strict";
(function () {
  try {
    const kept = localStorage.getItem("esper-theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch {
    // A browser that keeps nothing follows the system.
  }
})();
