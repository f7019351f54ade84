// Applies the chosen theme before the page is painted; modules would run after that.
"use strict";

(() => {
  const KEY = "blazr.theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };

  function chosen() {
    try {
      return localStorage.getItem(KEY) || "auto";
    } catch {
      return "auto"; // storage may be forbidden
    }
  }

  function apply(theme) {
    document.documentElement.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-button]")) {
      button.title = `Theme: ${theme} (Alt+T)`;
      button.setAttribute("aria-label", `Theme: ${theme}. Change it`);
    }
  }

  window.toggleTheme = () => {
    const theme = NEXT[document.documentElement.dataset.theme] || "auto";
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // it lasts until the page is left
    }
    apply(theme);
  };

  apply(chosen());
  document.addEventListener("DOMContentLoaded", () => {
    apply(chosen()); // on the buttons, which were not there before
    for (const button of document.querySelectorAll("[data-theme-button]")) {
      button.addEventListener("click", window.toggleTheme);
    }
  });
})();
