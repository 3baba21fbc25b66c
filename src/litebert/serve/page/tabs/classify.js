// Classify: which class, which labels, or which value.

import { post } from "../api.js";
import { announce, el, fill, percent } from "../dom.js";
import {
  absent,
  area,
  bars,
  button,
  composer,
  eitherModel,
  field,
  heading,
  modelAndExamples,
  primary,
  results,
  worker,
} from "../widgets.js";

const MAX_SHOWN = 8;

/** Classes with bars, most likely first; those beyond the first few are collapsed. */
export function classBars(probabilities, chosen) {
  const rows = Object.entries(probabilities)
    .sort((a, b) => b[1] - a[1])
    .map(([name, share]) => ({ name, share, chosen: chosen.has(name) }));
  if (rows.length <= MAX_SHOWN + 1) return bars(rows);
  const rest = rows.slice(MAX_SHOWN);
  return el(
    "div",
    {},
    bars(rows.slice(0, MAX_SHOWN)),
    el("details", { class: "fold" }, el("summary", { say: ["classify_more", { count: rest.length }] }), bars(rest)),
  );
}

/** Whether a text resembles the examples of a few-shot classifier. */
export function familiarity(answer) {
  if (answer.unknown === undefined) return null;
  const values = { share: percent(answer.unknown) };
  if (!answer.is_unknown) return el("p", { class: "quiet", say: ["unknown_no_why", values] });
  return el(
    "div",
    { class: "unlike" },
    el("span", { class: "pill warn", say: "unknown_yes" }),
    el("p", { class: "quiet", say: ["unknown_yes_why", values] }),
  );
}

function verdict(answer) {
  if (answer.value !== undefined)
    return el(
      "div",
      { class: "verdict" },
      el("span", { class: "verdict-kind", say: "classify_value" }),
      el("span", { class: "verdict-name", text: answer.value.toFixed(3) }),
    );
  if (answer.labels !== undefined)
    return answer.labels.length
      ? el(
          "div",
          { class: "verdict" },
          answer.labels.map((label) => el("span", { class: "pill", text: label })),
        )
      : el("p", { class: "verdict", say: "classify_labels_none" });
  return el(
    "div",
    { class: "verdict" },
    el("span", { class: "verdict-name", text: answer.label }),
    el("span", { class: "verdict-share", text: percent(answer.probability) }),
  );
}

export function shownAnswer(answer) {
  const chosen = new Set(answer.labels ?? [answer.label]);
  return [verdict(answer), familiarity(answer), answer.probabilities && classBars(answer.probabilities, chosen)];
}

export default {
  id: "classify",
  icon: "classify",
  build(panel) {
    const input = area({ id: "classify-text" });
    const second = area({ id: "classify-second" });
    const secondField = field("classify_second", second);
    secondField.hidden = true;
    const ask = primary("classify_ask");
    const place = results("classify_empty");
    const work = worker(place, ask);
    const { chips, picker, begin } = modelAndExamples("classify", { inputs: [input], submit });
    const pairing = button("classify_add_second", "plus", {
      class: "ghost",
      on: { click: () => pair(secondField.hidden) },
    });

    function pair(on) {
      secondField.hidden = !on;
      fill(pairing, ...button(on ? "classify_drop_second" : "classify_add_second", on ? "cross" : "plus").childNodes);
      if (on) second.focus();
    }

    async function submit() {
      begin();
      if (!input.value.trim()) return input.focus();
      const item = secondField.hidden ? { text: input.value } : { text_a: input.value, text_b: second.value };
      const name = encodeURIComponent(picker.current().id);
      const found = await work((signal) => post(`predict/${name}`, { inputs: [item] }, signal), submit);
      if (!found) return;
      const answer = found.answers[0];
      fill(place.body, el("div", { class: "card" }, shownAnswer(answer)));
      if (answer.label !== undefined)
        announce("classify_said", { label: answer.label, share: percent(answer.probability) });
      else
        announce("classify_said", { label: (answer.labels ?? []).join(", "), share: answer.value?.toFixed(3) ?? "" });
    }

    const card = composer({
      fields: [field("classify_text", input), secondField],
      chips: chips.node,
      extra: pairing,
      picker: picker.node,
      ask,
      submit,
    });
    const go = el("a", { class: "button primary", href: "#teach" }, el("span", { say: "classify_none_go" }));
    const missing = absent(
      "classify",
      "classify_none",
      "classify_none_do",
      ["litebert finetune --train train.csv --out runs/mine", "litebert serve litebert-base-en runs/mine"],
      go,
      el("p", { class: "quiet", say: "classify_none_or" }),
    );
    panel.append(heading("classify"), card, place.node, eitherModel("classify", [card, place.node], missing));
  },
};
