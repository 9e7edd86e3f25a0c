/**
 * Lives of seeds over the hosts of a run: those that are chosen, never all of a thousand.
 */

import { h, replace, section } from "./dom.js";
import { count, whole } from "./format.js";
import { hostHref } from "./hosts.js";
import { lanes } from "./lanes.js";

const MOST = 24;

/** The section of seeds' lives; it shows itself once there are any. */
export function livesSection(live) {
  const body = h("div");
  const told = h("span", { class: "faint", role: "status" });
  const state = { lives: [], rows: [], rounds: new Map(), from: null, drawn: null };
  const from = h("input", { type: "number", min: 0, step: 1, "aria-label": "From host", oninput: () => ((state.from = from.value === "" ? null : Number(from.value)), draw()) });
  const tools = h("div", { class: "tools" }, h("label", {}, "From host", from), told);
  const root = section("lives", "Lives of seeds", tools, body);
  root.hidden = true;

  function draw() {
    root.hidden = !state.lives.length;
    if (!state.lives.length) return;
    const every = lanesOf(state.lives, live.key);
    // The newest hosts are of interest while a run goes on, the first ones of a run whose hosts all go on together.
    const latest = state.rows.length ? Math.max(...state.rows.map((row) => row.round)) : 0;
    const first = state.from ?? Math.min(...every.filter((lane) => !latest || state.rounds.get(lane.host) === latest).map((lane) => lane.host), Infinity);
    const ahead = every.filter((lane) => lane.host >= first);
    const shown = (ahead.length ? ahead : every).slice(0, MOST);
    const hosts = new Set(shown.map((lane) => lane.host));
    const lives = state.lives.filter((life) => hosts.has(life.host));
    const epochs = Math.max(1, ...state.rows.filter((row) => hosts.has(row.number)).map((row) => row.epochs), ...lives.map((life) => life.ended ?? 0));
    const spec = { lives, epochs, lanes: shown, until: new Map(state.rows.map((row) => [row.number, row.epoch])) };
    tools.hidden = every.length <= MOST;
    told.textContent = `${count(state.lives.length, "seed")} in ${whole(every.length)} slots; ${shown.length} of these are shown`;
    if (state.drawn) state.drawn.update(spec);
    else replace(body, (state.drawn = lanes(spec)).element);
  }

  live.add("lives", root, (lives) => {
    state.lives = lives;
    draw();
  });
  return {
    element: root,
    /** Take the rows of all hosts: how long each lasts, and which are the newest. */
    take(rows) {
      state.rows = rows;
      state.rounds = new Map(rows.map((row) => [row.number, row.round]));
      draw();
    },
  };
}

function lanesOf(lives, key) {
  const found = new Map();
  for (const { host, slot } of lives) found.set(`${host} ${slot}`, { host, slot, label: `host ${host} ${slot}`, href: hostHref(key, host) });
  return [...found.values()].sort((a, b) => a.host - b.host || (a.slot < b.slot ? -1 : 1));
}
