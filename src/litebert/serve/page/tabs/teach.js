// Teach me: a classifier from a handful of examples, and a look at what decides.

import { Failure, download, post, remove } from "../api.js";
import { announce, el, fill, percent } from "../dom.js";
import { EXAMPLES } from "../examples.js";
import { say, words } from "../language.js";
import { setTaught, textLanguage } from "../models.js";
import {
  area,
  absent,
  button,
  composer,
  eitherModel,
  heading,
  hint,
  modelPicker,
  primary,
  results,
  worker,
} from "../widgets.js";
import { classList } from "./teach-classes.js";
import { mattered } from "./teach-reasons.js";
import { shownAnswer } from "./classify.js";

const TYPING_MS = 350; // a pause of this length while typing asks the model
const WIDE = 0.15; // a margin of more says little,
const FEW = 20; // and so does a share of fewer examples

const duration = (seconds) =>
  seconds >= 7200
    ? words("hours", { count: Math.round(seconds / 3600) })
    : words("minutes", { count: Math.max(1, Math.round(seconds / 60)) });

/** The folder in the zip that the server gives. */
const folderOf = (taught) => taught.model.slice(0, "adapted-".length + 8);

/** How good it is, in honest words. */
function quality(taught) {
  if (taught.accuracy_left_out === null) return el("p", { class: "quiet", say: "teach_right_none" });
  const wide = taught.margin === null || taught.margin > WIDE || taught.examples < FEW;
  const how = wide ? "teach_right_wide" : ["teach_right_how", { margin: Math.round(100 * taught.margin) }];
  return el(
    "div",
    { class: "quality" },
    el(
      "p",
      { class: "quality-share" },
      el("strong", { text: percent(taught.accuracy_left_out) }),
      " ",
      el("span", { say: "teach_right" }),
    ),
    el(
      "p",
      { class: "quiet" },
      el("span", { say: how }),
      " ",
      el("span", { say: ["teach_right_chance", { share: percent(taught.chance) }] }),
      taught.with_twice !== null && el("span", { say: ["teach_more", { share: percent(taught.with_twice) }] }),
    ),
  );
}

function mistakes(list) {
  if (!list.length) return null;
  return el(
    "details",
    { class: "fold" },
    el("summary", { say: "teach_mistakes" }),
    el(
      "ul",
      { class: "mistakes" },
      list.map((one) =>
        el(
          "li",
          {},
          el("span", { class: "serif", text: one.text }),
          el("span", { class: "quiet", say: ["teach_mistake", { label: one.label, taken: one.taken_for }] }),
        ),
      ),
    ),
  );
}

