// Widgets shared by the tabs: heading, input form, results and error messages.

import { Failure, asCommand, lastPosted } from "./api.js";
import { el, fill, newId, percent } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { icon } from "./icons.js";
import { modelsFor, textLanguage } from "./models.js";

const SPINNER_DELAY_MS = 300; // shorter waits show no spinner

export function heading(id) {
  return el("header", { class: "lede" }, el("h1", { say: id }), el("p", { say: `${id}_lede` }));
}

/** A labelled field. */
export function field(label, input, { quiet = false } = {}) {
  input.id ||= newId("field");
  return el(
    "div",
    { class: "field" },
    el("label", { class: quiet ? "unseen" : "", htmlFor: input.id, say: label }),
    input,
  );
}

/** A text field that grows with its content. */
export function area(settings = {}) {
  return el("textarea", { class: "text", rows: 2, spellcheck: "false", ...settings });
}

export function button(key, symbol, settings = {}) {
  const { class: kind = "", ...rest } = settings;
  return el(
    "button",
    { type: "button", class: `button ${kind}`, ...rest },
    symbol && icon(symbol),
    el("span", { say: key }),
  );
}

export const primary = (key, settings = {}) =>
  el(
    "button",
    { type: "submit", class: "button primary", ...settings },
    el("span", { say: key }),
    el("span", { class: "spinner", "aria-hidden": "true" }),
  );

const named = (model) => (model.isTaughtHere ? { say: "taught_here" } : { text: model.id });

/** A selection of the model, if there are several. */
export function modelPicker(purpose, changed = () => {}) {
  const select = el("select", { class: "select", on: { change: () => changed(current()) } });
  const only = el("span", { class: "only" });
  const node = el("div", { class: "picker" }, field("model", select, { quiet: true }), only);
  let models = [];
  const current = () => models.find((model) => model.id === select.value) ?? models[0] ?? null;
  const update = () => {
    const before = select.value;
    models = modelsFor(purpose);
    fill(
      select,
      models.map((model) => el("option", { value: model.id, ...named(model) })),
    );
    if (models.some((model) => model.id === before)) select.value = before;
    select.parentElement.hidden = models.length < 2;
    only.hidden = models.length !== 1;
    fill(
      only,
      models.slice(0, 1).map((model) => el("span", named(model))),
    );
    changed(current());
  };
  document.addEventListener("models", update);
  update(); // also before the models are loaded, to avoid a layout shift
  return { node, current };
}

/** Buttons with example texts, in the language of the model. */
function exampleChips(purpose, shown, take) {
  const node = el("div", { class: "chips", role: "group", label: "examples" });
  const update = (model) => {
    const examples = EXAMPLES[textLanguage(model)][purpose];
    fill(
      node,
      el("span", { class: "chips-name", say: "examples" }),
      examples.map((example) =>
        el("button", { type: "button", class: "chip", text: shown(example), on: { click: () => take(example) } }),
      ),
    );
    return examples;
  };
  return { node, update };
}

/**
 * The model picker and the examples of a tab. The first example fills the inputs until the user types or submits, which
 * the tab reports with `begin`. `take` puts an example into the inputs, `shown` is the text of its button.
 */
export function modelAndExamples(
  purpose,
  { inputs, submit, take = (text) => (inputs[0].value = text), shown = (example) => example },
) {
  let begun = false;
  const begin = () => (begun = true);
  const chips = exampleChips(purpose, shown, (example) => {
    take(example);
    submit();
  });
  const picker = modelPicker(purpose, (model) => {
    const examples = chips.update(model);
    if (!begun) take(examples[0]);
  });
  for (const input of inputs) input.addEventListener("input", begin);
  return { chips, picker, begin };
}

