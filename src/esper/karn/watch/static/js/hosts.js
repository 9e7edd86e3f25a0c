/**
 * The hosts of a run: a card for each where they are few, else how they are distributed and a table to pick from.
 */

import { chart } from "./charts.js";
import { choices, h, replace, section } from "./dom.js";
import { fixed, signed, times, whole } from "./format.js";
import { chip, rowsOf } from "./parts.js";
import { spark } from "./spark.js";
import { table } from "./tables.js";

const MOST_CARDS = 16;

/** The section of hosts; it shows itself once there are any. `told` gets the rows of all of them. */
export function hostsSection(live, overview, told) {
  const body = h("div");
  const coarse = h("p", { class: "notice" }, "Decisions, seeds and rewards of the hosts are not recorded at this run's level of telemetry; --telemetry normal records them of a sample of the hosts, debug of all.");
  const root = section("hosts", "Hosts", coarse, h("p"), body);
  root.hidden = true;
  let shown = null;
  live.add("hosts", root, (data) => {
    const every = rowsOf(data);
    told(every);
    const rows = every.filter((row) => row.twin_of === null);
    root.hidden = rows.length === 0;
    coarse.hidden = data.detailed.length > 0 || every.every((row) => row.epoch === 0);
    if (!rows.length) return;
    const kind = rows.length <= MOST_CARDS ? `cards ${rows.map((row) => row.number)}` : "table";
    if (shown?.kind !== kind) {
      shown = kind === "table" ? many(live, rows, overview) : few(live, rows);
      shown.kind = kind;
      replace(body, shown.element);
    } else shown.update(rows);
  });
  return root;
}

// Few hosts: a card for each

function few(live, rows) {
  const cards = new Map(rows.map((row) => [row.number, h("a", { class: "card host", href: hostHref(live.key, row.number) })]));
  const element = h("div", {}, h("p", { class: "faint" }, "Each with its accuracy on val, and dashed that of its twin, which has the same seed and does not grow."), h("div", { class: "cards" }, [...cards.values()]));
  for (const [number, card] of cards) live.add(`host/${number}`, card, (host) => fillCard(card, host));
  return { element, update: () => {} };
}

function fillCard(card, host) {
  const { row, curve, timeline } = host;
  const slots = timeline[timeline.length - 1]?.slots ?? {};
  const differs = row.val_accuracy !== null && row.control_accuracy !== null;
  replace(
    card,
    h("div", { class: "top" }, h("span", { class: "name" }, `Host ${row.number}`), h("span", { class: "label" }, row.ended ? "ended" : `epoch ${row.epoch} of ${row.epochs}`)),
    h(
      "div",
      { class: "row" },
      h("div", {}, h("div", { class: "big" }, fixed(row.val_accuracy)), h("div", { class: "label" }, differs ? `${signed(row.val_accuracy - row.control_accuracy)} against its twin` : "val accuracy")),
      h("div", { class: "size" }, h("b", {}, times(row.parameters_x)), h("div", { class: "label" }, `${whole(row.parameters)} parameters`)),
    ),
    spark(curve.val, `Host ${row.number}, val accuracy`, curve.control),
    h("div", { class: "chips" }, Object.entries(slots).map(([slot, state]) => chip(slot, state))),
  );
}

/** The address of a host's page. */
export const hostHref = (key, number) => `#/run/${encodeURIComponent(key)}/host/${number}`;

// Many hosts: a distribution and a table

