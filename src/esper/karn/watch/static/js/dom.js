/**
 * Making elements. Text always becomes a text node: no name of a run, task, blueprint or slot is ever read as HTML.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element.
 * @param {string} tag
 * @param {Object<string, *>} [attributes] `on…` are listeners, `style` an object, `class` and `data-…` as in HTML; null, undefined and false are left out
 * @param {...(Node|string|number|null|undefined|false|Array)} children
 */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element; otherwise as `h`. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    // Styles are set by property: the page's policy refuses the attribute.
    if (name === "style") for (const [property, set] of Object.entries(value)) element.style.setProperty(property, set);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Put these children in place of whatever an element has. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** A section of a page: a heading, and what stands below it. */
export function section(id, title, ...children) {
  return h("section", { id, class: "section", "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);
}

/** A list of choices of which one holds, as buttons. */
export function choices(label, options, chosen, choose) {
  return h(
    "div",
    { class: "choices", role: "group", "aria-label": label },
    options.map(([value, text]) => h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text)),
  );
}

/** Whether whoever looks wants as little motion as possible. */
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
