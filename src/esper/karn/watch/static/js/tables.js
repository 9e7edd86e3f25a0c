/**
 * Tables: sorted by a click on a column's head, with as many rows shown as one can read.
 */

import { h, replace } from "./dom.js";

/**
 * @typedef {{name: string, label: string, number?: boolean, show: (row: Object) => (Node|string), sort?: (row: Object) => *}} Column
 * @param {{label: string, columns: Column[], rows: Object[], sorted?: string, down?: boolean, most?: number}} spec
 *   sorted, down: the column that it is sorted by at first, and whether from the largest. most: rows shown before one asks for more.
 * @returns {{element: HTMLElement, update: (rows: Object[]) => void}}
 */
export function table({ label, columns, rows, sorted = "", down = true, most = 50 }) {
  const state = { rows, sorted, down, shown: most };
  const head = h("thead");
  const body = h("tbody");
  const more = h("button", { type: "button", onclick: () => ((state.shown += most * 4), draw()) });
  const element = h("div", {}, h("div", { class: "scroll rows", tabindex: "0", role: "region", "aria-label": label }, h("table", {}, head, body)), more);

  function draw() {
    const column = columns.find((each) => each.name === state.sorted);
    const ordered = column ? order(state.rows, column.sort ?? ((row) => row[column.name]), state.down) : state.rows;
    replace(head, h("tr", {}, columns.map(headCell)));
    replace(body, ordered.slice(0, state.shown).map((row) => h("tr", {}, columns.map((each) => h("td", { class: each.number ? "number" : "name" }, each.show(row))))));
    more.hidden = ordered.length <= state.shown;
    more.textContent = `Show more (${ordered.length - state.shown} left)`;
  }

  function headCell(each) {
    const direction = each.name === state.sorted ? (state.down ? "descending" : "ascending") : null;
    const sort = () => {
      state.down = each.name === state.sorted ? !state.down : Boolean(each.number);
      state.sorted = each.name;
      draw();
      [...head.querySelectorAll("button")].find((button) => button.textContent === each.label)?.focus();
    };
    return h("th", { class: each.number ? "number" : null, scope: "col", "aria-sort": direction }, h("button", { type: "button", onclick: sort }, each.label));
  }

  draw();
  return {
    element,
    update(next) {
      state.rows = next;
      draw();
    },
  };
}

/** What is not there comes last, whichever way it is sorted. */
function order(rows, key, down) {
  return [...rows].sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    if (left === right) return 0;
    if (left === null || left === undefined) return 1;
    if (right === null || right === undefined) return -1;
    return (left < right ? -1 : 1) * (down ? -1 : 1);
  });
}
