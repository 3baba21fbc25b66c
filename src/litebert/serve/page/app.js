// The page: tabs at the side, one panel each, and what concerns all of them.

import { keyAsker } from "./api.js";
import { el, fill, roving, svg } from "./dom.js";
import { icon } from "./icons.js";
import { language, say, setLanguage } from "./language.js";
import { loadModels, modelCount } from "./models.js";
import { remember } from "./storage.js";
import answer from "./tabs/answer.js";
import classify from "./tabs/classify.js";
import fillTab from "./tabs/fill.js";
import inside from "./tabs/inside.js";
import runs from "./tabs/runs.js";
import similar from "./tabs/similar.js";
import tag from "./tabs/tag.js";
import teach from "./tabs/teach.js";
import { field, primary, results, worker } from "./widgets.js";

const TABS = [fillTab, classify, tag, answer, similar, teach, inside, runs];
const BEFORE_GAP = new Set(["similar", "teach"]); // tabs that end a group

function logo() {
  return svg(
    "svg",
    { viewBox: "0 0 32 32", class: "logo", "aria-hidden": "true" },
    svg("path", { d: "M16 5 27 10.5 16 16 5 10.5z" }),
    svg("path", { d: "m5 16 11 5.5L27 16", class: "second" }),
    svg("path", { d: "m5 21.5 11 5.5 11-5.5", class: "third" }),
  );
}

/** The theme that is seen now. */
const systemTheme = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const theme = () => document.documentElement.dataset.theme ?? systemTheme();

function themeToggle() {
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
      delete document.documentElement.dataset.theme; // and follow the system again
    else document.documentElement.dataset.theme = wanted;
    remember("litebert.theme", document.documentElement.dataset.theme ?? null);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  return node;
}

function languageToggle() {
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

function tabOf(tab) {
  return el(
    "button",
    {
      type: "button",
      role: "tab",
      class: `tab${BEFORE_GAP.has(tab.id) ? " before-gap" : ""}`,
      id: `tab-${tab.id}`,
      "aria-controls": `panel-${tab.id}`,
      "aria-selected": "false",
      tabindex: "-1",
      on: { click: () => (location.hash = tab.id) },
    },
    icon(tab.icon),
    el("span", { say: tab.id }),
  );
}

/** A field for the key, above everything, until there is one. */
function askForKey(place) {
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

function build() {
  const sideways = matchMedia("(max-width: 859px)");
  const list = el("div", { class: "tabs", role: "tablist", label: "tabs" });
  const state = el("p", { class: "server quiet" });
  const foot = el(
    "div",
    { class: "foot" },
    el("div", { class: "toggles" }, languageToggle(), themeToggle()),
    state,
    el("a", { class: "quiet api", href: "docs" }, el("span", { say: "api" }), icon("external")),
  );
  const keyPlace = el("div", { class: "key-place" });
  const start = results("none_yet");
  fill(start.body);
  const main = el("main", { id: "main", tabindex: "-1" }, keyPlace, start.node);
  const built = new Map();
  let current = null;

  for (const tab of TABS) {
    list.append(tabOf(tab));
    const panel = el("section", {
      class: "panel",
      role: "tabpanel",
      id: `panel-${tab.id}`,
      "aria-labelledby": `tab-${tab.id}`,
      hidden: true,
    });
    main.append(panel);
    built.set(tab.id, { panel, life: tab.build(panel) ?? {} });
  }
  const settle = roving(list, ".tab", { moved: (node) => node.click() });

  function show() {
    const wanted = location.hash.slice(1);
    const id = built.has(wanted) ? wanted : TABS[0].id;
    if (id === current) return;
    if (current) built.get(current).life.hidden?.();
    current = id;
    for (const [name, { panel }] of built) panel.hidden = name !== id;
    for (const node of list.children) node.setAttribute("aria-selected", String(node.id === `tab-${id}`));
    const chosen = document.getElementById(`tab-${id}`);
    settle(chosen);
    if (sideways.matches) chosen.scrollIntoView({ block: "nearest", inline: "center" });
    document.title = `${chosen.textContent} · litebert`;
    window.scrollTo(0, 0);
    built.get(id).life.shown?.();
  }

  const turn = () => list.setAttribute("aria-orientation", sideways.matches ? "horizontal" : "vertical");
  sideways.addEventListener("change", turn);
  turn();
  window.addEventListener("hashchange", show);
  document.addEventListener(
    "language",
    () => (document.title = `${document.getElementById(`tab-${current}`).textContent} · litebert`),
  );
  document.addEventListener("models", () =>
    say(state, modelCount() ? "models_there" : "no_models", { count: modelCount() }),
  );
  keyAsker.ask = askForKey(keyPlace);

  const app = document.getElementById("app");
  fill(
    app,
    el("a", {
      class: "skip",
      href: "#main",
      say: "skip",
      on: {
        click: (event) => {
          event.preventDefault();
          main.focus();
        },
      },
    }),
    el(
      "header",
      { class: "side" },
      el("a", { class: "brand", href: "./" }, logo(), el("span", { text: "litebert" })),
      list,
      foot,
    ),
    main,
  );
  show();
  const work = worker(start);
  const begin = () => work(loadModels, begin);
  begin();
}

build();
