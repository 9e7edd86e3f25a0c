// Light or dark, as whoever looks has chosen or else as the system has it. Set before anything is drawn, so that nothing flashes. Not a
// module: those run after the first paint.
"use strict";
(function () {
  const night = matchMedia("(prefers-color-scheme: dark)");

  function kept() {
    try {
      return localStorage.getItem("esper-theme");
    } catch {
      return null; // a browser that keeps nothing follows the system
    }
  }

  function follow() {
    document.documentElement.dataset.theme = kept() ?? (night.matches ? "dark" : "light");
  }

  follow();
  night.addEventListener("change", follow);
})();
