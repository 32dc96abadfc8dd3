"use strict";
(() => {
  const all = (where, what) => [...where.querySelectorAll(what)];

  // -- light and dark
  const root = document.documentElement, theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const shown = () => {
    theme.setAttribute("aria-pressed", String(isDark()));
    theme.textContent = isDark() ? "Light" : "Dark";
  };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    shown();
  });
  dark.addEventListener("change", shown);
  shown();

  // -- tabs: arrows go from one to the next
  for (const list of all(document, "[role=tablist]")) {
    const tabs = all(list, "[role=tab]");
    const select = (tab) => tabs.forEach((other) => {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
    });
    list.hidden = false;
    list.addEventListener("click", (event) => {
      const tab = event.target.closest("[role=tab]");
      if (tab) select(tab);
    });
    list.addEventListener("keydown", (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      const at = tabs.indexOf(document.activeElement);
      const end = {Home: 0, End: tabs.length - 1}[event.key];
      if (at < 0 || (step === undefined && end === undefined)) return;
      const next = tabs[end ?? (at + step + tabs.length) % tabs.length];
      select(next);
      next.focus();
      event.preventDefault();
    });
    select(list.querySelector("[aria-selected=true]") || tabs[0]);
  }

  // -- lines that belong together
  for (const loop of all(document, ".loop")) {
    const groups = new Map();
    for (const line of all(loop, "[data-s]")) {
      const key = line.dataset.s;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(line);
    }
    const status = loop.querySelector(".status");
    let pinned = null, lit = null;
    const listingOf = (line) => line.closest(".code");
    const mark = (key, name, on) => (groups.get(key) || []).forEach((l) => l.classList.toggle(name, on));
    const light = (key) => {
      if (lit !== null) mark(lit, "lit", false);
      lit = key;
      if (lit === null) return;
      mark(lit, "lit", true);
      const counts = new Map();
      for (const line of groups.get(lit)) {
        const name = listingOf(line).getAttribute("aria-label");
        counts.set(name, (counts.get(name) || 0) + 1);
      }
      const words = [...counts].filter(([name]) => name !== "source")
        .map(([name, count]) => `${count} of ${name}`);
      const source = groups.get(lit).find((l) => listingOf(l).getAttribute("aria-label") === "source");
      const number = source ? `line ${source.dataset.n}` : "a line of another file";
      status.textContent = `${number}: ${words.join(", ") || "no instruction"}`;
    };
    // Scrolls the other listings to a line's counterparts, where none of them is in view.
    const reveal = (key, except) => {
      for (const listing of all(loop, ".code")) {
        const lines = (groups.get(key) || []).filter((line) => listingOf(line) === listing);
        if (!lines.length || listing === except || listing.closest("[hidden]")) continue;
        const top = listing.getBoundingClientRect().top;
        const shifts = lines.map((line) => line.getBoundingClientRect().top - top);
        if (shifts.some((shift) => shift >= 0 && shift < listing.clientHeight - 20)) continue;
        listing.scrollTop += shifts[0] - listing.clientHeight / 3;
      }
    };
    const pin = (key, from) => {
      if (pinned !== null) mark(pinned, "pin", false);
      pinned = pinned === key ? null : key;
      if (pinned === null) return;
      mark(pinned, "pin", true);
      reveal(pinned, from);
    };
    loop.addEventListener("mouseover", (event) => {
      const line = event.target.closest("[data-s]");
      if (!line || line.dataset.s === lit) return;
      light(line.dataset.s);
      if (pinned === null) reveal(lit, listingOf(line));
    });
    loop.addEventListener("click", (event) => {
      const line = event.target.closest("[data-s]");
      if (!line) return;
      focus(line);
      pin(line.dataset.s, listingOf(line));
    });
    // One line of each listing is in the order of Tab; arrows go to the others.
    const focus = (line) => {
      for (const other of all(listingOf(line), "[data-s][tabindex='0']")) other.tabIndex = -1;
      line.tabIndex = 0;
      line.focus({preventScroll: false});
    };
    loop.addEventListener("focusin", (event) => {
      const line = event.target.closest("[data-s]");
      if (!line) return;
      light(line.dataset.s);
      if (line.matches(":focus-visible")) reveal(line.dataset.s, listingOf(line));
    });
    loop.addEventListener("keydown", (event) => {
      const line = event.target.closest("[data-s]");
      if (!line) return;
      const lines = all(listingOf(line), "[data-s]"), at = lines.indexOf(line);
      const to = {ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 20, PageUp: at - 20, Home: 0,
        End: lines.length - 1}[event.key];
      if (to !== undefined) {
        focus(lines[Math.max(0, Math.min(lines.length - 1, to))]);
      } else if (event.key === "Enter" || event.key === " ") {
        pin(line.dataset.s, listingOf(line));
      } else if (event.key === "Escape") {
        if (pinned !== null) pin(pinned, null);
        light(null);
      } else {
        return;
      }
      event.preventDefault();
    });
    for (const listing of all(loop, ".code")) {
      const first = listing.querySelector("[data-s]");
      if (first) first.tabIndex = 0;
    }
  }
})();
