/**
 * The network drawn as it grows: its blocks in order, slots between them, and seeds beside the line with alpha as opacity; a slider goes
 * over the epochs.
 */

import { calm, h, replace, s } from "./dom.js";
import { fixed, signed, times, whole } from "./format.js";
import { layout } from "./layout.js";
import { OCCUPIED, stageClass, STAGES, stageWord } from "./stages.js";

const PLAY_MS = 350;
const LETTERS = 14;

/**
 * @param {{slots: string[], member: Object, timeline: Object[]}} host
 * @returns {{element: HTMLElement, update: (host: Object) => void, show: (epoch: number) => void}}
 */
export function network(host) {
  const state = { host, epoch: last(host), following: true, timer: 0, narrow: false, chosen: () => {} };
  const drawing = h("div", { class: "network", tabindex: "0", role: "region", "aria-label": "The network" });
  const slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Epoch", oninput: () => go(Number(slider.value)) });
  const play = h("button", { type: "button", onclick: () => (state.timer ? stop() : start()) }, "▶ Play");
  const words = h("output", { role: "status" });
  const element = h("div", { class: "growth" }, drawing, h("div", { class: "scrub" }, play, slider, words));
  new ResizeObserver(() => {
    const narrow = drawing.clientWidth < 560;
    if (narrow !== state.narrow) {
      state.narrow = narrow;
      draw();
    }
  }).observe(drawing);

  function draw() {
    const { host: shown, epoch } = state;
    const end = last(shown);
    slider.max = end;
    slider.value = epoch;
    const at = shown.timeline[epoch];
    if (!at) return;
    replace(drawing, picture(shown, at, state.narrow));
    const size = at.parameters === null ? "" : ` · ${whole(at.parameters)} parameters, ${times(at.parameters / shown.timeline[0].parameters)}`;
    const val = at.val === null ? "" : ` · val ${fixed(at.val)}`;
    words.textContent = `${epoch === 0 ? "before the first epoch" : `epoch ${epoch} of ${shown.row.epochs}`}${val}${size}`;
    slider.setAttribute("aria-valuetext", words.textContent);
    state.chosen(epoch);
  }

  function go(epoch) {
    state.epoch = Math.max(0, Math.min(epoch, last(state.host)));
    state.following = state.epoch === last(state.host);
    draw();
  }

  function start() {
    if (state.epoch === last(state.host)) go(0);
    play.textContent = "❚❚ Pause";
    state.timer = setInterval(() => {
      if (!element.isConnected || state.epoch >= last(state.host)) stop();
      else go(state.epoch + 1);
    }, calm() ? PLAY_MS * 3 : PLAY_MS);
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = 0;
    play.textContent = "▶ Play";
  }

  draw();
  return {
    element,
    show: go,
    /** Call this with the epoch whenever another is shown. */
    onChoice(tell) {
      state.chosen = tell;
    },
    update(next) {
      state.host = next;
      if (state.following) state.epoch = last(next);
      draw();
    },
  };
}

const last = (host) => Math.max(0, host.timeline.length - 1);

function picture(host, at, narrow) {
  const { width, height, wires, blocks, ends, slots } = layout(host.slots, host.member, narrow);
  const about = host.slots.map((slot) => `${slot} ${inWords(at.slots[slot])}`).join("; ");
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The network after epoch ${at.epoch}: ${about}` },
    wires.map((d) => s("path", { class: "wire", d })),
    ends.map(({ x, y, text }) => [s("text", { x, y: y + 4, class: "small" }, text)]),
    blocks.map(block),
    slots.map((place) => seedAt(place, at.slots[place.slot], narrow)),
  );
}

function block({ x, y, wide, high, name, about }) {
  return s(
    "g",
    {},
    s("title", {}, `${name} ${about}`),
    s("rect", { class: "block", x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 7 }),
    s("text", { x, y: about ? y - 3 : y + 4 }, cut(name)),
    about && s("text", { x, y: y + 13, class: "small" }, cut(about)),
  );
}

function seedAt(place, state, narrow) {
  const { x, y, slot, seed } = place;
  const stage = state?.stage ?? "DORMANT";
  const there = OCCUPIED.has(stage);
  const mark = STAGES[stage]?.sign ?? "";
  const label = narrow ? { x: x - 16, y: y + 4, class: "small", style: { "text-anchor": "end" } } : { x, y: y + 26, class: "small" };
  return s(
    "g",
    { class: stageClass(stage), "data-slot": slot, "data-stage": stage },
    there && branch(place, state, narrow),
    s("circle", { class: there ? "slot filled" : "slot", cx: x, cy: y, r: 8 }),
    !there && stage !== "DORMANT" && s("text", { x, y: y + 4, class: "small" }, mark),
    s("text", label, cut(slot, 12)),
    !there && stage !== "DORMANT" && s("text", narrow ? { x: x + 16, y: y + 4, class: "small", style: { "text-anchor": "start" } } : { x, y: y - 16, class: "small" }, stageWord(stage)),
    there && seedBox(seed, state),
  );
}

function branch({ x, y, seed }, state, narrow) {
  const touching = state.alpha === null || state.alpha > 0;
  const drawn = narrow
    ? `M${x} ${y - 24}C${x + 30} ${y - 24} ${seed.x - 80} ${seed.y - 12} ${seed.x - seed.wide / 2} ${seed.y - 8}M${seed.x - seed.wide / 2} ${seed.y + 8}C${seed.x - 80} ${seed.y + 8} ${x + 40} ${y} ${x + 8} ${y}`
    : `M${x - 34} ${y}C${x - 34} ${y - 30} ${x - 30} ${seed.y + 40} ${x - 22} ${seed.y + seed.high / 2}M${x + 22} ${seed.y + seed.high / 2}C${x + 26} ${seed.y + 50} ${x + 6} ${y - 36} ${x} ${y - 8}`;
  return s("path", { class: touching ? "branch" : "branch faint", d: drawn, opacity: touching ? 0.25 + 0.75 * (state.alpha ?? 1) : 0.7 });
}

function seedBox({ x, y, wide, high }, state) {
  const fossil = state.stage === "FOSSILIZED";
  const kind = fossil ? "fossil" : state.stage === "BLENDING" ? "blend" : state.stage === "HOLDING" ? "hold" : "open";
  const box = { x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 9 };
  const alpha = state.alpha ?? 0;
  return s(
    "g",
    { class: `seed ${kind}` },
    s("title", {}, `${state.blueprint}: ${inWords(state)}`),
    s("rect", { class: "under", ...box }),
    s("rect", { class: "body", ...box, "fill-opacity": fossil ? 0.6 : 0.04 + 0.5 * alpha }),
    s("rect", { class: "edge", ...box }),
    s("text", { x, y: y - 8 }, cut(state.blueprint)),
    s("text", { x, y: y + 7, class: "small" }, `${STAGES[state.stage]?.sign ?? ""} ${stageWord(state.stage)}${alpha > 0 && !fossil ? ` α ${fixed(alpha)}` : ""}`),
    s("text", { x, y: y + 21, class: "small" }, state.contribution === null ? "" : `${signed(state.contribution, 1)} points`),
  );
}

/** A slot's state for whoever cannot see it. */
function inWords(state) {
  if (!state || !OCCUPIED.has(state.stage)) return stageWord(state?.stage ?? "DORMANT");
  const alpha = state.alpha === null ? "" : `, alpha ${fixed(state.alpha)}`;
  return `${state.blueprint} ${stageWord(state.stage)}${alpha}${state.contribution === null ? "" : `, ${signed(state.contribution)} points`}`;
}

const cut = (text, letters = LETTERS) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);
