/**
 * Charts: uPlot on a canvas, with a legend, a caption and a table of our own around it. Series differ in dashes as well as in colour.
 */

import { h, replace, s } from "./dom.js";
import { fixed, short } from "./format.js";
import { drawStack, stackRange } from "./stacks.js";

const COLOURS = 7;
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const HEIGHT = 240;

const living = new Set();

/** The value of a CSS variable, as it is now. */
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Draw every chart again, in the colours of the theme that holds now. */
export function redraw() {
  for (const chart of living) chart.draw();
}

/**
 * A chart.
 * @typedef {{label: string, values: (number|null)[], colour?: number, dash?: number, plain?: boolean, points?: boolean, width?: number}} Series
 * @typedef {{title: string, about?: string, xLabel: string, x: number[], series: Series[], bands?: [number, number, number][],
 *   stacked?: boolean, log?: boolean, whole?: boolean, format?: (value: number) => string, range?: [number, number], height?: number}} Spec
 *   bands: pairs of series between which is filled, and how strongly. stacked: bars, one series on another. log: the y axis is logarithmic. whole: values are counts.
 * @param {Spec} spec
 * @returns {{element: HTMLElement, update: (spec: Spec) => void}}
 */
export function chart(spec) {
  return new Chart(spec);
}

class Chart {
  constructor(spec) {
    this.plot = h("div", { class: "plot", role: "img" });
    this.caption = h("figcaption");
    this.legend = h("ul", { class: "legend", "aria-hidden": "true" });
    this.table = h("details", { ontoggle: () => this.fillTable() }, h("summary", {}, "Figures"), h("div", { class: "scroll" }));
    this.element = h("figure", { class: "chart" }, this.caption, this.legend, this.plot, this.table);
    this.uplot = null;
    this.size = new ResizeObserver(() => this.resize());
    this.size.observe(this.plot);
    living.add(this);
    this.update(spec);
  }

  /** Show other data. */
  update(spec) {
    this.spec = spec;
    replace(this.caption, spec.title, spec.about && h("p", { class: "about" }, spec.about));
    this.plot.style.setProperty("--height", `${spec.height ?? HEIGHT}px`);
    this.plot.setAttribute("aria-label", alternative(spec));
    this.draw();
    this.fillTable();
  }

  draw() {
    const width = this.plot.clientWidth;
    this.uplot?.destroy();
    this.uplot = null;
    if (!width) return;
    const { spec } = this;
    const shown = (values) => (spec.log ? values.map((each) => (each > 0 ? each : null)) : values);
    const data = [spec.x, ...spec.series.map((each) => shown(each.values))];
    this.uplot = new uPlot(options(spec, width, this.plot.clientHeight, (place) => this.showLegend(place)), data, this.plot);
    this.showLegend(null);
  }

  resize() {
    if (!this.plot.isConnected) {
      this.end();
      return;
    }
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (!this.uplot) this.draw();
    else if (this.uplot.width !== width || this.uplot.height !== height) this.uplot.setSize({ width, height });
  }

  /** What each series is, and its value under the pointer, or else the last. */
  showLegend(place) {
    const { spec } = this;
    const at = place ?? spec.x.length - 1;
    const resting = spec.stacked && place === null; // the last bar of a stack says nothing about the others
    const one = spec.series.length === 1 && !spec.stacked;
    const head = place === null ? [] : [h("li", { class: "faint" }, `${spec.xLabel} ${short(spec.x[at])}`)];
    if (one && place === null) return void replace(this.legend);
    const items = spec.series.map((each, number) => h("li", {}, swatch(each, number, spec.stacked), each.label, " ", resting ? "" : h("b", {}, value(spec, each.values[at]))));
    replace(this.legend, head, items);
  }

  fillTable() {
    if (!this.table.open) return;
    const { spec } = this;
    const head = h("tr", {}, [spec.xLabel, ...spec.series.map((each) => each.label)].map((name) => h("th", { class: "number" }, name)));
    const rows = spec.x.map((x, place) => h("tr", {}, [short(x), ...spec.series.map((each) => value(spec, each.values[place]))].map((text) => h("td", { class: "number" }, text))));
    replace(this.table.lastElementChild, h("table", {}, h("thead", {}, head), h("tbody", {}, rows)));
  }

  end() {
    living.delete(this);
    this.size.disconnect();
    this.uplot?.destroy();
    this.uplot = null;
  }
}

