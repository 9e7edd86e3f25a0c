/**
 * One run: red flags, headline, hosts, what is learned and done, and the feed of its events.
 */

import { ask } from "./api.js";
import { h, replace } from "./dom.js";
import { feed } from "./feed.js";
import { ago, fixed, signed, words } from "./format.js";
import { hostsSection } from "./hosts.js";
import { learningSections } from "./learning.js";
import { Live } from "./live.js";
import { livesSection } from "./lives.js";
import { fact, METHODS, plural, progressBar, statusOf } from "./parts.js";
import { spark } from "./spark.js";
import { standingsSections } from "./standings.js";

const SHOWN_FLAGS = 3;

/** The page of a run. */
export async function runPage(content, { signal, tell }, key) {
  const live = new Live(key, signal, tell);
  const head = h("div");
  const notices = h("div", { role: "status" });
  const figures = h("div", { class: "figures" });
  const points = h("div");
  const about = h("div");
  const overview = await live.begin();
  let shown = "";
  const show = (now) => {
    const text = JSON.stringify({ ...now, at: null });
    if (text === shown) return;
    shown = text;
    showHead(head, now);
    showNotices(notices, now);
    replace(figures, now.headline.map(figure));
    showAbout(about, now);
  };
  live.on((message) => {
    if (message.gone !== undefined) showGone(notices, message.gone);
    else show(message.overview);
  });
  show(overview);
  const learns = ["learn", "expert", "bc", "iql"].includes(overview.method);
  const lives = livesSection(live);
  const parts = [learningSections(live, overview), hostsSection(live, overview, lives.take), lives.element, standingsSections(live)];
  const judged = ["compare", "headroom", "tune", "sweep"].includes(overview.method);
  if (judged) parts.unshift(parts.pop());
  const ordered = judged ? parts : learns ? [parts[0], parts[3], parts[1], parts[2]] : [parts[1], parts[2], parts[0], parts[3]];
  replace(content, head, notices, figures, points, ordered, feed(live), about);
  if (overview.method === "sweep") await showPoints(points, key, signal);
}

function showHead(head, now) {
  const { progress } = now;
  const kind = [METHODS[now.method] ?? now.method, now.task, now.controller, `seed ${now.seed}`].filter(Boolean).join(" · ");
  const done = `${progress.done} of ${progress.total} ${plural(progress.unit, progress.total)}`;
  const updated = now.status === "running" ? ` · last event ${ago(progress.updated)}` : progress.updated ? ` · ${ago(progress.updated)}` : "";
  replace(head, h("div", { class: "head" }, h("h1", {}, now.name), statusOf(now.status)), h("p", { class: "sub" }, `${kind} · ${done}${updated}`), progressBar(now));
}

function showNotices(notices, now) {
  const flags = now.flags.map((flag) => flagOf(flag, now.key));
  const [first, rest] = [flags.slice(-SHOWN_FLAGS).reverse(), flags.slice(0, -SHOWN_FLAGS).reverse()];
  replace(
    notices,
    first,
    rest.length > 0 && h("details", { class: "earlier" }, h("summary", {}, `${rest.length} earlier red flags`), rest),
    now.problem && h("p", { class: "notice problem" }, now.problem),
    now.status === "interrupted" && stopped(now),
    now.status === "new" && h("p", { class: "notice" }, "This run has not begun to record anything."),
    now.status !== "new" && now.progress.events === 0 && h("p", { class: "notice" }, "No events are recorded of this run: its telemetry is off, or it has only just begun."),
  );
}

function stopped(now) {
  const told = now.go_on ? "The run has stopped before its end. Go on with it, bit for bit, by:" : "The run has stopped before its end; it goes on in the training loop that it is part of.";
  const copy = h("button", { type: "button", onclick: () => navigator.clipboard?.writeText(now.go_on).then(() => (copy.textContent = "Copied")) }, "Copy");
  return h("div", { class: "notice stopped" }, h("p", {}, told), now.go_on && h("div", { class: "command" }, h("code", {}, now.go_on), copy));
}

function showGone(notices, sentence) {
  if (notices.querySelector(".gone")?.textContent === sentence) return;
  notices.querySelector(".gone")?.remove();
  notices.prepend(h("p", { class: "notice problem gone", role: "alert" }, sentence));
}

function flagOf(flag, key) {
  const where = [flag.round && `round ${flag.round}`, flag.host !== null && `host ${flag.host}`, flag.epoch !== null && `epoch ${flag.epoch}`].filter(Boolean).join(", ");
  const place = flag.host === null ? where : h("a", { href: `#/run/${encodeURIComponent(key)}/host/${flag.host}` }, where);
  return h("div", { class: "flag" }, h("p", {}, h("strong", {}, `⚑ ${words(flag.detector)}: `), flag.text), h("p", { class: "faint" }, place));
}

function figure(each) {
  const interval = each.low === null || each.high === null ? null : h("div", { class: "interval" }, `95 % interval ${bound(each, each.low)} to ${bound(each, each.high)}`);
  return h(
    "div",
    { class: "figure" },
    h("div", { class: "label" }, each.label),
    h("div", { class: "value" }, each.text.replace(/^-/, "−")),
    interval,
    each.note && h("div", { class: "note" }, each.note),
    spark(each.trend ?? [], `Trend of ${each.label}`),
  );
}

/** An end of an interval, signed where the figure is. */
const bound = ({ text }, value) => (/^[-+−]/.test(text) ? signed : fixed)(value);

function showAbout(about, now) {
  const facts = [fact("command", h("code", {}, now.command)), fact("folder", h("code", {}, now.path)), fact("begun", new Date(now.created).toLocaleString("en-GB"))];
  for (const [name, value] of [...Object.entries(now.versions), ...Object.entries(now.machine), ...Object.entries(now.about)]) facts.push(fact(words(name), valueOf(name, value)));
  const open = about.querySelector("details")?.open ?? false;
  replace(about, h("section", { class: "section" }, h("details", { open }, h("summary", {}, "About this run: command, versions, machine"), h("dl", { class: "facts" }, facts))));
}

const valueOf = (name, value) => (name === "memory" && typeof value === "number" ? `${(value / 2 ** 30).toFixed(1)} GiB` : String(value));

async function showPoints(place, key, signal) {
  const { runs } = JSON.parse(await ask("/api/runs", signal));
  const mine = runs.filter((card) => card.parent === key);
  if (!mine.length) return;
  const entry = (card) => h("li", {}, h("a", { href: `#/run/${encodeURIComponent(card.key)}` }, card.name), " ", card.status ? statusOf(card.status) : "", " ", card.headline?.[0]?.text ?? "");
  replace(place, h("section", { class: "section" }, h("h2", {}, "Points"), h("ul", { class: "points" }, mine.map(entry))));
}
