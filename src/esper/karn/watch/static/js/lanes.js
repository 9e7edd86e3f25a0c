/**
 * Swim lanes: the life of every seed over the epochs, a lane for each slot.
 */

import { h, replace, s } from "./dom.js";
import { signed } from "./format.js";
import { OUTCOMES, stageClass, stageWord } from "./stages.js";

const LANE = 26;
const TOP = 6;
const LETTER = 6.6;
const OUTCOME_STAGES = { fossilized: "FOSSILIZED", pruned: "PRUNED", unfinished: "HOLDING", alive: "TRAINING" };

/**
 * @param {{lives: Object[], epochs: number, lanes: {host: number, slot: string, label: string, href?: string}[],
 *   until: Map<number, number>, now?: number}} spec
 *   epochs: how far the axis goes. until: how far each host is, to which a seed that is alive has lived. now: an epoch to mark.
 * @returns {{element: HTMLElement, update: (spec: Object) => void, mark: (epoch: number) => void}}
 */
export function lanes(spec) {
  const drawing = h("div", { class: "lanes", tabindex: "0", role: "region", "aria-label": "Lives of seeds" });
  const element = h("div", {}, drawing, legend());
  let shown = spec;
  let width = 0;
  new ResizeObserver(() => {
    if (drawing.clientWidth && drawing.clientWidth !== width) draw();
  }).observe(drawing);

  function draw() {
    width = drawing.clientWidth;
    if (width) replace(drawing, picture(shown, Math.max(width, 320)));
  }

  return {
    element,
    update(next) {
      shown = { ...next, now: shown.now };
      draw();
    },
    mark(epoch) {
      shown = { ...shown, now: epoch };
      draw();
    },
  };
}

function picture({ lives, epochs, lanes: rows, until, now }, width) {
  const left = Math.min(200, 18 + Math.max(4, ...rows.map((row) => row.label.length)) * LETTER);
  const height = TOP + rows.length * LANE + 34;
  const x = (epoch) => left + (epoch / Math.max(1, epochs)) * (width - left - 16);
  const bottom = TOP + rows.length * LANE;
  const places = new Map(rows.map((row, number) => [`${row.host} ${row.slot}`, number]));
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${lives.length} lives of seeds over ${epochs} epochs: ${inWords(lives)}` },
    ticks(epochs, width - left).map((tick) => [
      s("line", { class: "grid", x1: x(tick), x2: x(tick), y1: TOP, y2: bottom }),
      s("text", { x: x(tick), y: bottom + 15, style: { "text-anchor": "middle" } }, tick),
    ]),
    s("text", { x: (left + width) / 2, y: bottom + 30, style: { "text-anchor": "middle" } }, "epoch"),
    rows.map((row, number) => label(row, TOP + (number + 0.5) * LANE, left, width)),
    lives.filter((life) => places.has(`${life.host} ${life.slot}`)).map((life) => lifeLine(life, TOP + places.get(`${life.host} ${life.slot}`) * LANE, x, until.get(life.host) ?? epochs)),
    now !== undefined && s("line", { class: "now", x1: x(now), x2: x(now), y1: TOP, y2: bottom }),
  );
}

function label(row, y, left, width) {
  const text = s("text", { class: "who", x: 4, y: y + 4 }, row.label.length * LETTER > left - 10 ? `${row.label.slice(0, Math.floor((left - 10) / LETTER) - 1)}…` : row.label);
  return [s("line", { class: "lane", x1: left, x2: width - 16, y1: y, y2: y }), row.href ? s("a", { href: row.href }, text) : text];
}

function lifeLine(life, top, x, until) {
  const end = life.ended ?? until;
  const marks = life.stages.length ? life.stages : [[life.born, OUTCOME_STAGES[life.outcome]]];
  const inside = marks.filter(([epoch]) => epoch <= end);
  const spans = inside.map(([from, stage], number) => [from, number + 1 < inside.length ? inside[number + 1][0] : end, stage]).filter(([, , stage]) => !["PRUNED", "DORMANT", "EMBARGOED", "RESETTING"].includes(stage) || !life.stages.length);
  const outcome = OUTCOMES[life.outcome];
  const told = `${life.blueprint} at ${life.slot}: from epoch ${life.born}${life.ended === null ? "" : ` to ${life.ended}`}, ${outcome?.word ?? life.outcome}${life.contribution === null ? "" : `, ${signed(life.contribution)} points`}`;
  const room = x(end) - x(life.born);
  // A fossil stays: a thin line as far as the host is says so.
  const kept = life.outcome === "fossilized" && s("rect", { class: "span", x: x(end), y: top + LANE / 2 - 2, width: Math.max(0, x(until) - x(end)), height: 4 });
  return s(
    "g",
    { class: "life", "data-outcome": life.outcome },
    s("title", {}, told),
    kept && s("g", { class: stageClass("FOSSILIZED") }, kept),
    spans.map(([from, to, stage]) => s("g", { class: stageClass(stage) }, s("rect", { class: "span", x: x(from), y: top + 5, width: Math.max(2, x(to) - x(from)), height: LANE - 10, rx: 2 }))),
    room > life.blueprint.length * 6 + 10 && s("text", { class: "what", x: x(life.born) + 5, y: top + LANE / 2 + 4 }, life.blueprint),
    life.outcome !== "alive" && s("text", { class: "mark", x: x(end) + 1, y: top + LANE / 2 + 4 }, outcome?.sign ?? ""),
  );
}

function ticks(epochs, width) {
  const step = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000].find((each) => epochs / each <= Math.max(2, width / 70)) ?? epochs;
  return Array.from({ length: Math.floor(epochs / step) + 1 }, (_, number) => number * step);
}

function legend() {
  const entry = (stage) => h("li", { class: stageClass(stage) }, s("svg", { viewBox: "0 0 22 10" }, s("rect", { x: 3, width: 16, height: 10, rx: 2, class: "stage" })), stageWord(stage));
  const marks = ["fossilized", "pruned", "unfinished"].map((name) => h("li", {}, `${OUTCOMES[name].sign} ${OUTCOMES[name].word}`));
  return h("ul", { class: "legend", "aria-label": "Colours and signs" }, ["GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED"].map(entry), marks);
}

function inWords(lives) {
  return Object.entries(OUTCOMES).map(([name, { word }]) => `${lives.filter((life) => life.outcome === name).length} ${word}`).join(", ");
}
