// Previews known to this page: events of the server keep them up to date, gaps are filled by asking for the whole state.
// The host comes in as plain functions, so that all of this runs without a browser.

const STORE = "streamrender_h3.previews";
const MOST = 24;

/** Take an event into the state of its preview. Returns false when something in between was missed. */
export function apply(session, message) {
  if (message.seq <= session.seq) return true; // known already
  if (message.seq !== session.seq + 1) return false;
  session.seq = message.seq;
  if (message.event === "status") {
    if (message.phase) session.phase = message.phase;
    if (message.off) session.off = true;
  } else if (message.event === "chunk") {
    session.chunks.push(message.chunk);
    session.oldest = message.oldest;
    session.mime = message.mime || session.mime;
    session.memory = message.memory ?? session.memory;
  } else if (message.event === "end") {
    session.end = message.end;
  }
  return true;
}

export class Sessions {
  /**
   * @param fetchState (id) => Promise of the state, or of null when the server does not know it (any more)
   * @param storage    where ids survive a reload, as sessionStorage; may be null
   */
  constructor(fetchState, storage) {
    this.fetchState = fetchState;
    this.storage = storage;
    this.all = new Map(); // id -> state; insertion order is age
    this.graphs = new Map(); // prompt id -> the workflow tab it was queued from
    this.listeners = new Set();
    this.loading = new Map();
  }

  /** Call back with every preview that changed. Returns a function that ends it. */
  listen(callback) {
    this.listeners.add(callback);
    return () => this.listeners.delete(callback);
  }

  /** An event from the server. */
  receive(message) {
    if (message.v !== 1) return;
    if (message.event === "open") this.#take({ ...message.state, seq: message.seq });
    else {
      const session = this.all.get(message.session);
      if (session && apply(session, message)) this.#changed(session);
      else this.refresh(message.session);
    }
  }

  /** Ask the server for the state of a preview; one request at a time, repeated if events came meanwhile. */
  async refresh(id) {
    if (this.loading.has(id)) {
      this.loading.set(id, true);
      return;
    }
    this.loading.set(id, false);
    try {
      const state = await this.fetchState(id);
      if (state) this.#take(state);
      else this.forget(id);
    } catch {
      // the server is away; the next event or reconnection asks again
    } finally {
      const again = this.loading.get(id);
      this.loading.delete(id);
      if (again) await this.refresh(id);
    }
  }

  /** Come back to the previews this page knew before a reload or a lost connection. */
  async restore() {
    const stored = this.#read();
    for (const [prompt, graph] of stored.graphs ?? []) if (!this.graphs.has(prompt)) this.graphs.set(prompt, graph);
    const ids = new Set([...(stored.ids ?? []), ...this.all.keys()]);
    for (const id of ids) if (!this.all.get(id)?.end) await this.refresh(id);
  }

  /** Remember from which workflow tab a prompt was queued. */
  queued(prompt, graph) {
    this.graphs.set(prompt, graph);
    this.#write();
    for (const session of this.all.values()) if (session.prompt === prompt) this.#changed(session);
  }

  /** A workflow tab has a new name. */
  rename(from, to) {
    for (const [prompt, graph] of this.graphs) if (graph === from) this.graphs.set(prompt, to);
    this.#write();
  }

  /** The newest preview of a node. `ids` are its ids as texts, `graph` its tab's name, `workflow` the graph's own id. */
  find(ids, graph, workflow) {
    let found = null;
    for (const session of this.all.values()) {
      if (!ids.includes(String(session.node))) continue;
      const home = this.graphs.get(session.prompt);
      const here = home === undefined ? !session.workflow || !workflow || session.workflow === workflow : home === graph;
      if (here) found = session;
    }
    return found;
  }

  forget(id) {
    if (this.all.delete(id)) for (const listener of this.listeners) listener(null);
    this.#write();
  }

  #take(state) {
    const known = this.all.get(state.session);
    if (known && known.seq > state.seq) return;
    const session = known ? Object.assign(known, state) : state;
    this.all.set(session.session, session);
    this.#write();
    this.#changed(session);
  }

  #changed(session) {
    for (const listener of this.listeners) listener(session);
  }

  #read() {
    try {
      return JSON.parse(this.storage?.getItem(STORE)) ?? {};
    } catch {
      return {};
    }
  }

  #write() {
    while (this.graphs.size > MOST) this.graphs.delete(this.graphs.keys().next().value);
    while (this.all.size > MOST) this.all.delete(this.all.keys().next().value);
    try {
      this.storage?.setItem(STORE, JSON.stringify({ ids: [...this.all.keys()], graphs: [...this.graphs] }));
    } catch {
      // a full or forbidden storage costs the re-attachment after a reload, nothing else
    }
  }
}
