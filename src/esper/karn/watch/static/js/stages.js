/**
 * Stages of a seed and ops of a decision: their words, colours and signs. Colour never stands alone: each has a word or a sign too.
 */

/** By stage: its word, and its sign. The colour is the CSS variable --stage-NAME, in lower case. */
export const STAGES = {
  DORMANT: { word: "empty", sign: "·" },
  GERMINATED: { word: "germinated", sign: "∘" },
  TRAINING: { word: "training", sign: "▸" },
  BLENDING: { word: "blending", sign: "◐" },
  HOLDING: { word: "holding", sign: "■" },
  FOSSILIZED: { word: "fossil", sign: "◆" },
  PRUNED: { word: "pruned", sign: "✕" },
  EMBARGOED: { word: "embargo", sign: "✕" },
  RESETTING: { word: "resetting", sign: "↺" },
  UNKNOWN: { word: "alive", sign: "▸" },
};

/** What becomes of a seed, in a word and a sign. */
export const OUTCOMES = {
  fossilized: { word: "fossilised", sign: "◆" },
  pruned: { word: "pruned", sign: "✕" },
  unfinished: { word: "unfinished at the end", sign: "○" },
  alive: { word: "alive", sign: "▸" },
};

/** The ops in the order in which they are stacked: what is done most comes first, and is the faintest. */
export const OPS = ["WAIT", "GERMINATE", "ADVANCE", "FOSSILIZE", "PRUNE", "SET_ALPHA_TARGET"];

/** Stages in which a slot holds a module. */
export const OCCUPIED = new Set(["GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "UNKNOWN"]);

/** The heads of a decision in the order in which they are chosen. */
export const HEADS = ["op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve"];

/** The CSS class of a stage. */
export const stageClass = (stage) => `stage-${String(stage).toLowerCase().replace(/[^a-z]/g, "")}`;

/** The word for a stage; one that this page does not know stands for itself. */
export const stageWord = (stage) => STAGES[stage]?.word ?? String(stage).toLowerCase();
