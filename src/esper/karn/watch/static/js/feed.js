/**
 * The feed of events, newest first, with filters; new ones come in at the top.
 */

import { ask, runPath } from "./api.js";
import { h, replace, section } from "./dom.js";
import { clock, words } from "./format.js";

const PAGE = 100;
const KEPT = 400;
const WAIT = 250;
const KINDS = [
  ["", "everything"],
  ["anomaly", "red flags"],
  ["decided", "decisions"],
  ["stage_changed", "stages"],
  ["gate_checked", "gates"],
  ["refused", "refusals"],
  ["rolled_back", "rollbacks"],
  ["rewarded", "rewards"],
  ["epoch_finished", "epochs"],
  ["seed_measured", "seeds measured"],
  ["host_started", "hosts begun"],
  ["host_finished", "hosts ended"],
  ["policy_updated", "updates"],
  ["arm_examined", "arms examined"],
  ["round_finished", "rounds"],
  ["note", "notes"],
  ["sink_failed", "sinks failed"],
  ["sink_behind", "sinks behind"],
];

/** The section of the feed. */
export function feed(live) {
  const state = { events: new Map(), before: null, asked: 0 };
  const list = h("ol", { class: "feed", tabindex: "0", "aria-label": "Events, newest first" });
  const more = h("button", { type: "button", onclick: () => load(state.before) }, "Earlier events");
  const kind = h("select", { onchange: () => load(null) }, KINDS.map(([value, text]) => h("option", { value }, text)));
  const host = h("input", { type: "number", min: 0, step: 1, onchange: () => load(null) });
  let timer = 0;
  const text = h("input", { type: "search", oninput: () => (clearTimeout(timer), (timer = setTimeout(() => load(null), WAIT))) });
  const told = h("p", { class: "faint", role: "status" });

  const filtered = () => kind.value !== "" || host.value !== "" || text.value !== "";

  async function load(before) {
    const asked = ++state.asked;
    const query = new URLSearchParams({ limit: String(PAGE), text: text.value });
    if (before !== null) query.set("before", String(before));
    if (kind.value) query.set("kind", kind.value);
    if (host.value !== "") query.set("host", host.value);
    let page;
    try {
      page = JSON.parse(await ask(`${runPath(live.key, "feed")}?${query}`, live.signal));
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = error.message;
      return;
    }
    if (asked !== state.asked) return; // another question was asked meanwhile
    if (before === null) state.events.clear();
    for (const event of page.events) state.events.set(event.seq, event);
    state.before = page.before;
    more.hidden = !page.more;
    told.textContent = state.events.size ? "" : filtered() ? "No event is like that." : "Nothing is recorded yet.";
    draw();
  }

  function draw() {
    const newest = [...state.events.values()].sort((a, b) => b.seq - a.seq);
    replace(list, newest.map(entry));
  }

  live.on(({ events, gone }) => {
    if (gone !== undefined || (events !== null && events.length === 0)) return;
    if (events === null || filtered()) return void load(null);
    // What is above is new; a reader who has scrolled down keeps the place.
    const away = list.scrollTop > 4 ? list.scrollHeight - list.scrollTop : null;
    for (const event of events) {
      if (state.events.has(event.seq)) continue;
      state.events.set(event.seq, event);
      list.prepend(entry(event));
    }
    while (list.childElementCount > KEPT && away === null) {
      // What is dropped can be asked for again: it comes before the oldest that stays.
      state.events.delete(Number(list.lastElementChild.dataset.seq));
      list.lastElementChild.remove();
      state.before = Number(list.lastElementChild.dataset.seq);
      more.hidden = false;
    }
    told.textContent = "";
    if (away !== null) list.scrollTop = list.scrollHeight - away;
  });

  const tools = h("div", { class: "tools" }, h("label", {}, "Kind", kind), h("label", {}, "Host", host), h("label", {}, "Text", text));
  load(null);
  return section("feed", "Events", tools, told, list, h("p"), more);
}

function entry(event) {
  const who = [event.host !== null && `host ${event.host}`, event.epoch !== null && `epoch ${event.epoch}`].filter(Boolean).join(" ");
  return h(
    "li",
    { class: event.kind === "anomaly" ? "anomaly" : null, "data-seq": event.seq },
    h("span", { class: "when" }, clock(event.time)),
    h("span", { class: "who" }, who),
    h("span", { class: "what" }, h("span", { class: "kind" }, words(event.kind)), event.text),
  );
}
