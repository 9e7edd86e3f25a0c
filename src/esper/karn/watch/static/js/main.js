/**
 * The frame of the page: which page is shown, light or dark, and how the connection stands.
 */

import { ask } from "./api.js";
import { redraw } from "./charts.js";
import { decisionPage } from "./decision.js";
import { h, replace } from "./dom.js";
import { hostPage } from "./host.js";
import { overviewPage } from "./overview.js";
import { runPage } from "./run.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const connection = document.getElementById("connection");
let leave = new AbortController();

const STATES = { live: "live", lost: "connection lost, trying again", closed: "" };

/** Say how the connection stands. */
function tell(state) {
  connection.dataset.state = state;
  connection.textContent = STATES[state];
}

/** The page that the address names. */
function page(parts) {
  if (parts[0] !== "run" || parts.length < 2) return { show: overviewPage, arguments: [], trail: [] };
  const [, key, part, number, deeper, epoch] = parts;
  const run = { text: key, href: `#/run/${encodeURIComponent(key)}` };
  if (part !== "host" || !/^\d+$/.test(number ?? "")) return { show: runPage, arguments: [key], trail: [run] };
  const host = { text: `host ${number}`, href: `${run.href}/host/${number}` };
  if (deeper !== "decision" || !/^\d+$/.test(epoch ?? "")) return { show: hostPage, arguments: [key, Number(number)], trail: [run, host] };
  const decision = { text: `epoch ${epoch}`, href: `${host.href}/decision/${epoch}` };
  return { show: decisionPage, arguments: [key, Number(number), Number(epoch)], trail: [run, host, decision] };
}

async function route() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const found = page(location.hash.replace(/^#\/?/, "").split("/").map(decode));
  document.title = ["Esper", ...found.trail.map((each) => each.text)].reverse().join(" · ");
  replace(crumbs, found.trail.map((each, place) => (place + 1 < found.trail.length ? h("a", { href: each.href }, each.text) : h("span", { "aria-current": "page" }, each.text))));
  const content = h("div", { class: "page" });
  replace(main, content);
  scrollTo(0, 0);
  try {
    await found.show(content, { signal, tell }, ...found.arguments);
  } catch (error) {
    if (error.name === "AbortError") return;
    replace(content, h("h1", {}, "Nothing to show"), h("p", { class: "notice problem", role: "alert" }, error.message), h("p", {}, h("a", { href: "#/" }, "All runs")));
    if (error.status === undefined) throw error;
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function toggleTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("esper-theme", root.dataset.theme);
  } catch {
    // A browser that keeps nothing forgets it with the tab.
  }
  redraw();
}

// The token has done its work: it is in a cookie that scripts cannot read, and leaves the address.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("hashchange", async () => {
  await route();
  main.focus({ preventScroll: true });
});

// One run is watched: that is where to begin.
if (!location.hash || location.hash === "#/") {
  try {
    const { only, runs } = JSON.parse(await ask("/api/runs"));
    if (only && runs.length === 1) history.replaceState(null, "", `#/run/${encodeURIComponent(runs[0].key)}`);
  } catch {
    // The page that is shown next says what is wrong.
  }
}
route();
