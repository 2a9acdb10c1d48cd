import assert from "node:assert/strict";
import { test } from "node:test";

import { executionIds, holdBackStills, watchQueue, workflowNames } from "../../../web/player/graph.mjs";
import { policyAllowsBlobs } from "../../../web/player/media.mjs";
import { Sessions } from "../../../web/player/sessions.mjs";
import { unbundle } from "../../../web/player/source_pictures.mjs";

const state = (id, more = {}) => ({
  session: id,
  node: "9",
  prompt: `prompt of ${id}`,
  workflow: "graph",
  seq: 0,
  chunks: [],
  oldest: 0,
  end: null,
  ...more,
});
const open = (id, more) => ({ v: 1, event: "open", session: id, seq: 1, state: state(id, more) });
const chunk = (id, seq, index) => ({ v: 1, event: "chunk", session: id, seq, chunk: { index }, oldest: 0 });

class Storage {
  values = new Map();
  getItem = (key) => this.values.get(key) ?? null;
  setItem = (key, value) => this.values.set(key, value);
}

test("events in order keep a preview up to date", () => {
  const sessions = new Sessions(async () => assert.fail("nothing was missed"));
  const seen = [];
  sessions.listen((one) => seen.push([one.seq, one.chunks.length]));
  sessions.receive(open("a"));
  sessions.receive(chunk("a", 2, 0));
  sessions.receive({ v: 1, event: "status", session: "a", seq: 3, phase: { chunk: 1, step: 1 } });
  sessions.receive({ v: 1, event: "end", session: "a", seq: 4, end: { reason: "complete" } });
  assert.deepEqual(seen, [
    [1, 0],
    [2, 1],
    [3, 1],
    [4, 1],
  ]);
  assert.equal(sessions.all.get("a").end.reason, "complete");
});

test("a gap is filled by asking for the whole state", async () => {
  const full = state("a", { seq: 3, chunks: [{ index: 0 }, { index: 1 }] });
  let asked = 0;
  const sessions = new Sessions(async () => (asked++, full));
  sessions.receive(open("a"));
  sessions.receive(chunk("a", 3, 1)); // 2 was lost
  await new Promise((resolve) => setTimeout(resolve));
  assert.equal(asked, 1);
  assert.deepEqual(
    sessions.all.get("a").chunks.map((one) => one.index),
    [0, 1],
  );
  sessions.receive(chunk("a", 2, 0)); // late and known already
  assert.equal(sessions.all.get("a").chunks.length, 2);
});

test("many events during one request lead to one more request, not to many", async () => {
  let asked = 0;
  const sessions = new Sessions(async () => {
    asked += 1;
    await new Promise((resolve) => setTimeout(resolve, 5));
    return state("a", { seq: 10 * asked });
  });
  for (let seq = 5; seq < 9; seq += 1) sessions.receive(chunk("a", seq, seq));
  await new Promise((resolve) => setTimeout(resolve, 40));
  assert.equal(asked, 2);
});

test("after a reload the previews of this page are found again, ended and vanished ones too", async () => {
  const storage = new Storage();
  const before = new Sessions(async () => null, storage);
  before.queued("prompt of a", "workflows/one.json");
  before.receive(open("a"));
  before.receive(open("b", { node: "5" }));
  const after = new Sessions(async (id) => (id === "a" ? state("a", { seq: 7 }) : null), storage);
  await after.restore();
  assert.deepEqual([...after.all.keys()], ["a"]);
  assert.equal(after.find(["9"], "workflows/one.json", "graph").session, "a");
  assert.equal(after.find(["9"], "workflows/two.json", "graph"), null);
});

test("a second run replaces the first; two nodes and two workflow tabs stay apart", () => {
  const sessions = new Sessions(async () => null);
  sessions.queued("1", "tab one");
  sessions.queued("2", "tab two");
  sessions.receive(open("first", { prompt: "1" }));
  sessions.receive(open("other node", { prompt: "1", node: "10" }));
  sessions.receive(open("other tab", { prompt: "2" }));
  assert.equal(sessions.find(["9"], "tab one", "graph").session, "first");
  assert.equal(sessions.find(["10"], "tab one", "graph").session, "other node");
  assert.equal(sessions.find(["9"], "tab two", "graph").session, "other tab");
  sessions.receive(open("second", { prompt: "1" }));
  assert.equal(sessions.find(["9"], "tab one", "graph").session, "second");
});

