// The language of the interface. Texts set with `say` follow when it is switched.

import { remember } from "./storage.js";
import { STRINGS } from "./strings.js";

const said = new WeakMap(); // node -> {slot: [key, values]}
const SLOTS = {
  text: (node, words) => (node.textContent = words),
  label: (node, words) => node.setAttribute("aria-label", words),
  title: (node, words) => node.setAttribute("title", words),
  placeholder: (node, words) => node.setAttribute("placeholder", words),
};

export const language = () => (document.documentElement.lang.startsWith("zh") ? "zh" : "en");

const valueOf = (value) => (typeof value === "function" ? value() : value); // values may depend on the language too

/** The text of a key. {name} is replaced; "one|many" is chosen by the value `count`. */
export function words(key, values = {}) {
  const template = STRINGS[language()][key] ?? STRINGS.en[key];
  if (template === undefined) throw new Error(`strings.js has no ${key}`);
  const [one, many] = template.split("|");
  const chosen = many !== undefined && values.count !== 1 ? many : one;
  return chosen.replace(/\{(\w+)\}/g, (all, name) => (name in values ? String(valueOf(values[name])) : all));
}

/** Set a text on a node, and update it when the language changes. `slot` is text, label, title or placeholder. */
export function say(node, key, values = {}, slot = "text") {
  said.set(node, { ...said.get(node), [slot]: [key, values] });
  node.toggleAttribute("data-said", true);
  SLOTS[slot](node, words(key, values));
  return node;
}

/** Set a literal text instead. */
export function unsay(node, text = "") {
  said.delete(node);
  node.textContent = text;
}

export function setLanguage(name) {
  document.documentElement.lang = name === "zh" ? "zh-CN" : "en";
  remember("litebert.language", name);
  for (const node of document.querySelectorAll("[data-said]")) {
    for (const [slot, [key, values]] of Object.entries(said.get(node) ?? {})) SLOTS[slot](node, words(key, values));
  }
  document.dispatchEvent(new CustomEvent("language"));
}
