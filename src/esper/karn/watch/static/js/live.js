/**
 * A run that is looked at: its overview and its views, kept up to date by its stream. Everything ends with the signal, so that what
 * arrives late for one run is never shown on the page of another.
 */

import { ask, listen, runPath } from "./api.js";

const BETWEEN = 2000;

export class Live {
  /**
   * @param {string} key
   * @param {AbortSignal} signal
   * @param {(state: string) => void} tell how the connection stands
   */
  constructor(key, signal, tell) {
    this.key = key;
    this.signal = signal;
    this.tell = tell;
    this.views = new Map();
    this.listeners = [];
    this.waiting = [];
    this.timer = 0;
    this.gone = false;
    this.lately = false;
    this.status = "";
    this.seen = new IntersectionObserver((entries) => this.onSeen(entries), { rootMargin: "300px" });
    signal.addEventListener("abort", () => {
      clearTimeout(this.timer);
      this.seen.disconnect();
    });
    document.addEventListener("visibilitychange", () => this.refresh(), { signal });
  }

  /** The overview as it is now; from here on the stream tells what changes. */
  async begin() {
    const overview = JSON.parse(await ask(runPath(this.key, "overview"), this.signal));
    this.connect(overview.at);
    this.status = overview.status;
    return overview;
  }

  connect(at) {
    listen(
      (seen) => `${runPath(this.key, "stream")}?from=${encodeURIComponent(seen || at)}`,
      {
        update: ({ overview, events }) => this.heard({ overview, events }, events.length > 0),
        reset: ({ overview }) => this.heard({ overview, events: null }, true),
        gone: ({ error }) => this.heard({ gone: error }, false),
      },
      this.tell,
      this.signal,
    );
  }

  /** Be told of everything that the stream says: {overview, events}, with null for events when all has to be read anew, or {gone}. */
  on(listener) {
    this.listeners.push(listener);
  }

  heard(message, stale) {
    for (const listener of this.listeners) listener(message);
    this.gone = message.gone !== undefined;
    if (this.gone) return;
    // A status can change without an event, and a summary comes with the last one: both are worth another look.
    for (const view of this.views.values()) view.stale ||= stale || message.overview.status !== this.status;
    this.status = message.overview.status;
    this.refresh();
  }

  /**
   * Keep a view up to date while its element is on the screen.
   * @param {string} name the view's address below the run
   * @param {Element} element where it is shown
   * @param {(data: Object) => void} show called with the data whenever it is another
   * @returns {Promise<void>} when it was shown for the first time
   */
  add(name, element, show) {
    const view = { name, element, show, text: "", stale: false, visible: true, busy: false };
    this.views.set(element, view);
    this.seen.observe(element);
    return new Promise((shown) => {
      this.waiting.push({ view, shown });
      if (this.waiting.length === 1) setTimeout(() => this.fetchWaiting());
    });
  }

  /** Ask for what was added, in the order in which it stands on the page: what is seen first is there first. */
  async fetchWaiting() {
    while (this.waiting.length) {
      this.waiting.sort((a, b) => (a.view.element.compareDocumentPosition(b.view.element) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
      const [{ view, shown }] = this.waiting;
      await this.fetch(view);
      this.waiting.splice(this.waiting.findIndex((each) => each.view === view), 1);
      shown();
    }
  }

  onSeen(entries) {
    for (const entry of entries) {
      const view = this.views.get(entry.target);
      // What is hidden, because there was nothing to show yet, is asked for again too.
      if (view) view.visible = entry.isIntersecting || entry.target.hidden;
    }
    this.refresh();
  }

  refresh() {
    if (this.timer || this.gone || document.hidden || this.signal.aborted) return;
    if (![...this.views.values()].some((view) => view.stale && view.visible)) return;
    this.timer = setTimeout(async () => {
      await Promise.all([...this.views.values()].filter((view) => view.stale && view.visible).map((view) => this.fetch(view)));
      this.timer = 0;
      this.refresh();
    }, this.lately ? BETWEEN : 50);
    this.lately = true;
  }

  async fetch(view) {
    if (view.busy) return;
    view.busy = true;
    view.stale = false;
    try {
      const text = await ask(runPath(this.key, view.name), this.signal);
      if (text !== view.text && !this.signal.aborted) {
        view.text = text;
        view.show(JSON.parse(text));
      }
    } catch (error) {
      if (error.name !== "AbortError") this.heard({ gone: error.message }, false);
    } finally {
      view.busy = false;
    }
  }
}
