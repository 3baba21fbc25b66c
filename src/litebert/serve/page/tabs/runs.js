// Training runs: their curves, looked at again every few seconds while somebody looks.

import { get } from "../api.js";
import { el, fill } from "../dom.js";
import { curve, short } from "../draw.js";
import { say, unsay } from "../language.js";
import { absent, heading, results, worker } from "../widgets.js";

const EVERY_MS = 3000;

function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 60) return ["runs_now", {}];
  if (past < 3600) return ["runs_minutes_ago", { count: Math.floor(past / 60) }];
  if (past < 86400) return ["runs_hours_ago", { count: Math.floor(past / 3600) }];
  return ["runs_days_ago", { count: Math.floor(past / 86400) }];
}

/** A curve with its name and its newest figure; updated in place, so that nothing jumps. */
function chart(name) {
  const value = el("span", { class: "chart-value" });
  const drawn = el("div", { class: "chart-body" });
  const told = el("span", { class: "unseen" });
  const node = el(
    "figure",
    { class: "card chart" },
    el("figcaption", {}, el("span", { class: "chart-name", text: name.replaceAll("_", " ") }), value, told),
    drawn,
  );
  let length = -1;
  return {
    node,
    update(points) {
      if (points.length === length && points.at(-1)[0] === node.step) return;
      length = points.length;
      node.step = points.at(-1)[0];
      const tell = (point) => say(value, "runs_point", { value: short(point[1]), step: point[0] });
      fill(
        drawn,
        curve(points, (point) => tell(point ?? points.at(-1))),
      );
      say(told, "runs_chart", {
        name,
        first: short(points[0][1]),
        start: points[0][0],
        last: short(points.at(-1)[1]),
        end: points.at(-1)[0],
      });
    },
  };
}

export default {
  id: "runs",
  icon: "runs",
  build(panel) {
    const place = results("none_yet");
    const work = worker(place);
    const list = el("div", { class: "run-list", role: "group", label: "runs_list" });
    const command = el("p", { class: "quiet run-command" });
    const charts = el("div", { class: "charts" });
    const none = absent("runs", "runs_none", "runs_none_do", [
      "litebert pretrain --data shards --out runs/pretrain",
      "litebert serve --runs runs",
    ]);
    const view = el("div", { class: "runs" }, list, el("div", { class: "run-view" }, command, charts));
    let chosen = null;
    let drawn = new Map();
    let timer = 0;
    let visible = false;

    function choose(name) {
      chosen = name;
      drawn = new Map();
      fill(charts);
      refresh();
    }

    function showList(runs) {
      const focused = document.activeElement?.dataset?.run;
      fill(
        list,
        runs.map((run) => {
          const [key, values] = ago(run.updated);
          return el(
            "button",
            {
              type: "button",
              class: "run",
              "data-run": run.name,
              "aria-pressed": String(run.name === chosen),
              on: { click: () => choose(run.name) },
            },
            el("span", { class: "run-name", text: run.name.replaceAll(":", "/") }),
            el(
              "span",
              { class: "quiet run-state" },
              el("span", { class: `state ${run.finished ? "done" : "open"}`, "aria-hidden": "true" }),
              el("span", { say: run.finished ? "runs_finished" : "runs_open" }),
              " · ",
              el("span", { say: [key, values] }),
            ),
          );
        }),
      );
      if (focused !== undefined)
        list.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }

    async function look(signal) {
      const { runs } = await get("runs", signal);
      if (!runs.length) return { runs };
      const run = runs.find((one) => one.name === chosen) ?? runs[0];
      return { runs, run, ...(await get(`runs/${encodeURIComponent(run.name)}`, signal)) };
    }

    async function refresh() {
      clearTimeout(timer);
      const found = await work(look, refresh);
      if (found) show(found);
      if (visible && !document.hidden) {
        clearTimeout(timer);
        timer = setTimeout(refresh, EVERY_MS);
      }
    }

    function show({ runs, run, curves }) {
      if (!runs.length) return fill(place.body, none);
      if (!view.isConnected) fill(place.body, view);
      if (run.name !== chosen) {
        chosen = run.name;
        drawn = new Map();
        fill(charts);
      }
      showList(runs);
      unsay(command, run.command ? `litebert ${run.command}` : "");
      const names = Object.keys(curves).filter((name) => curves[name].length);
      if (!names.length) fill(charts, el("p", { class: "quiet", say: "runs_no_curves" }));
      for (const name of names) {
        if (!drawn.has(name)) {
          if (!drawn.size) fill(charts);
          drawn.set(name, chart(name));
          charts.append(drawn.get(name).node);
        }
        drawn.get(name).update(curves[name]);
      }
    }

    document.addEventListener("visibilitychange", () => {
      if (visible && !document.hidden) refresh();
    });
    panel.append(heading("runs"), place.node);
    return {
      shown() {
        visible = true;
        refresh();
      },
      hidden() {
        visible = false;
        clearTimeout(timer);
      },
    };
  },
};
