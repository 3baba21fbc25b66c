// Creating DOM nodes. Text from users only becomes text nodes.

import { say, words } from "./language.js";

const DIRECT = new Set(["value", "checked", "disabled", "hidden", "tabIndex", "htmlFor", "className"]);

/**
 * Create a node. `say`, `label`, `title`, `placeholder`: a key of strings.js, or [key, values]; `text`: literal text;
 * `on`: listeners; `style`: custom properties; anything else is an attribute.
 */
export function el(tag, settings = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) set(node, name, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function set(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "class") node.className = value;
  else if (name === "text") node.textContent = value;
  else if (["say", "label", "title", "placeholder"].includes(name)) {
    const [key, values] = Array.isArray(value) ? value : [value];
    say(node, key, values, name === "say" ? "text" : name);
  } else if (name === "on")
    for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
  else if (name === "style") for (const [key, property] of Object.entries(value)) node.style.setProperty(key, property);
  else if (DIRECT.has(name)) node[name] = value;
  else node.setAttribute(name, value === true ? "" : value);
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

let idCount = 0;
export const newId = (name) => `${name}-${++idCount}`;

export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Announce a message to screen readers. */
export function announce(key, values) {
  document.getElementById("announcer").textContent = words(key, values);
}

export const percent = (share) => {
  const hundredths = share * 100;
  if (hundredths > 99.95 && share < 1) return "> 99.9 %";
  if (hundredths < 0.05 && share > 0) return "< 0.1 %";
  return `${hundredths.toFixed(hundredths >= 99.95 || hundredths === 0 ? 0 : 1)} %`;
};

/** Slices by code points, like Python's; JavaScript counts UTF-16 code units. */
export function characters(text) {
  const all = Array.from(text);
  return { length: all.length, slice: (start, end) => all.slice(start, end).join("") };
}

export const linesOf = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/**
 * Roving tabindex: one tab stop; arrow keys, Home and End move the focus among the elements of `selector`.
 * With `columns()` they form a grid; `moved` is called with the focused element.
 */
export function roving(container, selector, { columns = () => 0, moved = () => {} } = {}) {
  const items = () => [...container.querySelectorAll(selector)];
  const settle = (chosen) => {
    for (const item of items()) item.tabIndex = item === chosen ? 0 : -1;
  };
  container.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(event.target.closest(selector));
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const row = columns() || 1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row };
    let next;
    if (event.key === "Home") next = 0;
    else if (event.key === "End") next = all.length - 1;
    else if (event.key in steps) {
      next = at + steps[event.key];
      if (columns()) {
        if (next < 0 || next >= all.length) next = at;
      } else next = (next + all.length) % all.length;
    } else return;
    event.preventDefault();
    settle(all[next]);
    all[next].focus();
    moved(all[next]);
  });
  return settle;
}
