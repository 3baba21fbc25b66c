// The application: a list of tabs with one panel each.

import { keyAsker } from "./api.js";
import { el, fill, roving } from "./dom.js";
import { askForKey, languageToggle, logo, themeToggle } from "./frame.js";
import { icon } from "./icons.js";
import { say } from "./language.js";
import { loadModels, modelCount } from "./models.js";
import answer from "./tabs/answer.js";
import classify from "./tabs/classify.js";
import fillTab from "./tabs/fill.js";
import inside from "./tabs/inside.js";
import runs from "./tabs/runs.js";
import similar from "./tabs/similar.js";
import tag from "./tabs/tag.js";
import teach from "./tabs/teach.js";
import translate from "./tabs/translate.js";
import { results, worker } from "./widgets.js";

const TABS = [fillTab, classify, tag, answer, translate, similar, teach, inside, runs];
const BEFORE_GAP = new Set(["similar", "teach"]); // tabs that end a group
const narrow = matchMedia("(max-width: 859px)"); // the tabs are a row at the top

function tabButton(tab) {
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

function tabPanel(tab) {
  return el("section", {
    class: "panel",
    role: "tabpanel",
    id: `panel-${tab.id}`,
    "aria-labelledby": `tab-${tab.id}`,
    hidden: true,
  });
}

/** Tabs and their panels. The URL fragment selects the panel, for links and the back button. */
function tabbed(main) {
  const list = el("div", { class: "tabs", role: "tablist", label: "tabs" }, TABS.map(tabButton));
  const built = new Map();
  for (const tab of TABS) {
    const panel = tabPanel(tab);
    main.append(panel);
    built.set(tab.id, { panel, life: tab.build(panel) ?? {}, node: list.querySelector(`#tab-${tab.id}`) });
  }
  const settle = roving(list, ".tab", { moved: (node) => node.click() });
  let current = null;

  const updateTitle = () => (document.title = `${built.get(current).node.textContent} · litebert`);
  function show() {
    const wanted = location.hash.slice(1);
    const id = built.has(wanted) ? wanted : TABS[0].id;
    if (id === current) return;
    built.get(current)?.life.hidden?.();
    current = id;
    for (const [other, { panel, node }] of built) {
      panel.hidden = other !== id;
      node.setAttribute("aria-selected", String(other === id));
    }
    const { node, life } = built.get(id);
    settle(node);
    if (narrow.matches) node.scrollIntoView({ block: "nearest", inline: "center" });
    updateTitle();
    window.scrollTo(0, 0);
    life.shown?.();
  }

  const updateOrientation = () => list.setAttribute("aria-orientation", narrow.matches ? "horizontal" : "vertical");
  narrow.addEventListener("change", updateOrientation);
  updateOrientation();
  window.addEventListener("hashchange", show);
  document.addEventListener("language", updateTitle);
  return { list, show };
}

function footer() {
  const state = el("p", { class: "server quiet" });
  document.addEventListener("models", () =>
    say(state, modelCount() ? "models_there" : "no_models", { count: modelCount() }),
  );
  return el(
    "div",
    { class: "foot" },
    el("div", { class: "toggles" }, languageToggle(), themeToggle()),
    state,
    el("a", { class: "quiet api", href: "docs" }, el("span", { say: "api" }), icon("external")),
  );
}

function build() {
  const keyPlace = el("div", { class: "key-place" });
  const start = results("none_yet");
  fill(start.body);
  const main = el("main", { id: "main", tabindex: "-1" }, keyPlace, start.node);
  const skip = (event) => {
    event.preventDefault();
    main.focus();
  };
  const { list, show } = tabbed(main);
  keyAsker.ask = askForKey(keyPlace);
  fill(
    document.getElementById("app"),
    el("a", { class: "skip", href: "#main", say: "skip", on: { click: skip } }),
    el(
      "header",
      { class: "side" },
      el("a", { class: "brand", href: "./" }, logo(), el("span", { text: "litebert" })),
      list,
      footer(),
    ),
    main,
  );
  show();
  const work = worker(start);
  const begin = () => work(loadModels, begin);
  begin();
}

build();
