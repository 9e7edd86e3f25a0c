/**
 * Tables of a run: arms that were set against each other, and how blueprints fared.
 */

import { h, replace, section } from "./dom.js";
import { fixed, short, signed, times, whole } from "./format.js";
import { table } from "./tables.js";

/** The sections of arms and blueprints; each shows itself once there is something. */
export function standingsSections(live) {
  return [listed(live, "arms", "Arms", armColumns, armsTold), listed(live, "blueprints", "Blueprints", blueprintColumns, () => BLUEPRINTS)];
}

const BLUEPRINTS = "Of every seed that has ended: how many were kept, and what those that were blended in brought at last, in points of val accuracy.";

function listed(live, name, title, columns, told) {
  const body = h("div");
  const about = h("p", { class: "faint" });
  const root = section(name, title, about, body);
  root.hidden = true;
  let drawn = null;
  live.add(name, root, (rows) => {
    root.hidden = rows.length === 0;
    if (!rows.length) return;
    about.textContent = told(rows);
    if (drawn) drawn.update(rows);
    else replace(body, (drawn = table({ label: title, columns, rows })).element);
  });
  return root;
}

function armsTold(rows) {
  const of = rows.find((row) => row.difference_of)?.difference_of;
  return `Means over hosts; the score is accuracy minus rent.${of ? ` The difference is ${of}, paired by host, with its 95 % interval.` : ""}`;
}

const number = (name, label, show) => ({ name, label, number: true, show: (row) => show(row[name]) });
const difference = ({ difference: found }) => {
  if (!found) return "–";
  return found.low === null || found.low === undefined ? signed(found.mean) : `${signed(found.mean)} (${signed(found.low)} to ${signed(found.high)})`;
};

const armColumns = [
  { name: "arm", label: "arm", show: (row) => row.arm },
  number("hosts", "hosts", whole),
  number("score", "score", fixed),
  { name: "difference", label: "difference", number: true, sort: (row) => row.difference?.mean ?? null, show: difference },
  number("accuracy", "accuracy", fixed),
  number("growth", "size", times),
  number("operations", "operations", short),
  number("fossils", "fossils", fixed),
  number("reward", "reward", (value) => signed(value, 3)),
];

const blueprintColumns = [
  { name: "blueprint", label: "blueprint", show: (row) => row.blueprint },
  number("created", "germinated", whole),
  number("fossilized", "fossilised", whole),
  number("pruned", "pruned", whole),
  number("unfinished", "unfinished", whole),
  number("survival", "kept", (value) => (value === null ? "–" : `${fixed(100 * value, 0)} %`)),
  number("contribution", "brought", signed),
];
