// The models that the server has, and which of them can do what.

import { get } from "./api.js";

const ENDPOINTS = {
  fill: "/fill-mask",
  classify: "/classify",
  tag: "/tag",
  answer: "/answer",
  similar: "/similarity",
  search: "/search",
  teach: "/adapt",
  inside: "/inside",
};

let models = [];

export const modelCount = () => models.length;

export const modelsFor = (purpose) => models.filter((model) => model.endpoints.includes(ENDPOINTS[purpose]));

/** The language of a model's texts, as its name tells. */
export const textLanguage = (model) => (model && /(^|[-_/])(zh|chinese)($|[-_/])/i.test(model.id) ? "zh" : "en");

export async function loadModels() {
  models = (await get("v1/models")).data;
  document.dispatchEvent(new CustomEvent("models"));
}
