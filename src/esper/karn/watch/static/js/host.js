/**
 * One host: its network as it grows, its curve beside its twin's, the lives of its seeds and its decisions.
 */

import { chart } from "./charts.js";
import { choices, h, replace, section } from "./dom.js";
import { fixed, signed, times, whole } from "./format.js";
import { hostHref } from "./hosts.js";
import { lanes } from "./lanes.js";
import { Live } from "./live.js";
import { network } from "./network.js";
import { fact } from "./parts.js";

/** The page of a host. */
export async function hostPage(content, { signal, tell }, key, number) {
  const live = new Live(key, signal, tell);
  const notices = h("div", { role: "status" });
  live.on(({ gone }) => gone !== undefined && replace(notices, h("p", { class: "notice problem", role: "alert" }, gone)));
  await live.begin();
  const body = h("div");
  let parts = null;
  replace(content, notices, body);
  await live.add(`host/${number}`, body, (host) => {
    if (parts === null) {
      parts = hostParts(key, host);
      replace(body, parts.elements);
    }
    parts.update(host);
  });
}

function hostParts(key, host) {
  const head = h("div");
  const grown = network(host);
  const curve = chart(accuracySpec(host));
  const size = chart(sizeSpec(host));
  const seeds = lanes(lanesSpec(host));
  const livesPart = section("host-lives", "Lives of its seeds", seeds.element);
  const decided = decisions(key, host);
  const about = h("dl", { class: "facts many" });
  grown.onChoice((epoch) => seeds.mark(epoch));
  return {
    elements: [
      head,
      section("network", "The network as it grows", grown.element),
      livesPart,
      section("course", "Its course", h("div", { class: "charts" }, curve.element, size.element)),
      decided.element,
      section("member", "How it is built and trained", about),
    ],
    update(now) {
      showHead(head, now, key);
      grown.update(now);
      curve.update(accuracySpec(now));
      size.update(sizeSpec(now));
      livesPart.hidden = now.lives.length === 0;
      seeds.update(lanesSpec(now));
      decided.update(now);
      replace(about, Object.entries(now.member).filter(([, value]) => value !== "").map(([name, value]) => fact(name.replaceAll("_", " "), String(value))));
    },
  };
}

function showHead(head, { row }, key) {
  const twin = row.twin_of === null ? null : h("a", { href: hostHref(key, row.twin_of) }, `the twin of host ${row.twin_of}`);
  const told = [row.task, `seed ${row.seed}`, row.controller, row.arm && `arm ${row.arm}`, row.round > 0 && `round ${row.round}`].filter(Boolean).join(" · ");
  const gain = row.val_accuracy !== null && row.control_accuracy !== null ? row.val_accuracy - row.control_accuracy : null;
  const figure = (label, value, note) => h("div", { class: "figure" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), note && h("div", { class: "note" }, note));
  replace(
    head,
    h("div", { class: "head" }, h("h1", {}, `Host ${row.number}`), h("span", { class: "sub" }, row.ended ? `ended after ${row.epoch} epochs` : `epoch ${row.epoch} of ${row.epochs}`)),
    h("p", { class: "sub" }, told, twin && " · ", twin),
    h(
      "div",
      { class: "figures" },
      figure("val accuracy", fixed(row.val_accuracy), gain === null ? null : `${signed(gain)} against its twin at ${fixed(row.control_accuracy)}`),
      row.test_accuracy !== null && figure("test accuracy", fixed(row.test_accuracy), "on the untouched split"),
      figure("parameters", whole(row.parameters), `${times(row.parameters_x)} the bare host's ${whole(row.host_parameters)}`),
      figure("seeds", row.germinated === null ? whole(row.live + row.fossils) : whole(row.germinated), `${whole(row.fossils)} kept, ${row.pruned === null ? "" : `${whole(row.pruned)} pruned, `}${whole(row.live)} alive`),
      row.reward !== null && figure("reward", signed(row.reward, 3), "of all its decisions"),
    ),
    !row.detailed && h("p", { class: "notice" }, "Of this host the course alone is recorded, not its decisions: at this level of telemetry a sample of the hosts is recorded in full. --telemetry debug records all."),
  );
}

function accuracySpec({ curve }) {
  const there = (values) => values.some((value) => value !== null);
  return {
    title: "Accuracy",
    about: "In points. The twin has the same seed, and nothing grows.",
    xLabel: "epoch",
    x: curve.epochs,
    series: [
      { label: "val", values: curve.val, colour: 0, dash: 0 },
      there(curve.control) && { label: "twin, val", values: curve.control, colour: 6, dash: 1 },
      there(curve.train) && { label: "train", values: curve.train, colour: 1, dash: 2, width: 1.5 },
    ].filter(Boolean),
  };
}

function sizeSpec({ curve }) {
  return { title: "Parameters", xLabel: "epoch", x: curve.epochs, series: [{ label: "parameters", values: curve.parameters, colour: 2 }], range: [0, Math.max(1, ...curve.parameters.map((value) => value ?? 0)) * 1.08] };
}

function lanesSpec({ row, slots, lives }) {
  return { lives, epochs: row.epochs, lanes: slots.map((slot) => ({ host: row.number, slot, label: slot })), until: new Map([[row.number, row.epoch]]) };
}

function decisions(key, host) {
  const list = h("ol", { class: "decisions" });
  const tools = h("div", { class: "tools" });
  const root = section("decisions", "Decisions", h("p", { class: "faint" }, "Each opens: what was seen, what was legal, what was done, what came of it."), tools, list);
  const state = { host, acts: host.decisions.some((each) => each.op !== "WAIT") };

  function draw() {
    const every = state.host.decisions;
    const shown = state.acts ? every.filter((each) => each.op !== "WAIT" || each.refused) : every;
    root.hidden = every.length === 0;
    const choose = (acts) => {
      state.acts = acts;
      draw();
      tools.querySelector("[aria-pressed=true]")?.focus();
    };
    replace(tools, choices("Which decisions", [[true, `acts (${every.filter((each) => each.op !== "WAIT").length})`], [false, `all (${every.length})`]], state.acts, choose));
    replace(list, shown.map((each) => entry(key, state.host.row.number, each)));
  }

  return {
    element: root,
    update(now) {
      state.host = now;
      draw();
    },
  };
}

function entry(key, number, each) {
  const earned = each.reward === null ? "" : `${signed(each.reward, 3)}`;
  const told = [h("span", { class: each.op === "WAIT" ? "wait" : "op" }, each.text), each.refused && ` · refused: ${each.refused}`, each.reason && h("span", { class: "faint" }, ` · ${each.reason}`)];
  return h("li", {}, h("a", { href: `${hostHref(key, number)}/decision/${each.epoch}` }, h("span", { class: "faint" }, `epoch ${each.epoch}`), h("span", {}, told), h("span", { class: "number earned", title: "what it earned" }, earned)));
}