function many(live, rows, overview) {
  const spread = h("div", { class: "charts" });
  let drawn = null;
  live.add("distribution", spread, (data) => {
    if (!data.epochs.length) return;
    const spec = distributionSpec(data, overview);
    if (drawn) drawn.update(spec);
    else replace(spread, (drawn = chart(spec)).element);
  });
  const state = { rows, text: "", only: "" };
  const listed = table({ label: "Hosts", columns: columnsOf(live.key, rows), rows, sorted: "number", down: false });
  const filter = h("input", { type: "search", placeholder: "number, task, arm, controller…", oninput: () => ((state.text = filter.value.toLowerCase()), choose()) });
  const told = h("span", { class: "faint", role: "status" });
  const which = h("span");

  function choose(only = state.only) {
    state.only = only;
    const shown = state.rows.filter((row) => (only !== "detailed" || row.detailed) && (only !== "latest" || row.round === state.latest));
    const found = shown.filter((row) => [row.number, row.task, row.arm, row.controller].some((each) => String(each ?? "").toLowerCase().includes(state.text)));
    listed.update(found);
    told.textContent = `${whole(found.length)} of ${whole(state.rows.length)}`;
    const offered = options(state);
    replace(which, offered.length > 1 && choices("Which hosts", offered, only, choose));
  }

  function take(next) {
    state.rows = next;
    state.latest = Math.max(...next.map((row) => row.round));
    choose();
  }
  take(rows);
  return { element: h("div", {}, spread, h("p"), h("div", { class: "tools" }, h("label", {}, "Find", filter), which, told), listed.element), update: take };
}

function options({ rows, latest }) {
  const found = [["", "all"], ["detailed", "recorded in full"]];
  if (rows.some((row) => row.round !== latest)) found.push(["latest", `round ${latest}`]);
  return rows.every((row) => row.detailed) ? found.filter(([name]) => name !== "detailed") : found;
}

function distributionSpec({ epochs, quantiles, n, round, arm }, overview) {
  const names = [["max", "highest"], ["90", "90 %"], ["75", "75 %"], ["50", "median"], ["25", "25 %"], ["10", "10 %"], ["min", "lowest"]];
  const series = names.map(([name, label]) => ({ label, values: quantiles[name], colour: 0, dash: name === "50" ? 0 : 2, plain: !["50", "min", "max"].includes(name), width: name === "50" ? 2.5 : 1 }));
  const of = [arm && `arm ${arm}`, ["learn", "expert"].includes(overview.method) && round ? `round ${round}` : ""].filter(Boolean).join(", ");
  return {
    title: "Val accuracy over the hosts",
    about: `${whole(n[n.length - 1])} hosts${of ? ` of ${of}` : ""}, twins left out. The bands hold half and four fifths of them.`,
    xLabel: "epoch",
    x: epochs,
    series,
    bands: [[1, 5, 0.16], [2, 4, 0.22]],
    height: 260,
  };
}

function columnsOf(key, rows) {
  const link = (row) => h("a", { href: hostHref(key, row.number) }, `host ${row.number}`);
  const plain = (name, label) => ({ name, label, show: (row) => String(row[name] ?? "") });
  const number = (name, label, show) => ({ name, label, number: true, show: (row) => show(row[name]) });
  const varied = (name) => new Set(rows.map((row) => row[name])).size > 1;
  const gain = (row) => (row.val_accuracy === null || row.control_accuracy === null ? null : row.val_accuracy - row.control_accuracy);
  return [
    { name: "number", label: "host", show: link },
    ...(varied("round") ? [number("round", "round", whole)] : []),
    ...(varied("arm") ? [plain("arm", "arm")] : []),
    ...(varied("task") ? [plain("task", "task")] : []),
    ...(varied("controller") ? [plain("controller", "controller")] : []),
    { name: "epoch", label: "epoch", number: true, show: (row) => `${row.epoch}/${row.epochs}` },
    number("val_accuracy", "val", fixed),
    { name: "gain", label: "against twin", number: true, sort: gain, show: (row) => signed(gain(row)) },
    number("parameters_x", "size", times),
    number("live", "live", whole),
    number("fossils", "fossils", whole),
    number("pruned", "pruned", whole),
    number("reward", "reward", (value) => signed(value, 3)),
    { name: "detailed", label: "record", show: (row) => (row.detailed ? "in full" : "course") },
  ];
}
