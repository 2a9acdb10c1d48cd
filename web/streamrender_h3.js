// The pack's part of ComfyUI's page: puts the live chunk player on the sampler node.

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { executionIds, holdBackStills, watchQueue, workflowNames } from "./player/graph.mjs";
import { Player } from "./player/player.mjs";
import { Sessions } from "./player/sessions.mjs";

const NODES = ["SRH3_StreamSampler", "SRH3_ClipSampler"];
const EVENT = "streamrender_h3.preview";
const MIN_HEIGHT = 380;
const MIN_WIDTH = 380;
const LOOK_AGAIN = 500; // ms; the page does not say when another workflow tab has come to the front

const players = new Map(); // node -> player

function address(session, path) {
  return `/streamrender_h3/preview/${session}/${path}?client=${encodeURIComponent(api.clientId ?? "")}`;
}

function storage() {
  try {
    return globalThis.sessionStorage; // of this browser tab alone, so that two tabs do not mix
  } catch {
    return null;
  }
}

async function fetchState(id) {
  const answer = await api.fetchApi(address(id, "state"), { cache: "no-store" });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.json();
}

const sessions = new Sessions(fetchState, storage());
const workflowName = workflowNames(app, (from, to) => sessions.rename(from, to));

const host = {
  async load(session, path) {
    const answer = await api.fetchApi(address(session.session, path), { cache: "no-store" });
    return answer.ok ? answer.arrayBuffer() : null;
  },
  async policy(session) {
    const answer = await api.fetchApi(address(session.session, "state"), { cache: "no-store" });
    return answer.headers.get("content-security-policy");
  },
  view(file) {
    return api.apiURL(`/view?${new URLSearchParams(file)}`);
  },
  say(text) {
    app.extensionManager?.toast?.add({ severity: "info", summary: text, life: 3000 });
  },
};

function top() {
  return app.rootGraph ?? app.graph;
}

function attach(node, player) {
  const session = node.graph ? sessions.find(executionIds(node, top()), workflowName(), top()?.id) : null;
  if (session?.session !== player.session?.session) player.show(session);
}

function attachAll() {
  for (const [node, player] of players) attach(node, player);
}

function addPlayer(node) {
  const player = new Player(host);
  players.set(node, player);
  const widget = node.addDOMWidget("live preview", "SRH3_PLAYER", player.root, {
    serialize: false,
    hideOnZoom: false,
    getMinHeight: () => MIN_HEIGHT,
    getValue: () => "",
    setValue: () => {},
  });
  widget.serialize = false;
  player.root.addEventListener("wheel", (event) => {
    if (!globalThis.LiteGraph?.vueNodesMode) app.canvas.processMouseWheel(event); // zoom the graph as beside the player
  });
  const [width, height] = node.computeSize();
  node.setSize([Math.max(MIN_WIDTH, node.size[0], width), Math.max(node.size[1], height)]);
  const removed = node.onRemoved;
  node.onRemoved = function (...rest) {
    player.close();
    players.delete(node);
    return removed?.apply(this, rest);
  };
}

function styles() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("player/player.css", import.meta.url).href;
  document.head.append(link);
}

// Here and not in setup: it must stand before the host's own listener, which is added as soon as all modules are loaded.
holdBackStills(api, (node, prompt) => {
  return [...sessions.all.values()].some((one) => String(one.node) === node && one.prompt === prompt && !one.off);
});

app.registerExtension({
  name: "streamrender_h3.player",
  setup() {
    styles();
    sessions.listen((session) => {
      attachAll();
      for (const player of players.values()) if (session && player.session === session) player.show(session);
    });
    api.addEventListener(EVENT, (event) => sessions.receive(event.detail));
    api.addEventListener("reconnected", () => sessions.restore());
    watchQueue(api, workflowName, (prompt, name) => sessions.queued(prompt, name));
    setInterval(attachAll, LOOK_AGAIN);
    restoreWhenKnown();
  },
  nodeCreated(node) {
    if (NODES.includes(node.comfyClass)) addPlayer(node);
  },
  afterConfigureGraph() {
    attachAll();
  },
});

/** The client's id comes with the first message of the server; without it nothing is ours. */
async function restoreWhenKnown() {
  while (!api.clientId) await new Promise((resolve) => setTimeout(resolve, 100));
  await sessions.restore();
}
