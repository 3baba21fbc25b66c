// One head, enlarged: point at a token to see where it looks.

import { el, fill, percent, roving } from "../dom.js";
import { drawSquares, heatOf } from "../draw.js";
import { say } from "../language.js";

const NAMED = 5;

/** `chosen`: the token whose look is shown first. */
export function headView(tokens, chosen) {
  const title = el("h3", { class: "small" });
  const canvas = el("canvas", { class: "large", "aria-hidden": "true" });
  const band = el("span", { class: "band", "aria-hidden": "true" });
  const frame = el("div", { class: "square-frame", style: { "--tokens": tokens.length } }, canvas, band);
  const looks = el("p", { class: "looks", "aria-live": "polite" });
  const row = el("div", { class: "tokens", role: "group", label: "inside_tokens" });
  const square = [canvas, []]; // drawn again when the theme changes
  let shares = [];

  const buttons = tokens.map((token, number) =>
    el("button", {
      type: "button",
      class: "token",
      text: token,
      on: { pointerenter: () => look(number), focus: () => look(number), click: () => look(number) },
    }),
  );
  row.append(...buttons);
  const settle = roving(row, ".token");

  function look(number) {
    chosen = number;
    const seen = shares[number];
    const most = Math.max(...seen);
    buttons.forEach((one, i) => {
      heatOf(one, Math.sqrt(seen[i]));
      one.classList.toggle("from", i === number);
    });
    settle(buttons[number]);
    band.style.setProperty("--row", String(number));
    const order = seen
      .map((share, i) => [share, i])
      .sort((a, b) => b[0] - a[0])
      .filter(([share]) => share > 0 && share >= most / 50)
      .slice(0, NAMED);
    fill(
      looks,
      say(el("span", { class: "quiet" }), "inside_looks", { token: tokens[number] }),
      order.map(([share, i]) =>
        el(
          "span",
          { class: "looked" },
          el("span", { class: "serif", text: tokens[i] }),
          " ",
          el("span", { class: "quiet", text: percent(share) }),
        ),
      ),
    );
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const number = Math.floor(((event.clientY - box.top) / box.height) * tokens.length);
    look(Math.max(0, Math.min(tokens.length - 1, number)));
  });

  return {
    node: el(
      "div",
      { class: "large-head" },
      title,
      el(
        "div",
        { class: "large-body" },
        frame,
        el("div", { class: "large-words" }, row, el("p", { class: "quiet", say: "inside_hint" }), looks),
      ),
    ),
    square,
    show(rows, depth, head) {
      shares = rows;
      square[1] = rows;
      say(title, "inside_head", { depth: depth + 1, head: head + 1 });
      drawSquares([square]);
      look(chosen);
    },
  };
}
