// Tag: a text with its names marked in colours.

import { post } from "../api.js";
import { announce, characters, el, fill, percent } from "../dom.js";
import {
  absent,
  area,
  composer,
  eitherModel,
  field,
  heading,
  modelAndExamples,
  primary,
  results,
  worker,
} from "../widgets.js";

const COLOURS = 8;

/** The number of each kind's colour, the same for every text of a model. */
function coloursOf(labels, spans) {
  const kinds = labels.map((label) => label.replace(/^[BIESLU]-/, "")).filter((label) => label !== "O");
  const all = [...new Set([...kinds, ...spans.map((span) => span.label)])];
  return new Map(all.map((kind, number) => [kind, number % COLOURS]));
}

function marked(text, spans, colours) {
  const chars = characters(text);
  const node = el("p", { class: "reading tagged" });
  let at = 0;
  for (const span of spans) {
    node.append(chars.slice(at, span.start));
    node.append(
      el(
        "mark",
        { class: `kind k${colours.get(span.label)}` },
        chars.slice(span.start, span.end),
        el("span", { class: "kind-name", text: span.label }),
      ),
    );
    at = span.end;
  }
  node.append(chars.slice(at, chars.length));
  return node;
}

function legend(spans, colours) {
  const counts = new Map();
  for (const span of spans) counts.set(span.label, (counts.get(span.label) ?? 0) + 1);
  return el(
    "ul",
    { class: "legend", label: "tag_legend" },
    [...counts].map(([kind, count]) =>
      el(
        "li",
        {},
        el("span", { class: `swatch k${colours.get(kind)}`, "aria-hidden": "true" }),
        el("span", { text: kind }),
        el("span", { class: "quiet", text: `× ${count}` }),
      ),
    ),
  );
}

function table(spans) {
  return el(
    "details",
    { class: "fold" },
    el("summary", { say: "tag_list" }),
    el(
      "table",
      { class: "plain" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["tag_what", "tag_kind", "tag_sure"].map((key) => el("th", { scope: "col", say: key })),
        ),
      ),
      el(
        "tbody",
        {},
        spans.map((span) =>
          el(
            "tr",
            {},
            [span.text, span.label, percent(span.probability)].map((cell) => el("td", { text: cell })),
          ),
        ),
      ),
    ),
  );
}

export default {
  id: "tag",
  icon: "tag",
  build(panel) {
    const input = area({ id: "tag-text", rows: 3 });
    const ask = primary("tag_ask");
    const place = results("tag_empty");
    const work = worker(place, ask);
    const { chips, picker, begin } = modelAndExamples("tag", { inputs: [input], submit });

    async function submit() {
      begin();
      const text = input.value;
      if (!text.trim()) return input.focus();
      const model = picker.current();
      const found = await work(
        (signal) => post(`predict/${encodeURIComponent(model.id)}`, { inputs: [{ text }] }, signal),
        submit,
      );
      if (!found) return;
      const spans = [...found.answers[0].spans].sort((a, b) => a.start - b.start);
      const colours = coloursOf(model.labels, spans);
      const rest = spans.length
        ? [legend(spans, colours), table(spans)]
        : [el("p", { class: "quiet", say: "tag_nothing" })];
      fill(place.body, el("div", { class: "card" }, marked(text, spans, colours), rest));
      announce("tag_said", { count: spans.length });
    }

    const card = composer({ fields: [field("tag_text", input)], chips: chips.node, picker: picker.node, ask, submit });
    const missing = absent("tag", "tag_none", "tag_none_do", [
      "litebert finetune --task tag --train names.conll --out runs/tagger",
      "litebert serve litebert-base-en runs/tagger",
    ]);
    panel.append(heading("tag"), card, place.node, eitherModel("tag", [card, place.node], missing));
  },
};
