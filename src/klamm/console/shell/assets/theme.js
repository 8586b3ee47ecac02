// Sets the theme before the first paint, so that nothing flashes. `system` follows the system's.
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("klamm-theme") || "system";
    } catch {
      return "system"; // a browser that keeps nothing
    }
  };
  const isDark = () => (chosen() === "system" ? system.matches : chosen() === "dark");
  const apply = () => {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
    document.documentElement.dataset.chosen = chosen();
    if (window.setDark) window.setDark(isDark());
    window.dispatchEvent(new Event("klamm-theme"));
  };
  window.klammTheme = {
    apply,
    next() {
      const order = ["system", "light", "dark"];
      localStorage.setItem("klamm-theme", order[(order.indexOf(chosen()) + 1) % order.length]);
      apply();
    },
    set(name) {
      localStorage.setItem("klamm-theme", name);
      apply();
    },
  };
  system.addEventListener("change", apply);
  apply();
})();
