/**
 * Asking the server, and hearing from it.
 */

/** A refusal of the server, in its own sentence. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The text that an address answers with. */
export async function ask(path, signal) {
  let answer;
  try {
    answer = await fetch(path, { signal, credentials: "same-origin", headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer: esper watch has ended, or its machine cannot be reached.", 0);
  }
  const text = await answer.text();
  if (answer.ok) return text;
  let told = `The server answered with ${answer.status}.`;
  try {
    told = JSON.parse(text).error ?? told;
  } catch {
    // What it says is no JSON, so the number has to do.
  }
  throw new Refused(told, answer.status);
}

/** The address of a run's view. */
export const runPath = (key, view) => `/api/run/${encodeURIComponent(key)}/${view}`;

const BEFORE_RETRY = 2000;
const BEFORE_REST = 5000;

/**
 * A stream of server-sent events that comes back whenever it is lost. The browser says then how far it had seen, so nothing is missed.
 * @param {(seen: string) => string} path the address, given the id of the last event that arrived
 * @param {Object<string, (data: Object) => void>} handlers by the name of the event
 * @param {(state: "live"|"lost"|"closed") => void} tell
 * @param {AbortSignal} signal ends it
 */
export function listen(path, handlers, tell, signal) {
  let source = null;
  let seen = "";
  let timer = 0;
  const open = () => {
    source = new EventSource(path(seen));
    source.onopen = () => tell("live");
    source.onerror = () => {
      tell("lost");
      // A browser comes back by itself after a broken connection, but not after a refusal; both are tried again.
      if (source.readyState === EventSource.CLOSED && !signal.aborted) timer = setTimeout(open, BEFORE_RETRY);
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        if (signal.aborted) return;
        if (event.lastEventId) seen = event.lastEventId;
        handle(JSON.parse(event.data));
      });
    }
  };
  // A browser has six connections to a server; a tab that nobody sees gives its own back, and goes on from where it was.
  const rest = () => {
    clearTimeout(timer);
    if (!document.hidden && source.readyState === EventSource.CLOSED) open();
    else if (document.hidden) timer = setTimeout(() => source.close(), BEFORE_REST);
  };
  document.addEventListener("visibilitychange", rest, { signal });
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    source?.close();
    tell("closed");
  });
  open();
}
