/**
 * Figures and times as people write them. What is not there is a dash.
 */

const NONE = "–";

/**
 * A number with so many decimals and thousands separated, rounded as Python does it wherever else a figure is shown: by its exact value,
 * and to the even neighbour where it lies half-way. Nothing has no sign.
 */
export function fixed(value, decimals = 2) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const scaled = Math.abs(value) * 10 ** decimals;
  const halfWay = scaled % 1 === 0.5 && Number.isInteger(value * 2 ** (decimals + 1));
  const even = halfWay && Math.floor(scaled) % 2 === 0 ? Math.floor(scaled) / 10 ** decimals : Math.abs(value);
  const [whole, fraction] = even.toFixed(decimals).split(".");
  const text = whole.replace(/\B(?=(\d{3})+$)/g, ",") + (fraction === undefined ? "" : `.${fraction}`);
  return value < 0 && /[1-9]/.test(text) ? `−${text}` : text;
}

/** The same with its sign. */
export function signed(value, decimals = 2) {
  const text = fixed(value, decimals);
  return value > 0 && /[1-9]/.test(text) ? `+${text}` : text;
}

/** A whole number. */
export const whole = (value) => fixed(value, 0);

/** A number of any size in four digits or so: 0.0123, 4.57, 1,234, 12.3M. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (size >= unit) return fixed(value / unit, size / unit < 100 ? 1 : 0) + letter;
  }
  if (size >= 1e4) return fixed(value / 1e3, size < 1e5 ? 1 : 0) + "k";
  if (Number.isInteger(value)) return fixed(value, 0);
  if (size >= 100) return fixed(value, 0);
  if (size >= 1) return fixed(value, 2);
  if (size >= 0.001) return fixed(value, 3);
  return value === 0 ? "0" : value.toExponential(1).replace("-", "−").replace("e−", "e−");
}

/** A multiple: ×3.2. */
export const times = (value) => (value === null || value === undefined ? NONE : `×${fixed(value, value < 10 ? 2 : 1)}`);

/** How long ago a moment was (seconds since 1970), in words. */
export function ago(time, now = Date.now() / 1000) {
  if (time === null || time === undefined) return "";
  const seconds = Math.max(0, now - time);
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  const days = Math.floor(seconds / 86400);
  return days === 1 ? "yesterday" : `${days} days ago`;
}

/** The time of day of a moment, in seconds since 1970. */
export function clock(time) {
  return time === null || time === undefined ? "" : new Date(time * 1000).toLocaleTimeString("en-GB");
}

/** A word of the record for people: reward_hacking becomes "reward hacking". */
export const words = (text) => String(text).replaceAll("_", " ");

/** So many of something: 1 host, 3 hosts. */
export const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
