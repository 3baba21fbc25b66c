// Fill in the blank: candidates for each mask; taking one goes on to the next.

import { post } from "../api.js";
import { announce, el, fill, percent, roving } from "../dom.js";
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

const MASK = "[MASK]";
const TOP = 8;

/** A token as people write it: its mark for the beginning of a word is no part of it. */
export const readable = (token) => token.replaceAll("▁", " ").trim() || "␣";

/** The same for candidates, of which some may go on with the word before: …ly. */
export function readableFills(fills) {
  const isMarked = fills.some((one) => /^▁\p{L}/u.test(one.token));
  const goesOn = (token) => token.startsWith("##") || (isMarked && /^\p{Script=Latin}/u.test(token));
  return fills.map(({ token }) => (goesOn(token) ? `…${token.replace("##", "")}` : readable(token)));
}

/** Words and what stands between them. */
function segments(text) {
  return [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)];
}

export default {
  id: "fill",
  icon: "fill",
  build(panel) {
    const input = area({ id: "fill-text" });
    const ask = primary("fill_ask");
    const place = results("fill_empty");
    const work = worker(place, ask);
    const history = [];
    const startWith = (text) => {
      history.length = 0;
      input.value = text;
    };
    const { chips, picker, begin } = modelAndExamples("fill", { inputs: [input], submit, take: startWith });
    const undo = button("fill_undo", "again", {
      class: "ghost",
      disabled: true,
      on: { click: () => change(history.pop(), false) },
    });
    const blank = button("fill_blank", "plus", { class: "ghost", on: { click: insert } });
    const card = composer({
      fields: [field("text", input)],
      chips: chips.node,
      extra: [blank, undo],
      picker: picker.node,
      ask,
      submit,
    });

    function insert() {
      begin();
      input.setRangeText(MASK, input.selectionStart, input.selectionEnd, "end");
      input.focus();
    }

    function change(text, kept = true) {
      if (kept) history.push(input.value);
      undo.disabled = history.length === 0;
      input.value = text;
      return submit();
    }

    async function submit(current = 0) {
      begin();
      undo.disabled = history.length === 0;
      const text = input.value;
      if (!text.trim()) return input.focus();
      if (!text.includes(MASK)) return show(text, [], 0, history.length ? "fill_done" : "fill_no_mask");
      const found = await work(
        (signal) => post("fill-mask", { text, top: TOP, model: picker.current()?.id }, signal),
        () => submit(current),
      );
      if (found) show(text, found.masks, current);
    }

    function show(text, masks, current, remark = null) {
      const choose = (number) => show(text, masks, number);
      fill(
        place.body,
        el(
          "div",
          { class: "card" },
          sentence(text, masks.length, current, choose),
          remark && el("p", { class: "quiet", say: remark }),
          masks.length > 0 && candidates(masks, current),
        ),
      );
      if (masks.length) {
        const best = masks[current][0];
        announce("fill_said", {
          word: readableFills(masks[current])[0],
          share: percent(best.probability),
          count: masks.length,
        });
      } else announce(remark);
    }

    function candidates(masks, current) {
      const names = readableFills(masks[current]);
      const rows = masks[current].map((one, i) => {
        const word = names[i];
        const share = percent(one.probability);
        return {
          name: word,
          share: one.probability,
          label: ["fill_take", { word, share }],
          take: () => take(one.text),
        };
      });
      return el(
        "section",
        {},
        el("h2", { class: "small", say: ["fill_candidates", { number: current + 1, count: masks.length }] }),
        bars(rows),
      );
    }

    async function take(text) {
      await change(text);
      const next = place.body.querySelector("button.bar-row") ?? place.body.querySelector(".word");
      next?.focus({ preventScroll: true });
    }

    function sentence(text, masks, current, choose) {
      const node = el("p", { class: "sentence", role: "group", label: "text" });
      let start = 0;
      text.split(MASK).forEach((part, number) => {
        if (number > 0) node.append(slot(number - 1, masks, current, choose));
        start += number > 0 ? MASK.length : 0;
        for (const { segment, isWordLike } of segments(part)) {
          node.append(isWordLike ? word(text, segment, start) : segment);
          start += segment.length;
        }
      });
      roving(node, "button")(node.querySelector(".slot.current") ?? node.querySelector("button"));
      return node;
    }

    function slot(number, masks, current, choose) {
      return el("button", {
        type: "button",
        class: `slot${number === current ? " current" : ""}`,
        label: ["fill_slot", { number: number + 1, count: masks }],
        "aria-pressed": String(number === current),
        on: { click: () => choose(number) },
      });
    }

    function word(text, segment, start) {
      const hidden = text.slice(0, start) + MASK + text.slice(start + segment.length);
      const number = text.slice(0, start).split(MASK).length - 1;
      const hide = () => {
        history.push(input.value);
        input.value = hidden;
        submit(number);
      };
      return el("button", {
        type: "button",
        class: "word",
        text: segment,
        label: ["fill_hide", { word: segment }],
        on: { click: hide },
      });
    }

    const missing = absent("fill", "fill_none", "fill_none_do", ["litebert serve litebert-base-en runs/mine"]);
    panel.append(heading("fill"), card, place.node, eitherModel("fill", [card, place.node], missing));
  },
};
