/**
 * All runs at a glance.
 */

import { ask, listen } from "./api.js";
import { h, replace } from "./dom.js";
import { ago, count } from "./format.js";
import { METHODS, plural, progressBar, statusOf } from "./parts.js";
import { spark } from "./spark.js";

const AGAIN = 30_000;

/** The page of all runs. */
export async function overviewPage(content, { signal, tell }) {
  const state = { cards: new Map(), order: [], problems: [], filter: "" };
  const listing = JSON.parse(await ask("/api/runs", signal));
  const list = h("div", { class: "cards" });
  const notes = h("div");
  const filter = h("input", { type: "search", placeholder: "name, task, status…", oninput: () => ((state.filter = filter.value.toLowerCase()), draw()) });
  const tools = h("div", { class: "tools" }, h("label", {}, "Find", filter));
  replace(content, h("div", { class: "head" }, h("h1", {}, "Runs"), h("span", { class: "sub" }, listing.folder)), notes, h("p"), tools, list);

  function take(runs, order, problems) {
    for (const card of runs) state.cards.set(card.key, card);
    state.order = order;
    state.problems = problems;
    draw();
  }

  const elements = new Map();
  function draw() {
    const top = state.order.map((key) => state.cards.get(key)).filter((card) => card && !card.parent);
    const shown = top.filter((card) => matches(card, state.filter));
    tools.hidden = top.length < 7;
    replace(notes, state.problems.map((problem) => h("p", { class: "notice problem" }, problem)));
    if (!shown.length) return void replace(list, h("p", { class: "faint" }, top.length ? "No run is like that." : "No runs yet. Start one with esper train heuristic; it appears here."));
    const now = shown.map((card) => {
      const kept = elements.get(card.key);
      if (kept?.card === card) return kept.element;
      const points = [...state.cards.values()].filter((each) => each.parent === card.key).length;
      const element = cardOf(card, points);
      if (kept?.element === document.activeElement) queueMicrotask(() => element.focus());
      elements.set(card.key, { card, element });
      return element;
    });
    list.replaceChildren(...now);
  }

  take(listing.runs, listing.runs.map((card) => card.key), listing.problems);
  listen(
    () => "/api/stream",
    {
      runs: ({ runs, gone, order, problems }) => {
        for (const key of gone) state.cards.delete(key);
        take(runs, order, problems);
      },
    },
    tell,
    signal,
  );
  const again = setInterval(() => (elements.clear(), draw()), AGAIN); // "3 min ago" grows old
  signal.addEventListener("abort", () => clearInterval(again));
}

function matches(card, filter) {
  return [card.name, card.task, card.status, card.method, card.controller, card.command].some((text) => String(text ?? "").toLowerCase().includes(filter));
}

function cardOf(card, points) {
  const href = `#/run/${encodeURIComponent(card.key)}`;
  const name = h("span", { class: "name" }, card.name);
  if (card.loading) return h("a", { class: "card", href }, h("div", { class: "top" }, name), h("p", { class: "faint" }, "Reading…"));
  if (card.error) return h("div", { class: "card" }, h("div", { class: "top" }, name), h("p", { class: "flags" }, card.error));
  const [figure] = card.headline;
  const { progress } = card;
  const done = card.status === "finished" ? `${progress.done} ${plural(progress.unit, progress.done)}` : `${progress.done} of ${progress.total} ${plural(progress.unit, progress.total)}`;
  return h(
    "a",
    { class: "card", href },
    h("div", { class: "top" }, name, statusOf(card.status)),
    h("div", { class: "label" }, [card.task, card.controller, card.method === "run" ? null : METHODS[card.method] ?? card.method].filter(Boolean).join(" · ")),
    h("div", { class: "row" }, h("div", {}, h("div", { class: "big" }, figure?.text ?? "–"), h("div", { class: "label" }, figure?.label ?? "no figure yet")), card.method !== "compare" && spark(card.curve, card.curve_label)),
    progressBar(card),
    h("div", { class: "row label" }, h("span", {}, done, points > 0 && ` · ${count(points, "point")}`), h("span", {}, ago(progress.updated ?? Date.parse(card.created) / 1000))),
    card.flags.length > 0 && h("div", { class: "flags" }, `⚑ ${count(card.flags.length, "red flag")}`),
    card.problem && h("div", { class: "flags" }, card.problem),
  );
}
