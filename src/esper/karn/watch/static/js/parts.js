/**
 * Small parts that several pages share.
 */

import { h } from "./dom.js";
import { fixed } from "./format.js";
import { stageClass, STAGES, stageWord } from "./stages.js";

const STATUS = { new: "not begun", running: "running", interrupted: "stopped", finished: "finished" };

/** How a run stands. */
export const statusOf = (status) => h("span", { class: `status ${status}` }, STATUS[status] ?? status);

/** How far a run is. */
export function progressBar({ progress, status }) {
  const share = Math.round(100 * progress.share);
  return h(
    "div",
    { class: `progress ${status}`, role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": share, "aria-label": "Progress" },
    h("i", { style: { width: `${share}%` } }),
  );
}

/** A slot as a chip: its stage as colour, sign and word. */
export function chip(slot, state) {
  const seed = state.blueprint && !["DORMANT", "PRUNED", "EMBARGOED", "RESETTING"].includes(state.stage) ? `${state.blueprint} ` : "";
  const alpha = state.stage === "BLENDING" && state.alpha !== null ? ` ${fixed(state.alpha)}` : "";
  return h(
    "span",
    { class: `chip ${stageClass(state.stage)}`, title: `${slot}: ${seed}${stageWord(state.stage)}${alpha}` },
    h("span", { class: "sign", "aria-hidden": "true" }, STAGES[state.stage]?.sign ?? "?"),
    h("span", {}, `${slot} ${seed}${stageWord(state.stage)}${alpha}`),
  );
}

/** Rows of a view that came as columns, as objects. */
export const rowsOf = ({ columns, rows }) => rows.map((row) => Object.fromEntries(columns.map((name, place) => [name, row[place]])));

/** A name and a value in a list of facts. */
export const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** Kinds of run in words. */
export const METHODS = {
  run: "hosts under a controller",
  learn: "PPO",
  expert: "forked search",
  bc: "behaviour cloning",
  iql: "implicit Q-learning",
  compare: "comparison",
  headroom: "headroom",
  tune: "tuning",
  sweep: "sweep",
  gardener: "Gardener",
};

/** A unit of progress, for so many of it. */
export const plural = (unit, number) => (number === 1 ? unit : unit === "pass" ? "passes" : `${unit}s`);