test("a prompt that somebody else queued is told apart by the graph's own id", () => {
  const sessions = new Sessions(async () => null);
  sessions.receive(open("a"));
  assert.equal(sessions.find(["9"], "any tab", "graph").session, "a");
  assert.equal(sessions.find(["9"], "any tab", "another graph"), null);
});

test("what a full or forbidden storage costs is the memory of a reload, nothing else", () => {
  const sessions = new Sessions(async () => null, {
    getItem: () => "not json",
    setItem: () => {
      throw new Error("full");
    },
  });
  sessions.receive(open("a"));
  assert.equal(sessions.all.size, 1);
});

test("a server that is away loses nothing", async () => {
  const sessions = new Sessions(async () => {
    throw new Error("away");
  });
  sessions.receive(open("a"));
  await sessions.refresh("a");
  assert.equal(sessions.all.size, 1);
});

test("messages of another version are left alone", () => {
  const sessions = new Sessions(async () => assert.fail("must not ask"));
  sessions.receive({ ...open("a"), v: 2 });
  assert.equal(sessions.all.size, 0);
});

test("node ids are texts, with the way through subgraphs in front", () => {
  const top = { nodes: [] };
  const inner = { nodes: [] };
  const deep = { nodes: [] };
  const sampler = { id: 7, graph: inner };
  const deeper = { id: "3", graph: deep };
  inner.nodes.push(sampler, { id: 4, subgraph: deep });
  deep.nodes.push(deeper);
  top.nodes.push({ id: 12, subgraph: inner }, { id: "13", subgraph: inner });
  assert.deepEqual(executionIds({ id: 9, graph: top }, top), ["9"]);
  assert.deepEqual(executionIds(sampler, top), ["12:7", "13:7"]);
  assert.deepEqual(executionIds(deeper, top), ["12:4:3", "13:4:3"]);
});

test("a workflow that is saved under another name keeps its previews", () => {
  const workflow = { path: "workflows/Unsaved.json" };
  const app = { extensionManager: { workflow: { activeWorkflow: workflow } } };
  const names = [];
  const name = workflowNames(app, (from, to) => names.push([from, to]));
  assert.equal(name(), "workflows/Unsaved.json");
  workflow.path = "workflows/drive.json";
  assert.equal(name(), "workflows/drive.json");
  assert.deepEqual(names, [["workflows/Unsaved.json", "workflows/drive.json"]]);
});

test("queueing works as before and tells the prompt's workflow", async () => {
  const told = [];
  const api = { async queuePrompt(number, data) { return { prompt_id: `${number}${data}` }; } };
  watchQueue(api, () => "tab", (prompt, name) => told.push([prompt, name]));
  assert.deepEqual(await api.queuePrompt(0, "x"), { prompt_id: "0x" });
  assert.deepEqual(told, [["0x", "tab"]]);
});

test("only stills of nodes that play themselves are held back", () => {
  const api = new EventTarget();
  holdBackStills(api, (node, prompt) => node === "9" && prompt === "p");
  const shown = [];
  api.addEventListener("b_preview_with_metadata", (event) => shown.push(event.detail.nodeId));
  for (const detail of [{ nodeId: "9", promptId: "p" }, { nodeId: 9, jobId: "p" }, { nodeId: "8", promptId: "p" }]) {
    api.dispatchEvent(new CustomEvent("b_preview_with_metadata", { detail }));
  }
  assert.deepEqual(shown, ["8"]);
});

test("a content policy is read as the browser reads it", () => {
  const comfy = "default-src 'self'; script-src 'self' blob:; img-src 'self' data: blob:; object-src 'self';";
  assert.equal(policyAllowsBlobs(comfy), false);
  assert.equal(policyAllowsBlobs(null), true);
  assert.equal(policyAllowsBlobs("script-src 'self'"), true);
  assert.equal(policyAllowsBlobs("default-src 'self'; media-src 'self' blob:"), true);
  assert.equal(policyAllowsBlobs("media-src 'none'"), false);
});

test("a bundle gives its pictures in order", () => {
  const data = new Uint8Array([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9, 10]).buffer;
  assert.deepEqual(unbundle(data).map((file) => [...new Uint8Array(file)]), [[7], [8, 9, 10]]);
});
