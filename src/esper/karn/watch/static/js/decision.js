/**
 * One decision: what was seen, what was legal and how likely, what was done, and what came of it.
 */

import { ask, runPath } from "./api.js";
import { h, replace, s, section } from "./dom.js";
import { fixed, short, signed, words } from "./format.js";
import { hostHref } from "./hosts.js";
import { chip, fact } from "./parts.js";
import { HEADS } from "./stages.js";
import { table } from "./tables.js";

/** The page of a decision. */
export async function decisionPage(content, { signal, tell }, key, number, epoch) {
  tell("closed");
  const [decision, host] = (await Promise.all([ask(runPath(key, `decision/${number}/${epoch}`), signal), ask(runPath(key, `host/${number}`), signal)])).map((text) => JSON.parse(text));
  const epochs = host.decisions.map((each) => each.epoch);
  const place = epochs.indexOf(epoch);
  const step = (to, text) => (to === undefined ? h("button", { type: "button", disabled: true }, text) : h("a", { class: "step", href: `${hostHref(key, number)}/decision/${to}` }, text));
  replace(
    content,
    h("div", { class: "head" }, h("h1", {}, decision.text), h("span", { class: "sub" }, `host ${number}, after epoch ${epoch}`)),
    h("p", { class: "steps" }, step(epochs[place - 1], "← earlier"), " ", step(epochs[place + 1], "later →"), " ", h("a", { class: "step", href: hostHref(key, number) }, "the host")),
    decision.reason && h("p", {}, decision.reason),
    h("div", { class: "columns" }, seen(decision.seen, host, epoch), legal(decision), after(decision)),
  );
}

function seen({ epoch_finished: epoch, seeds, observed }, host, number) {
  const before = host.timeline[number];
  const facts = epoch && [
    fact("val accuracy", fixed(epoch.val_accuracy)),
    fact("val loss", short(epoch.val_loss)),
    fact("train accuracy", fixed(epoch.train_accuracy)),
    fact("train loss", short(epoch.train_loss)),
    fact("learning rate", short(epoch.learning_rate)),
    fact("parameters", short(epoch.parameters)),
    epoch.gradient_norm !== null && fact("gradient norm", short(epoch.gradient_norm)),
  ];
  return section(
    "seen",
    "What was seen",
    facts ? h("dl", { class: "facts" }, facts.filter(Boolean)) : h("p", { class: "faint" }, "Its measurements are not recorded at this level of telemetry."),
    seeds.length ? seedTable(seeds) : h("p", { class: "faint" }, before ? "No slot had a seed." : ""),
    observed && h("details", {}, h("summary", {}, "Every value that the controller was shown"), values(observed)),
  );
}

function seedTable(seeds) {
  const columns = [
    { name: "slot", label: "seed", show: (seed) => chip(seed.slot, seed) },
    { name: "contribution", label: "brings", number: true, show: (seed) => interval(seed.contribution, seed.contribution_error) },
    { name: "trial_contribution", label: "would bring", number: true, show: (seed) => interval(seed.trial_contribution, seed.trial_error) },
    { name: "gradient_health", label: "health", number: true, show: (seed) => fixed(seed.gradient_health) },
  ];
  return [h("h3", { class: "apart" }, "Seeds"), table({ label: "Seeds", columns, rows: seeds }).element];
}

const interval = (value, error) => (value === null ? "–" : `${signed(value)}${error === null ? "" : ` ± ${fixed(error)}`}`);

function values(observed) {
  const groups = [["host", observed.observed_host], ...Object.entries(observed.slots)];
  return groups.map(([name, group]) => [h("h3", {}, name), h("dl", { class: "facts" }, Object.entries(group).map(([key, value]) => fact(words(key), short(value))))]);
}

/** By head: what could have been chosen, how likely it was, and what was. */
function legal({ legal: options, probabilities, decision, value }) {
  const heads = HEADS.filter((head) => options[head]);
  const ruled = Object.keys(probabilities).length === 0;
  return section(
    "legal",
    "What was legal",
    h("p", { class: "faint" }, ruled ? "A rule decided, so there are no probabilities; what was chosen is marked." : "With the probability of each; what was chosen is marked."),
    heads.map((head) => [h("h3", {}, words(head)), h("div", { class: "bars" }, options[head].map((option, place) => bar(String(option), probabilities[head]?.[place], same(option, decision[head]))))]),
    value !== null && h("p", {}, `The critic expected a return of ${signed(value, 3)}.`),
  );
}

const same = (option, chosen) => String(option) === String(chosen) || (typeof chosen === "number" && Number(option) === chosen);

function bar(name, probability, taken) {
  const track = probability === undefined ? null : s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: taken ? "share taken" : "share", width: 100 * probability, height: 10 }));
  return [
    h("span", { class: taken ? "taken" : null }, taken ? `✓ ${name}` : name, taken && h("span", { class: "hidden" }, " (chosen)")),
    h("span", { class: track && "track" }, track),
    h("span", { class: "number" }, probability === undefined ? "" : `${fixed(100 * probability, 1)} %`),
  ];
}

function after({ refused, after: events, reward, components }) {
  const parts = Object.entries(components).filter(([, value]) => value !== 0);
  return section(
    "after",
    "What came of it",
    refused && h("p", { class: "notice stopped" }, `It was not carried out: ${refused}`),
    events.length > 0 && h("ul", { class: "after" }, events.map((text) => h("li", {}, text))),
    events.length === 0 && !refused && h("p", { class: "faint" }, "Nothing changed in the network."),
    reward === null
      ? h("p", { class: "faint" }, "What it earned is not recorded yet.")
      : [h("p", {}, `It earned ${signed(reward, 4)}.`), h("dl", { class: "facts" }, parts.map(([name, value]) => fact(words(name), signed(value, 4))))],
  );
}
