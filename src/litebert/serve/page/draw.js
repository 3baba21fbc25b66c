// Drawing attention maps on canvases and curves as SVG.

import { el, svg } from "./dom.js";

/** The accent colour of the theme as [red, green, blue]. */
function accent() {
  const probe = el("span", { class: "accent-probe" });
  document.body.append(probe);
  const channels = getComputedStyle(probe)
    .color.match(/\d+(\.\d+)?/g)
    .slice(0, 3)
    .map(Number);
  probe.remove();
  return channels;
}

const DEEP_FROM = 0.6;

/** Background shade of a text for a value from 0 to 1. Medium shades are skipped: neither dark nor light text has
 * enough contrast on them, in either theme. */
export function heatOf(node, value) {
  const deep = value >= DEEP_FROM;
  const part = deep ? 0.85 + (0.15 * (value - DEEP_FROM)) / (1 - DEEP_FROM) : (0.5 * value) / DEEP_FROM;
  node.style.setProperty("--heat", part.toFixed(4));
  node.classList.toggle("deep", deep);
  return node;
}

/** Attention weights from 0 to 1 on canvases, one pixel each; the square root makes small ones visible. */
export function drawSquares(pairs) {
  const [red, green, blue] = accent();
  for (const [canvas, rows] of pairs) {
    const size = rows.length;
    canvas.width = size;
    canvas.height = size;
    const context = canvas.getContext("2d");
    const image = context.createImageData(size, size);
    rows.flat().forEach((share, i) => image.data.set([red, green, blue, 255 * Math.sqrt(Math.min(1, share))], 4 * i));
    context.putImageData(image, 0, 0);
  }
}

const WIDTH = 280;
const HEIGHT = 150;
const LEFT = 42;
const RIGHT = 10;
const TOP = 12;
const BOTTOM = 24;

export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return trimmed(value);
}

const trimmed = (value) => String(Number(value.toPrecision(3)));

/** About `count` round numbers between two. */
export function ticks(low, high, count, least = 0) {
  const span = high - low || Math.abs(high) || 1;
  const rough = Math.max(span / count, least);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const values = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) values.push(at * step);
  return values;
}

/** A curve of [step, value] points. `look` is called with the point under the pointer, or null. */
export function curve(points, look) {
  const steps = points.map(([step]) => step);
  const values = points.map(([, value]) => value);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.05, high + (Math.abs(high) || 1) * 0.05];
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const x = (step) => LEFT + ((step - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const node = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curve", "aria-hidden": "true" });
  for (const value of ticks(low, high, 4)) {
    node.append(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "grid-line" }));
    node.append(svg("text", { x: LEFT - 6, y: y(value) + 3.5, class: "tick end" }, short(value)));
  }
  for (const step of ticks(first, last, 4, 1))
    node.append(svg("text", { x: x(step), y: HEIGHT - 7, class: "tick middle" }, short(step)));
  if (points.length > 1) {
    const path = points
      .map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`)
      .join("");
    node.append(svg("path", { d: path, class: "line" }));
  }
  const dot = svg("circle", { r: points.length > 1 ? 3 : 4, class: "dot" });
  const rest = () => {
    dot.setAttribute("cx", x(steps.at(-1)));
    dot.setAttribute("cy", y(values.at(-1)));
    look(null);
  };
  node.append(dot);
  rest();
  node.addEventListener("pointermove", (event) => {
    const box = node.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const nearest = points.reduce((best, point) =>
      Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at) ? point : best,
    );
    dot.setAttribute("cx", x(nearest[0]));
    dot.setAttribute("cy", y(nearest[1]));
    look(nearest);
  });
  node.addEventListener("pointerleave", rest);
  return node;
}
