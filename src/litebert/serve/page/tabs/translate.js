// Translate: a text in the other language, and what of it the model could not read.

import { post } from "../api.js";
import { announce, el, fill, percent } from "../dom.js";
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

function shown({ translation, log_likelihood, unknown }) {
  const share = percent(Math.exp(log_likelihood)); // of a token, on average
  return el(
    "div",
    { class: "card" },
    el("p", { class: "reading translated", text: translation }),
    el("p", { class: "quiet", say: ["translate_sure", { share }] }),
    unknown.length > 0 &&
      el("p", { class: "quiet unread", say: ["translate_unknown", { characters: [...new Set(unknown)].join(" ") }] }),
  );
}

export default {
  id: "translate",
  icon: "translate",
  build(panel) {
    const input = area({ id: "translate-text", rows: 4 });
    const ask = primary("translate_ask");
    const place = results("translate_empty");
    const work = worker(place, ask);
    const { chips, picker, begin } = modelAndExamples("translate", { inputs: [input], submit });

    async function submit() {
      begin();
      const text = input.value;
      if (!text.trim()) return input.focus();
      const found = await work((signal) => post("translate", { text, model: picker.current().id }, signal), submit);
      if (!found) return;
      const [answer] = found.answers;
      fill(place.body, shown(answer));
      announce("translate_said", { text: answer.translation });
    }

    const card = composer({
      fields: [field("translate_text", input)],
      chips: chips.node,
      picker: picker.node,
      ask,
      submit,
    });
    const missing = absent("translate", "translate_none", "translate_none_do", [
      "litebert finetune --task translate --train train.en --out runs/translator",
      "litebert serve litebert-base-en runs/translator",
    ]);
    panel.append(heading("translate"), card, place.node, eitherModel("translate", [card, place.node], missing));
  },
};
