// The frame around the tabs: logo, theme and language switches, and the field for the API key.

import { el, fill, svg } from "./dom.js";
import { icon } from "./icons.js";
import { language, say, setLanguage } from "./language.js";
import { remember } from "./storage.js";
import { field, primary } from "./widgets.js";

export function logo() {
  return svg(
    "svg",
    { viewBox: "0 0 32 32", class: "logo", "aria-hidden": "true" },
    svg("path", { d: "M16 5 27 10.5 16 16 5 10.5z" }),
    svg("path", { d: "m5 16 11 5.5L27 16", class: "second" }),
    svg("path", { d: "m5 21.5 11 5.5 11-5.5", class: "third" }),
  );
}

/** The current theme. */
const systemTheme = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const theme = () => document.documentElement.dataset.theme ?? systemTheme();

export function themeToggle() {
  const node = el("button", { type: "button", class: "icon-button" });
  const show = () => {
    const other = theme() === "dark" ? "light" : "dark";
    fill(node, icon(other === "dark" ? "moon" : "sun"));
    say(node, `theme_${other}`, {}, "label");
    say(node, `theme_${other}`, {}, "title");
    document.dispatchEvent(new CustomEvent("theme"));
  };
  node.addEventListener("click", () => {
    const wanted = theme() === "dark" ? "light" : "dark";
    if (wanted === systemTheme())
      delete document.documentElement.dataset.theme; // follow the system again
    else document.documentElement.dataset.theme = wanted;
    remember("litebert.theme", document.documentElement.dataset.theme ?? null);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  return node;
}

export function languageToggle() {
  const node = el("button", { type: "button", class: "icon-button words", label: "language", title: "language" });
  const show = () => {
    node.textContent = language() === "zh" ? "EN" : "中文";
    node.lang = language() === "zh" ? "en" : "zh-CN";
  };
  node.addEventListener("click", () => setLanguage(language() === "zh" ? "en" : "zh"));
  document.addEventListener("language", show);
  show();
  return node;
}

/** Show a form for the API key until one is entered. */
export function askForKey(place) {
  return (refused) =>
    new Promise((resolve) => {
      const input = el("input", { class: "text line", type: "password", autocomplete: "off", id: "api-key" });
      const form = el(
        "form",
        { class: "card key", "aria-labelledby": "key-title" },
        el("h2", { id: "key-title" }, icon("key"), el("span", { say: "key_title" })),
        el("p", { class: "quiet", say: "key_why" }),
        refused && el("p", { class: "refused", role: "alert", say: "key_refused" }),
        el("div", { class: "key-row" }, field("key", input, { quiet: true }), primary("key_use")),
      );
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        if (!input.value) return;
        fill(place);
        resolve(input.value);
      });
      fill(place, form);
      input.focus();
    });
}