export default {
  id: "teach",
  icon: "teach",
  build(panel) {
    const classes = classList();
    const ask = primary("teach_ask");
    const place = results("teach_empty");
    const work = worker(place, ask);
    const starts = el("div", { class: "chips", role: "group", label: "teach_start" });
    let begun = false;
    let taught = null;
    let tries = [];
    const picker = modelPicker("teach", (model) => {
      const sets = EXAMPLES[textLanguage(model)].teach;
      const chip = (settings, set) =>
        el("button", { type: "button", class: "chip", ...settings, on: { click: () => start(set) } });
      fill(
        starts,
        el("span", { class: "chips-name", say: "teach_start" }),
        sets.map((set) => chip({ text: set.name }, set)),
        chip({ say: "teach_blank" }, { classes: { "": "", " ": "" }, tries: [] }),
      );
      if (!begun) take(sets[0]);
    });
    const add = button("teach_add", "plus", { class: "ghost", on: { click: () => classes.add().focus() } });
    const card = composer({ fields: classes.node, chips: starts, extra: add, picker: picker.node, ask, submit });
    classes.node.addEventListener("input", () => (begun = true));

    function take(set) {
      classes.set(set.classes);
      tries = set.tries;
    }

    function start(set) {
      begun = true;
      take(set);
    }

    async function submit() {
      begun = true;
      const given = classes.read();
      const twice = given.find((one, i) => given.findIndex((other) => other.name === one.name) < i);
      if (twice) return hint(place, "teach_twice", { name: twice.name });
      if (given.length < 2) return hint(place, "teach_need_classes");
      const examples = given.flatMap((one) => one.examples.map((text) => ({ text, label: one.name })));
      const before = taught;
      const found = await work((signal) => post("adapt", { examples, model: picker.current()?.id }, signal), submit);
      if (!found) return;
      show(found, place.body.querySelector("#teach-try")?.value ?? "");
      announce("teach_said", { classes: given.length, count: examples.length });
      if (before) remove(`adapt/${before.id}`).catch(() => {}); // it would be forgotten by itself, only later
    }

    async function forget(one) {
      taught = null;
      setTaught(null);
      try {
        await remove(`adapt/${one.id}`);
      } catch (error) {
        if (!(error instanceof Failure && error.status === 404)) throw error; // it has gone by itself
      }
    }

    function show(found, text) {
      taught = found;
      setTaught(found);
      say(ask.firstChild, "teach_again");
      fill(
        place.body,
        el(
          "div",
          { class: "card" },
          el("h2", { say: ["teach_learned", { classes: found.classes.length, count: found.examples }] }),
          quality(found),
          found.hints.length > 0 &&
            el(
              "ul",
              { class: "hints" },
              found.hints.map((one) => el("li", { text: one })),
            ),
          mistakes(found.mistakes),
          takeAway(found),
        ),
        tryIt(found, text),
      );
    }

    function takeAway(found) {
      const keep = () => work(() => saveAs(found), keep);
      const drop = () =>
        work(async () => {
          await forget(found);
          fill(place.body, el("p", { class: "empty", say: "teach_forgotten" }));
        }, drop);
      return el(
        "div",
        { class: "take-away" },
        el(
          "div",
          { class: "buttons" },
          button("teach_download", "download", { on: { click: keep } }),
          button("teach_forget", "cross", { class: "ghost", on: { click: drop } }),
        ),
        el(
          "p",
          { class: "quiet" },
          el("span", { say: ["teach_expires", { time: () => duration(found.expires_in_s) }] }),
          " ",
          el("code", { text: `litebert serve ${folderOf(found)}` }),
        ),
      );
    }

    async function saveAs(found) {
      const url = URL.createObjectURL(await download(`adapt/${found.id}/download`));
      const link = el("a", { href: url, download: `${folderOf(found)}.zip` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    }

    function tryIt(found, given) {
      const input = area({ id: "teach-try", placeholder: "teach_try_text" });
      const place_ = results("teach_try_empty");
      const work_ = worker(place_);
      let timer = 0;
      const ask_ = async () => {
        const text = input.value.trim();
        if (!text) return;
        const answer = await work_((signal) => post(`adapt/${found.id}/explain`, { text }, signal), ask_);
        if (!answer) return;
        fill(place_.body, shownAnswer(answer), mattered(answer), corrections(text, found.classes, answer.label));
        announce("classify_said", { label: answer.label, share: percent(answer.probability) });
      };
      input.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(ask_, TYPING_MS);
      });
      const take = (text) => {
        input.value = text;
        ask_();
      };
      const chips =
        tries.length > 0 &&
        el(
          "div",
          { class: "chips", role: "group", label: "examples" },
          el("span", { class: "chips-name", say: "examples" }),
          tries.map((text) => el("button", { type: "button", class: "chip", text, on: { click: () => take(text) } })),
        );
      const label = el("label", { htmlFor: "teach-try" }, el("h2", { say: "teach_try" }));
      if (given) take(given);
      return el("div", { class: "card" }, label, input, chips, place_.node);
    }

    /** Buttons that give the text to another class and teach again. */
    function corrections(text, names, label) {
      const others = names.filter((name) => name !== label);
      const give = (name) => {
        classes.give(name, text);
        submit();
      };
      return el(
        "div",
        { class: "chips" },
        el("span", { class: "chips-name", say: "teach_correct" }),
        others.map((name) =>
          el("button", { type: "button", class: "chip", text: name, on: { click: () => give(name) } }),
        ),
      );
    }

    const missing = absent("teach", "similar_none", "similar_none_do", ["litebert serve litebert-base-en"]);
    panel.append(heading("teach"), card, place.node, eitherModel("teach", [card, place.node], missing));
  },
};
