// The classes to teach: a name and a few lines each.

import { el, fill, linesOf } from "../dom.js";
import { icon } from "../icons.js";
import { say } from "../language.js";

export function classList() {
  const node = el("div", { class: "classes" });
  let list = [];

  function make(name, examples) {
    const title = el("input", {
      class: "text line class-name",
      type: "text",
      autocomplete: "off",
      maxlength: "200",
      value: name,
    });
    const lines = el("textarea", {
      class: "text lines",
      rows: 6,
      spellcheck: "false",
      value: examples,
      placeholder: "teach_examples_hint",
    });
    const count = el("span", { class: "quiet count" });
    const cross = el("button", { type: "button", class: "icon-button", on: { click: () => drop(one) } }, icon("cross"));
    const box = el(
      "div",
      { class: "class", role: "group" },
      el("div", { class: "class-head" }, title, cross),
      lines,
      count,
    );
    const one = {
      title,
      lines,
      box,
      cross,
      tell: () => say(count, "teach_count", { count: linesOf(lines.value).length }),
    };
    lines.addEventListener("input", one.tell);
    one.tell();
    return one;
  }

  function show() {
    list.forEach((one, i) => {
      const number = i + 1;
      say(one.title, "teach_class", { number }, "label");
      say(one.title, "teach_class_hint", { number }, "placeholder");
      say(one.lines, "teach_examples", { number }, "label");
      say(one.cross, "teach_remove", { number }, "label");
      say(one.box, "teach_class_hint", { number }, "label");
      one.cross.disabled = list.length < 3;
    });
    fill(
      node,
      list.map((one) => one.box),
    );
  }

  function drop(one) {
    const at = list.indexOf(one);
    list = list.filter((other) => other !== one);
    show();
    list[Math.max(0, at - 1)].title.focus();
  }

  return {
    node,
    set(classes) {
      list = Object.entries(classes).map(([name, examples]) => make(name.trim(), examples));
      show();
    },
    add() {
      const one = make("", "");
      list.push(one);
      show();
      return one.title;
    },
    /** One more example for the class of this name. */
    give(name, text) {
      const one = list.find((other) => other.title.value.trim() === name);
      if (!one) return;
      one.lines.value = [...linesOf(one.lines.value), text].join("\n");
      one.tell();
    },
    /** Those with a name and examples. */
    read() {
      return list
        .map((one) => ({ name: one.title.value.trim(), examples: linesOf(one.lines.value) }))
        .filter((one) => one.name && one.examples.length);
    },
  };
}
