// What the pages share in the browser: going to a page, copying, folding the rail, keys.
(() => {
  const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

  window.klamm = {
    go(path) {
      emitEvent("sub_pages_navigate", path);
    },
    again() {
      location.reload();
    },
    async copy(text) {
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const area = Object.assign(document.createElement("textarea"), { value: text });
        document.body.append(area);
        area.select();
        document.execCommand("copy"); // where the clipboard is for https only
        area.remove();
      }
      klamm.say("Copied");
    },
    say(text) {
      const old = document.querySelector(".k-toast");
      if (old) old.remove();
      const toast = document.createElement("div");
      toast.className = "k-toast";
      toast.setAttribute("role", "status");
      toast.textContent = text;
      document.body.append(toast);
      setTimeout(() => toast.remove(), 1800);
    },
    fold() {
      const isFolded = document.documentElement.classList.toggle("k-folded");
      try {
        localStorage.setItem("klamm-folded", isFolded ? "yes" : "");
      } catch {
        // it is folded until the page is loaded again
      }
    },
  };
  try {
    if (localStorage.getItem("klamm-folded")) document.documentElement.classList.add("k-folded");
  } catch {
    // a browser that keeps nothing
  }

  document.addEventListener("click", (event) => {
    const copies = event.target.closest("[data-copy]");
    if (copies) klamm.copy(copies.dataset.copy);
    const does = event.target.closest("[data-do]");
    if (does?.dataset.do === "theme") klammTheme.next();
    if (does?.dataset.do === "fold") klamm.fold();
    if (does?.dataset.do === "search") window.dispatchEvent(new Event("klamm-palette"));
  });
  // A page opens with a g and a letter, as in mail programs.
  let awaitsLetter = 0;
  const pages = { o: "/", t: "/topics", g: "/groups", p: "/pipelines", b: "/brokers", m: "/metrics" };
  document.addEventListener("keydown", (event) => {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      window.dispatchEvent(new Event("klamm-palette"));
      return;
    }
    if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target)) return;
    if (event.key === "/") {
      event.preventDefault();
      const box = document.querySelector(".k-search input");
      if (box && box.offsetParent) box.focus();
      else window.dispatchEvent(new Event("klamm-palette"));
    } else if (Date.now() - awaitsLetter < 1200 && pages[event.key]) {
      awaitsLetter = 0;
      klamm.go(pages[event.key]);
    } else if (event.key === "g") {
      awaitsLetter = Date.now();
    }
  });
  window.addEventListener("load", () => klammTheme.apply());
})();
