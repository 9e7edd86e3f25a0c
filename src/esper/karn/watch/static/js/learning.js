/**
 * What is decided, earned and learned over a run. A chart that has nothing to show is not there.
 */

import { chart } from "./charts.js";
import { choices, h, replace, section } from "./dom.js";
import { fixed, signed, whole, words } from "./format.js";
import { OPS } from "./stages.js";

/** The sections of actions, learning, rewards and values. */
export function learningSections(live, overview) {
  const x = { bc: "pass", iql: "pass" }[overview.method] ?? "round";
  return [roundsSection(live, x), actionsSection(live), rewardsSection(live), calibrationSection(live)];
}

/** A section with charts, each kept for as long as there is data for it, and hidden while there is none. */
function charted(id, title) {
  const grid = h("div", { class: "charts" });
  const root = section(id, title, grid);
  root.hidden = true;
  const drawn = new Map();
  return {
    root,
    grid,
    show(specs) {
      const there = specs.filter((spec) => spec && spec.series.length > 0 && spec.x.length > 0);
      root.hidden = there.length === 0;
      for (const spec of there) {
        if (drawn.has(spec.title)) drawn.get(spec.title).update(spec);
        else drawn.set(spec.title, chart(spec));
      }
      const elements = there.map((spec) => drawn.get(spec.title).element);
      if (elements.length !== grid.childElementCount || elements.some((element, place) => grid.children[place] !== element)) replace(grid, elements);
    },
  };
}

// Rounds of learning

function roundsSection(live, x) {
  const { root, show } = charted("learning", "Learning");
  live.add("rounds", root, ({ rounds, metrics }) => {
    const lines = (names) => names.filter(([name]) => metrics[name]?.some((value) => value !== null)).map(([name, label, more]) => ({ label, values: metrics[name], ...more }));
    const under = (prefix) => Object.keys(metrics).filter((name) => name.startsWith(prefix)).map((name) => [name, words(name.slice(prefix.length))]);
    const of = (title, about, series, more) => ({ title, about, xLabel: x, x: rounds, series: lines(series), ...more });
    show([
      of("Return", "Mean over the episodes of a round.", [["rollout/ep_rew_mean", "return"]]),
      of("Val accuracy", "Mean over the hosts of a round, in points; against the control is the distance from their twins.", [["rollout/accuracy", "val"], ["rollout/against_control", "against the control"]]),
      of("Conditional entropy by head", "As a share of the largest possible, where a head mattered and had a choice. Near 0, a head has stopped to explore.", under("train/entropy/"), { range: [0, 1.02] }),
      of("How far an update moved the policy", "KL divergence, exact and estimated.", [["train/kl", "KL"], ["train/approx_kl", "estimated KL"]]),
      of("Clip fraction", "Share of steps whose ratio left the clip range.", [["train/clip_fraction", "clip fraction"]]),
      of("Explained variance", "1: the critic knows what is coming; 0: no better than a constant. The ceiling is what a regression on the same observations finds.", [["train/explained_variance", "critic"], ["train/explained_variance_ceiling", "ceiling"]]),
      of("Gradient norms", "By part of the policy, before clipping; on a logarithmic scale.", under("train/gradient_norm/"), { log: true }),
      of("Losses", "", [["train/policy_gradient_loss", "policy"], ["train/value_loss", "value"], ["train/entropy_loss", "entropy"], ["train/prior_loss", "prior"]]),
      of("Held-out log-likelihood", "Of recorded decisions that were not learned from.", [["held_out/log_likelihood", "log-likelihood"]]),
      of("Agreement on held-out decisions", "Share of decisions that are the same.", held(metrics), { range: [0, 1.02] }),
      of("Growth", "Parameters as multiples of the bare host's, mean of a round.", [["rollout/growth", "size"]]),
      of("Seeds of an episode", "Means of a round.", [["rollout/germinated", "germinated"], ["rollout/fossils", "fossilised"], ["rollout/pruned", "pruned"], ["rollout/refused", "decisions refused"]]),
    ]);
  });
  return root;
}

