// The models that the server has, and which of them can do what.

import { get } from "./api.js";

const ENDPOINTS = {
  fill: "/fill-mask",
  classify: "/classify",
  tag: "/tag",
  answer: "/answer",
  translate: "/translate",
  similar: "/similarity",
  search: "/search",
  teach: "/adapt",
  inside: "/inside",
};

const BY_VECTORS = new Set(["similar", "search", "teach"]);

let models = [];
let taught = null; // by this page; the server lists it to nobody

export const modelCount = () => models.length;

export function modelsFor(purpose) {
  const able = [...models, ...(taught ? [taught] : [])].filter((model) => model.endpoints.includes(ENDPOINTS[purpose]));
  const plain = able.filter((model) => model.task === null || model.task === "mask"); // whose vectors are best
  return BY_VECTORS.has(purpose) && plain.length ? plain : able;
}

/** The classifier that was taught here, for the tab that classifies; null: there is none any more. */
export function setTaught(made) {
  taught = made && {
    id: made.model,
    isTaughtHere: true,
    task: "few-shot",
    labels: made.classes,
    adapted: true,
    endpoints: [ENDPOINTS.classify],
  };
  document.dispatchEvent(new CustomEvent("models"));
}

/** The language of a model's texts, as its name tells. */
export const textLanguage = (model) => (model && /(^|[-_/])(zh|chinese)($|[-_/])/i.test(model.id) ? "zh" : "en");

export async function loadModels() {
  models = (await get("v1/models")).data;
  document.dispatchEvent(new CustomEvent("models"));
}
