/**
 * A small curve without axes.
 */

import { s } from "./dom.js";
import { short } from "./format.js";

const [WIDTH, HEIGHT] = [120, 34];

/**
 * @param {(number|null)[]} values
 * @param {string} label what it shows, for whoever cannot see it
 * @param {(number|null)[]} [twin] another, fainter one on the same scale
 */
export function spark(values, label, twin = []) {
  const there = [...values, ...twin].filter((value) => value !== null && value !== undefined);
  if (values.length < 2 || there.length < 2) return null;
  const [low, high] = [Math.min(...there), Math.max(...there)];
  const longest = Math.max(values.length, twin.length);
  const across = (place) => (place / (longest - 1)) * WIDTH;
  const down = (value) => (high === low ? HEIGHT / 2 : 2 + (1 - (value - low) / (high - low)) * (HEIGHT - 4));
  const path = (each) => {
    let drawn = "";
    let pen = "M";
    each.forEach((value, place) => {
      if (value === null || value === undefined) {
        pen = "M";
        return;
      }
      drawn += `${pen}${across(place).toFixed(1)} ${down(value).toFixed(1)}`;
      pen = "L";
    });
    return drawn;
  };
  const about = `${label}: from ${short(values.find((value) => value !== null))} to ${short(values.findLast((value) => value !== null))}`;
  return s(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": about },
    twin.length > 1 && s("path", { class: "twin", d: path(twin) }),
    s("path", { class: "line", d: path(values) }),
  );
}
