// Similarity: a heat map of all pairs. Search: the nearest texts of a list.

import { Failure, post } from "../api.js";
import { announce, el, fill, linesOf, newId } from "../dom.js";
import { heatOf } from "../draw.js";
import {
  absent,
  area,
  bars,
  composer,
  eitherModel,
  field,
  heading,
  hint,
  modelAndExamples,
  primary,
  results,
  worker,
} from "../widgets.js";

const MOST = 40; // more would be no table to look at
const TOP = 10;

const signed = (score) =>
  score
    .toFixed(2)
    .replace(/^-0\.00$/, "0.00")
    .replace("-", "−");

/** A table of numbers whose ground is the darker the larger they are, from the smallest to 1. */
function heatMap(texts, scores) {
  const others = scores.flatMap((row, i) => row.filter((_, j) => i !== j));
  const low = Math.min(...others, 0.999);
  const cell = (score, same) => {
    const node = el("td", { class: same ? "heat same" : "heat", text: signed(score) });
    return same ? node : heatOf(node, Math.max(0, Math.min(1, (score - low) / (1 - low))));
  };
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", label: "similar_table" },
    el(
      "table",
      { class: "heat-map" },
      el("caption", { class: "unseen", say: "similar_table" }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("td"),
          texts.map((text, i) => el("th", { scope: "col" }, el("span", { text: String(i + 1) }))),
        ),
      ),
      el(
        "tbody",
        {},
        scores.map((row, i) =>
          el(
            "tr",
            {},
            el(
              "th",
              { scope: "row" },
              el(
                "div",
                { class: "row-head" },
                el("span", { class: "index", text: String(i + 1) }),
                el("span", { class: "row-text", text: texts[i] }),
              ),
            ),
            row.map((score, j) => cell(score, i === j)),
          ),
        ),
      ),
    ),
  );
}

function mostAlike(scores) {
  let best = { a: 0, b: 1, score: -2 };
  scores.forEach((row, a) =>
    row.forEach((score, b) => {
      if (b > a && score > best.score) best = { a, b, score };
    }),
  );
  return best;
}

function compare() {
  const input = area({ id: "similar-texts", rows: 6 });
  const ask = primary("similar_ask");
  const place = results("similar_empty");
  const work = worker(place, ask);
  const { chips, picker, begin } = modelAndExamples("similar", {
    inputs: [input],
    submit,
    shown: (text) => text.split("\n")[0],
  });

  async function submit() {
    begin();
    const texts = linesOf(input.value);
    if (texts.length < 2) return hint(place, "similar_few");
    if (texts.length > MOST) return hint(place, "similar_many", { most: MOST, count: texts.length });
    const found = await work((signal) => post("similarity", { texts, model: picker.current()?.id }, signal), submit);
    if (!found) return;
    const best = mostAlike(found.scores);
    const score = best.score.toFixed(2);
    fill(
      place.body,
      el(
        "div",
        { class: "card" },
        el(
          "div",
          { class: "most-alike" },
          el("h2", { class: "small", say: ["similar_best", { score }] }),
          [best.a, best.b].map((i) => el("p", { class: "serif", text: texts[i] })),
        ),
        heatMap(texts, found.scores),
      ),
    );
    announce("similar_said", { count: texts.length, a: best.a + 1, b: best.b + 1, score });
  }

  const card = composer({
    fields: [field("similar_texts", input)],
    chips: chips.node,
    picker: picker.node,
    ask,
    submit,
  });
  return el("div", { class: "mode" }, card, place.node);
}

function search() {
  const query = el("input", { class: "text line", id: "search-query", type: "search", autocomplete: "off" });
  const input = area({ id: "search-texts", rows: 7 });
  const ask = primary("search_ask");
  const place = results("search_empty");
  const work = worker(place, ask);
  let uploaded = { id: null, of: null };
  const take = (example) => {
    query.value = example.query;
    input.value = example.texts;
  };
  const { chips, picker, begin } = modelAndExamples("search", {
    inputs: [query, input],
    submit,
    take,
    shown: (example) => example.query,
  });

  async function upload(texts, of, signal) {
    const made = await post("search", { texts, model: picker.current()?.id }, signal);
    uploaded = { id: made.id, of };
  }

  async function find(texts, signal) {
    const of = JSON.stringify([picker.current()?.id, texts]);
    const asked = { query: query.value, top: TOP };
    if (uploaded.of === of)
      try {
        return await post(`search/${uploaded.id}`, asked, signal);
      } catch (error) {
        if (!(error instanceof Failure && error.status === 404)) throw error; // it has expired: once more
      }
    await upload(texts, of, signal);
    return post(`search/${uploaded.id}`, asked, signal);
  }

  async function submit() {
    begin();
    const texts = linesOf(input.value);
    if (!texts.length || !query.value.trim()) return hint(place, "search_few");
    const found = await work((signal) => find(texts, signal), submit);
    if (!found) return;
    const hits = found.results[0];
    const rows = hits.map((hit, i) => ({
      name: hit.text,
      share: Math.max(0, hit.score),
      shown: signed(hit.score),
      chosen: i === 0,
    }));
    fill(
      place.body,
      el(
        "div",
        { class: "card ranked", "data-query": query.value },
        el("h2", { class: "small", say: "search_results" }),
        bars(rows),
      ),
    );
    announce("search_said", { count: hits.length, text: hits[0]?.text ?? "" });
  }

  const card = composer({
    fields: [field("search_query", query), field("search_texts", input)],
    chips: chips.node,
    picker: picker.node,
    ask,
    submit,
  });
  return el("div", { class: "mode" }, card, place.node);
}

/** Two or more ways to use a tab, of which one is shown. */
function switcher(modes) {
  const name = newId("mode");
  const show = (chosen) => modes.forEach(([key, node]) => (node.hidden = key !== chosen));
  show(modes[0][0]);
  return el(
    "fieldset",
    { class: "switch" },
    el("legend", { class: "unseen", say: "similar_mode" }),
    modes.map(([key], number) =>
      el(
        "label",
        {},
        el("input", { type: "radio", name, checked: number === 0, on: { change: () => show(key) } }),
        el("span", { say: key }),
      ),
    ),
  );
}

export default {
  id: "similar",
  icon: "similar",
  build(panel) {
    const modes = [
      ["similar_compare", compare()],
      ["similar_search", search()],
    ];
    const all = el(
      "div",
      {},
      switcher(modes),
      modes.map(([, node]) => node),
    );
    const missing = absent("similar", "similar_none", "similar_none_do", ["litebert serve litebert-base-en"]);
    panel.append(heading("similar"), all, eitherModel("similar", [all], missing));
  },
};
