// The models of the server, by purpose.

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
let taught = null; // a classifier adapted on this page; /v1/models does not list it

export const modelCount = () => models.length;

export function modelsFor(purpose) {
  const able = [...models, ...(taught ? [taught] : [])].filter((model) => model.endpoints.includes(ENDPOINTS[purpose]));
  const plain = able.filter((model) => model.task === null || model.task === "mask"); // the best for embeddings
  return BY_VECTORS.has(purpose) && plain.length ? plain : able;
}

/** Offer a classifier adapted on this page in the tab `classify`; null removes it. */
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

/** The language of a model, by its name. */
export const textLanguage = (model) => (model && /(^|[-_/])(zh|chinese)($|[-_/])/i.test(model.id) ? "zh" : "en");

export async function loadModels() {
  models = (await get("v1/models")).data;
  document.dispatchEvent(new CustomEvent("models"));
}
