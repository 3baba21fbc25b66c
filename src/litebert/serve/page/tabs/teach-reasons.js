// Which examples mattered: bars to the right speak for the class, bars to the left against it.

import { el } from "../dom.js";

export function mattered(answer) {
  if (!answer.nearest?.length) return null;
  const most = Math.max(...answer.nearest.map((one) => Math.abs(one.weight)), 1e-9);
  const row = (one) =>
    el(
      "li",
      { class: `reason ${one.weight < 0 ? "against" : "for"}` },
      el(
        "span",
        { class: "reason-text" },
        el("span", { class: "serif", text: one.text }),
        one.is_name && el("span", { class: "quiet" }, " · ", el("span", { say: "teach_name" })),
      ),
      el("span", { class: "pill plain", text: one.label }),
      el(
        "span",
        { class: "reason-track", "aria-hidden": "true" },
        el("span", { class: "bar", style: { "--share": Math.abs(one.weight) / most } }),
      ),
      el(
        "span",
        { class: "reason-side" },
        el("span", { say: one.weight < 0 ? "teach_against" : "teach_for" }),
        ` ${Math.abs(one.weight).toFixed(2)}`,
      ),
    );
  return el(
    "section",
    { class: "reasons" },
    el("h3", { class: "small", say: "teach_mattered" }),
    el("p", { class: "quiet", say: ["teach_mattered_why", { label: answer.label }] }),
    el("ul", {}, answer.nearest.map(row)),
  );
}
