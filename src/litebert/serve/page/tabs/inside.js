// Inside the model: attention by head and depth, and the answer after each pass.

import { post } from "../api.js";
import { announce, el, fill, percent, roving } from "../dom.js";
import { drawSquares } from "../draw.js";
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
import { headView } from "./inside-head.js";
import { readable, readableFills } from "./fill.js";

const TOP = 3;

/** The best few of an answer, as names and shares, whatever the task. */
function best(answer) {
  if (answer.masks) {
    const fills = answer.masks[0].slice(0, TOP);
    const names = readableFills(answer.masks[0]);
    return fills.map((one, number) => ({ name: names[number], share: one.probability }));
  }
  if (answer.probabilities)
    return Object.entries(answer.probabilities)
      .sort((a, b) => b[1] - a[1])
      .slice(0, TOP)
      .map(([name, share]) => ({ name, share }));
  return [];
}

function depthRows(steps) {
  const rows = steps.map((step) => ({ depth: step.depth, best: best(step.answer) }));
  if (!rows.length || !rows.at(-1).best.length) return el("p", { class: "quiet", say: "inside_depths_none" });
  const winner = rows.at(-1).best[0].name;
  const cell = (one) =>
    el(
      "span",
      { class: `guess-cell${one.name === winner ? " chosen" : ""}` },
      el("span", { class: "guess-name", text: one.name }),
      el(
        "span",
        { class: "bar-track", "aria-hidden": "true" },
        el("span", { class: "bar", style: { "--share": one.share } }),
      ),
      el("span", { class: "guess-share", text: percent(one.share) }),
    );
  return el(
    "ol",
    { class: "depths" },
    rows.map((row) =>
      el(
        "li",
        {},
        el("span", { class: "depth-name", say: ["inside_pass", { number: row.depth }] }),
        el("span", { class: "guesses" }, row.best.map(cell)),
      ),
    ),
  );
}

/** The head in which the mask (or the first word) looks most at a word that is not beside it: something to begin with. */
function telling(found, from) {
  const isWord = found.tokens.map((token, i) => Math.abs(i - from) > 1 && !token.startsWith("[")); // neighbours are dull
  let best = { depth: 0, head: 0, share: -1 };
  found.attention.forEach((heads, depth) =>
    heads.forEach((rows, head) => {
      const share = Math.max(...rows[from].filter((_, i) => isWord[i]), 0);
      if (share > best.share) best = { depth, head, share };
    }),
  );
  return best;
}

export default {
  id: "inside",
  icon: "inside",
  build(panel) {
    const input = area({ id: "inside-text" });
    const ask = primary("inside_ask");
    const place = results("inside_empty");
    const work = worker(place, ask);
    let squares = [];
    const { chips, picker, begin } = modelAndExamples("inside", { inputs: [input], submit });

    async function submit() {
      begin();
      const text = input.value;
      if (!text.trim()) return input.focus();
      const found = await work((signal) => post("inside", { text, model: picker.current()?.id }, signal), submit);
      if (!found) return;
      fill(
        place.body,
        el(
          "section",
          { class: "card" },
          el("h2", { say: "inside_depths" }),
          found.by_depth.length > 0 && el("p", { class: "quiet", say: "inside_depths_why" }),
          depthRows(found.by_depth),
        ),
        el(
          "section",
          { class: "card" },
          el("h2", { say: "inside_heads" }),
          el("p", { class: "quiet", say: "inside_heads_why" }),
          attention(found),
        ),
      );
      drawSquares(squares);
      announce("inside_said", { tokens: found.tokens.length, depths: found.depths, heads: found.heads });
    }

    function attention(found) {
      const tokens = found.tokens.map(readable);
      const from = Math.max(tokens.indexOf("[MASK]"), Math.min(1, tokens.length - 1));
      const large = headView(tokens, from);
      const small = [];
      const choose = (depth, head, square) => {
        for (const other of grid.querySelectorAll(".head"))
          other.setAttribute("aria-pressed", String(other === square));
        settle(square);
        large.show(found.attention[depth][head], depth, head);
      };
      const headRow = el(
        "div",
        { class: "grid-names", "aria-hidden": "true" },
        el("span", {}),
        Array.from({ length: found.heads }, (_, head) => el("span", { text: String(head + 1) })),
      );
      const rows = found.attention.map((heads, depth) =>
        el(
          "div",
          { class: "grid-row" },
          el("span", { class: "grid-name", "aria-hidden": "true", text: String(depth + 1) }),
          heads.map((shares, head) => {
            const canvas = el("canvas", { "aria-hidden": "true" });
            small.push([canvas, shares]);
            const square = el(
              "button",
              {
                type: "button",
                class: "head",
                label: ["inside_head", { depth: depth + 1, head: head + 1 }],
                "aria-pressed": "false",
              },
              canvas,
            );
            square.addEventListener("click", () => choose(depth, head, square));
            return square;
          }),
        ),
      );
      const grid = el(
        "div",
        { class: "head-grid", role: "group", label: "inside_heads", style: { "--heads": found.heads } },
        headRow,
        rows,
      );
      const settle = roving(grid, ".head", { columns: () => found.heads, moved: (square) => square.click() });
      squares = [...small, large.square];
      const { depth, head } = telling(found, from);
      choose(depth, head, grid.querySelectorAll(".head")[depth * found.heads + head]);
      return el(
        "div",
        { class: "attention" },
        el(
          "div",
          { class: "grid-frame" },
          el(
            "p",
            { class: "axis", "aria-hidden": "true" },
            el("span", { say: "inside_row" }),
            " ↓  ",
            el("span", { say: "inside_column" }),
            " →",
          ),
          grid,
        ),
        large.node,
      );
    }

    document.addEventListener("theme", () => drawSquares(squares));
    const card = composer({
      fields: [field("inside_text", input)],
      chips: chips.node,
      picker: picker.node,
      ask,
      submit,
    });
    const missing = absent("inside", "inside_none", "similar_none_do", ["litebert serve litebert-base-en"]);
    panel.append(heading("inside"), card, place.node, eitherModel("inside", [card, place.node], missing));
  },
};