const held = (metrics) => Object.keys(metrics).filter((name) => /^held_out\/.*(agree|accuracy)/.test(name)).map((name) => [name, words(name.replace(/^held_out\/(accuracy\/)?/, ""))]);

// Actions

function actionsSection(live) {
  const { root, grid, show } = charted("actions", "Actions");
  const waits = h("div", { class: "tools" });
  root.insertBefore(waits, grid);
  const state = { data: null, wait: false };

  function draw() {
    const { by_epoch: epochs, by_round: rounds, hosts } = state.data;
    const ops = OPS.filter((op) => state.wait || op !== "WAIT");
    const stacked = (counts) => ops.filter((op) => counts[op].some(Boolean)).map((op) => ({ label: words(op.toLowerCase()), values: counts[op], colour: COLOURS[op] }));
    const told = state.wait ? "" : " WAIT, which is most of them, is left out.";
    show([
      { title: "Decisions by round", about: `Of all hosts of a round.${told}`, xLabel: "round", x: rounds.rounds, series: rounds.rounds.length ? stacked(rounds) : [], stacked: true, whole: true },
      { title: "Decisions by epoch", about: `Of ${whole(hosts)} hosts that are recorded in full.${told}`, xLabel: "epoch", x: epochs.epochs, series: stacked(epochs), stacked: true, whole: true },
    ]);
    const choose = (wait) => {
      state.wait = wait;
      draw();
      waits.querySelector("[aria-pressed=true]")?.focus();
    };
    replace(waits, choices("Which decisions", [[false, "acts"], [true, "with WAIT"]], state.wait, choose));
  }

  live.add("actions", root, (data) => {
    state.data = data;
    draw();
  });
  return root;
}

const COLOURS = { WAIT: 6, GERMINATE: 5, ADVANCE: 0, FOSSILIZE: 2, PRUNE: 1, SET_ALPHA_TARGET: 4 };

// Rewards and values

function rewardsSection(live) {
  const { root, show } = charted("rewards", "Rewards");
  live.add("rewards", root, ({ x, at, components, total }) => {
    const parts = Object.entries(components).filter(([, values]) => values.some(Boolean)).map(([name, values]) => ({ label: words(name), values }));
    const of = x === "round" ? "of an episode, mean of a round" : "of a decision after each epoch, mean over the hosts that are recorded in full";
    show([
      { title: "Reward by component", about: `What is earned ${of}. Losses lie below zero.`, xLabel: x, x: at, series: parts, stacked: true, format: (value) => signed(value, 3) },
      x === "epoch" && { title: "Reward in all", about: `The sum ${of}.`, xLabel: x, x: at, series: [{ label: "reward", values: total }], format: (value) => signed(value, 3) },
    ]);
  });
  return root;
}

function calibrationSection(live) {
  const { root, grid, show } = charted("calibration", "Value calibration");
  const told = h("p", { class: "faint" });
  root.insertBefore(told, grid);
  live.add("calibration", root, (data) => {
    if (!data) return void (root.hidden = true);
    told.textContent = `Of ${whole(data.steps)} decisions on ${whole(data.hosts)} hosts of round ${whole(data.round)}: correlation ${fixed(data.correlation)}, explained variance ${fixed(data.explained_variance)}, bias ${signed(data.bias)} and error ${fixed(data.normalised_error)} standard deviations of the returns.`;
    const values = data.curve.map(([value]) => value);
    show([
      {
        title: "Returns against values",
        about: "Tenths of the decisions by the critic's value: what it expected, and what came. A critic that is right lies on the dashed line.",
        xLabel: "expected",
        x: values,
        series: [
          { label: "came", values: data.curve.map(([, came]) => came), points: true },
          { label: "right", values, colour: 6, dash: 1, width: 1.5 },
        ],
        format: (value) => signed(value, 3),
      },
    ]);
  });
  return root;
}
