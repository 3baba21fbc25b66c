// Question answering: the answer, marked in the passage.

import { post } from "../api.js";
import { announce, characters, el, fill, percent } from "../dom.js";
import {
  absent,
  area,
  bars,
  composer,
  eitherModel,
  field,
  heading,
  modelAndExamples,
  primary,
  results,
  worker,
} from "../widgets.js";

function passage(context, start, end, kind) {
  const chars = characters(context);
  return el(
    "p",
    { class: "reading" },
    chars.slice(0, start),
    end > start && el("mark", { class: kind, text: chars.slice(start, end) }),
    chars.slice(end, chars.length),
  );
}

function verdict(answer) {
  const none = answer.no_answer_probability;
  if (answer.text)
    return el(
      "div",
      {},
      el(
        "div",
        { class: "verdict" },
        el("span", { class: "verdict-name serif", text: answer.text }),
        el("span", { class: "verdict-share", text: percent(answer.probability) }),
      ),
      none > 0 && el("p", { class: "quiet", say: ["answer_nothing_prob", { share: percent(none) }] }),
    );
  return el(
    "div",
    {},
    el("div", { class: "verdict" }, el("span", { class: "verdict-name", say: "answer_nothing" })),
    el("p", { class: "quiet", say: ["answer_nothing_why", { share: percent(none) }] }),
  );
}

export default {
  id: "answer",
  icon: "answer",
  build(panel) {
    const question = el("input", { class: "text line", id: "answer-question", type: "text", autocomplete: "off" });
    const context = area({ id: "answer-context", rows: 5 });
    const ask = primary("answer_ask");
    const place = results("answer_empty");
    const work = worker(place, ask);
    const take = (example) => {
      question.value = example.question;
      context.value = example.context;
    };
    const { chips, picker, begin } = modelAndExamples("answer", {
      inputs: [question, context],
      submit,
      take,
      shown: (example) => example.question,
    });

    async function submit() {
      begin();
      if (!question.value.trim()) return question.focus();
      if (!context.value.trim()) return context.focus();
      const asked = { question: question.value, context: context.value, model: picker.current().id };
      const answer = await work((signal) => post("answer", asked, signal), submit);
      if (answer) show(asked.context, answer);
    }

    function show(text, answer) {
      const best = answer.text ? answer : (answer.candidates[0] ?? { start: 0, end: 0 });
      const kind = answer.text ? "found" : "guess";
      const body = el("div", {}, passage(text, best.start, best.end, kind));
      const look = (one) =>
        fill(body, passage(text, one.start, one.end, one.start === answer.start && answer.text ? "found" : "guess"));
      const rows = answer.candidates.map((one) => ({
        name: one.text,
        share: one.probability,
        chosen: answer.text !== "" && one.start === answer.start && one.end === answer.end,
        take: () => look(one),
      }));
      fill(
        place.body,
        el(
          "div",
          { class: "card" },
          verdict(answer),
          body,
          rows.length > 0 &&
            el("section", { class: "ranked" }, el("h2", { class: "small", say: "answer_others" }), bars(rows)),
        ),
      );
      if (answer.text) announce("answer_said", { answer: answer.text, share: percent(answer.probability) });
      else announce("answer_said_nothing", { share: percent(answer.no_answer_probability) });
    }

    const card = composer({
      fields: [field("answer_question", question), field("answer_context", context)],
      chips: chips.node,
      picker: picker.node,
      ask,
      submit,
    });
    const missing = absent("answer", "answer_none", "answer_none_do", [
      "litebert finetune --task answer --train questions.json --out runs/answers",
      "litebert serve litebert-base-en runs/answers",
    ]);
    panel.append(heading("answer"), card, place.node, eitherModel("answer", [card, place.node], missing));
  },
};