/** Inputs, examples and the submit button in a card; Ctrl+Enter also submits. */
export function composer({ fields, chips, extra, picker, ask, submit }) {
  const form = el(
    "form",
    { class: "card composer" },
    el("div", { class: "fields" }, fields),
    chips,
    el("div", { class: "actions" }, extra, el("div", { class: "stretch" }), picker, ask),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return form;
}

/** The area of results, with a placeholder text. */
export function results(empty) {
  const notice = el("div", { class: "notice-place", role: "alert" });
  const body = el("div", { class: "result" }, el("p", { class: "empty", say: empty }));
  const command = el("code");
  const request = el(
    "details",
    { class: "fold request", hidden: true },
    el("summary", { say: "request" }),
    el("pre", { class: "command", tabindex: "0" }, command),
  );
  const node = el("div", { class: "results" }, notice, body, request);
  const tellRequest = () => {
    command.textContent = asCommand(lastPosted());
    request.hidden = !command.textContent;
  };
  return { node, notice, body, tellRequest };
}

/**
 * Run one job at a time: a new job aborts the running one. A failure shows a message with a remedy and a button for
 * `again`; a longer wait shows a spinner, and old results stay until there are new ones. The request of the button
 * `trigger` is shown as a curl command.
 */
export function worker(place, trigger = null) {
  let running = null;
  return async function work(job, again) {
    running?.abort();
    const control = (running = new AbortController());
    const before = lastPosted();
    const mark = (on) => {
      place.node.toggleAttribute("data-waiting", on);
      trigger?.toggleAttribute("data-waiting", on);
    };
    const timer = setTimeout(mark, SPINNER_DELAY_MS, true);
    place.body.setAttribute("aria-busy", "true");
    try {
      const found = await job(control.signal);
      if (running === control) fill(place.notice);
      if (running === control && trigger && lastPosted() !== before) place.tellRequest();
      return running === control ? found : undefined;
    } catch (error) {
      if (running !== control || error.name === "AbortError") return undefined;
      if (!(error instanceof Failure)) throw error;
      fill(place.notice, failureNotice(error, again));
      return undefined;
    } finally {
      clearTimeout(timer);
      if (running === control) {
        mark(false);
        place.body.removeAttribute("aria-busy");
        running = null;
      }
    }
  };
}

const KNOWN = new Set([0, 400, 404, 413, 422, 429, 500, 503, 504]);
const DOABLE = new Set([0, 413, 429, 500, 503, 504]);

function failureNotice(error, again) {
  const status = error.status;
  const todo = [];
  if (status === 429 && error.retryAfter) todo.push(el("p", { say: ["failed_429_wait", { count: error.retryAfter }] }));
  else if (DOABLE.has(status)) todo.push(el("p", { say: `failed_${status}_do` }));
  return el(
    "div",
    { class: "notice bad" },
    icon("warning"),
    el(
      "div",
      {},
      el("strong", { say: KNOWN.has(status) ? `failed_${status}` : "failed_other" }),
      error.message && el("p", { text: error.message }),
      todo,
    ),
    DOABLE.has(status) && button("retry", "again", { on: { click: again } }),
  );
}

/** A hint about missing input. */
export function hint(place, key, values) {
  fill(place.notice, el("div", { class: "notice" }, el("p", { say: [key, values] })));
}

/** The content of a tab without a suitable model. */
export function absent(symbol, title, text, commands, ...more) {
  return el(
    "div",
    { class: "card absent" },
    el("span", { class: "badge-icon" }, icon(symbol)),
    el("h2", { say: title }),
    el("p", { say: text }),
    more,
    commands.map((command) => el("pre", { class: "command", tabindex: "0" }, el("code", { text: command }))),
  );
}

/** Show the tab or the hint, depending on whether there is a suitable model. */
export function eitherModel(purpose, there, missing) {
  const update = () => {
    const has = modelsFor(purpose).length > 0;
    there.forEach((node) => (node.hidden = !has));
    missing.hidden = has;
  };
  document.addEventListener("models", update);
  missing.hidden = true;
  return missing;
}

/** A list of names with bars; `chosen` ones are highlighted. */
export function bars(rows, settings = {}) {
  const most = Math.max(...rows.map((row) => row.share), 1e-9);
  const scale = settings.relative ? most : 1;
  return el(
    "ul",
    { class: "bars" },
    rows.map((row) => {
      const inner = [
        el("span", { class: "bar-name", text: row.name }),
        el(
          "span",
          { class: "bar-track", "aria-hidden": "true" },
          el("span", { class: "bar", style: { "--share": Math.min(1, row.share / scale) } }),
        ),
        el("span", { class: "bar-share", text: row.shown ?? percent(row.share) }),
      ];
      const kind = `bar-row${row.chosen ? " chosen" : ""}`;
      const node = row.take
        ? el("button", { type: "button", class: kind, label: row.label, on: { click: row.take } }, inner)
        : el("div", { class: kind }, inner);
      return el("li", {}, node);
    }),
  );
}