const value = (spec, number) => (spec.format ?? short)(number);
const colourOf = (series, number) => css(`--series-${(series.colour ?? number) % COLOURS}`);
const dashOf = (series, number) => DASHES[(series.dash ?? number) % DASHES.length];

function options(spec, width, height, hover) {
  const faint = css("--faint");
  const axis = { stroke: faint, grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width,
    height,
    padding: [8, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: !spec.stacked } },
    scales: { x: { time: false, range: xRange(spec) }, y: spec.log ? { distr: 3 } : { range: spec.stacked ? stackRange(spec.series) : yRange(spec) } },
    axes: [
      { ...axis, size: 24, gap: 4, label: spec.xLabel, labelSize: 20, labelGap: 0, labelFont: "12px system-ui, sans-serif", incrs: spec.x.every(Number.isInteger) ? WHOLE : undefined, values: (_, ticks) => ticks.map(short) },
      { ...axis, size: sizeOf, incrs: spec.whole ? WHOLE : undefined, values: (_, ticks) => (spec.log ? ticks.map((tick) => (tick === null ? "" : short(tick))) : tickTexts(ticks)) },
    ],
    series: [{}, ...spec.series.map((each, number) => line(each, number, spec))],
    bands: (spec.bands ?? []).map(([high, low, strength]) => ({ series: [high + 1, low + 1], fill: transparent(colourOf(spec.series[high], high), strength) })),
    hooks: {
      setCursor: [(plot) => hover(plot.cursor.idx ?? null)],
      ...(spec.stacked && { draw: [(plot) => drawStack(plot, spec.series, (number) => colourOf(spec.series[number], number))] }),
    },
  };
}

function line(each, number, spec) {
  if (spec.stacked) return { paths: () => null, points: { show: false } };
  const stroke = colourOf(each, number);
  const few = each.values.filter((item) => item !== null).length < 2;
  const points = { show: Boolean(each.points) || few, size: 6, fill: stroke };
  return { stroke: each.plain ? "transparent" : stroke, width: each.width ?? 2, dash: dashOf(each, number), spanGaps: false, points };
}

const WHOLE = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];

/** A little room beside bars; lines go from edge to edge, a single value stands in the middle. */
function xRange(spec) {
  return (_, low, high) => {
    if (spec.stacked) return [low - 0.6, high + 0.6];
    return low === high ? [low - 1, high + 1] : [low, high];
  };
}

function yRange(spec) {
  return (_, low, high) => {
    if (spec.range) return spec.range;
    if (low === null || high === null) return [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  };
}

/** As wide as the longest label on the axis needs. */
function sizeOf(plot, labels) {
  const longest = Math.max(0, ...(labels ?? []).map((label) => String(label).length));
  return Math.max(34, 12 + longest * 7);
}

/** All ticks with as many decimals as the step between them needs. */
function tickTexts(ticks) {
  const step = Math.abs(ticks[1] - ticks[0]);
  if (!(step >= 1e-6) || Math.max(...ticks.map(Math.abs)) >= 1e4) return ticks.map(short);
  const decimals = [0, 1, 2, 3, 4, 5].find((each) => Math.abs(step * 10 ** each - Math.round(step * 10 ** each)) < 1e-6) ?? 6;
  return ticks.map((tick) => fixed(tick, decimals));
}

function transparent(colour, strength) {
  return `color-mix(in srgb, ${colour} ${Math.round(strength * 100)}%, transparent)`;
}

function swatch(each, number, stacked) {
  const colour = `c${(each.colour ?? number) % COLOURS}`;
  const drawn = stacked || each.plain ? s("rect", { class: "area", width: 12, height: 10, x: 5 }) : s("line", { class: "line", x1: 0, x2: 22, y1: 5, y2: 5, "stroke-dasharray": dashOf(each, number).join(" ") });
  return s("svg", { class: colour, viewBox: "0 0 22 10" }, drawn);
}

/** The chart in words, for whoever cannot see it. */
function alternative(spec) {
  const last = spec.x.length - 1;
  if (last < 0) return `${spec.title}: nothing yet`;
  const ends = spec.series.map((each) => `${each.label} ${value(spec, each.values[last])}`).join(", ");
  return `${spec.title}, over ${spec.xLabel} ${short(spec.x[0])} to ${short(spec.x[last])}. At the end: ${ends}.`;
}
