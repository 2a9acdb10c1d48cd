import assert from "node:assert/strict";
import { test } from "node:test";

import { figures, delay, duration, speed, status, timeLeft } from "../../../web/player/figures.mjs";
import { cellAt, cells, chunkMs, describe, pace, paceName, strips } from "../../../web/player/timeline.mjs";

const done = (index, ms, more = {}) => ({
  index,
  first: 0,
  frames: 8,
  encode_ms: ms / 4,
  step_ms: [ms / 4, ms / 4],
  decode_ms: ms / 4,
  preview_ms: 10,
  at: 0,
  dropped: false,
  suspect: [],
  ...more,
});

const session = (chunks, more = {}) => ({
  fps: 24,
  frames: 54,
  steps: 2,
  chunk_frames: [30, 8, 8, 8],
  oldest: 0,
  phase: { chunk: 0, step: 0 },
  end: null,
  off: false,
  memory: null,
  chunks,
  ...more,
});

test("there is one cell per chunk, as wide as its share of the frames", () => {
  const list = cells(session([]));
  assert.equal(list.length, 4);
  assert.equal(list[0].from, 0);
  assert.ok(Math.abs(list[0].to - 30 / 54) < 1e-9);
  assert.equal(list.at(-1).to, 1);
  list.slice(1).forEach((cell, k) => assert.equal(cell.from, list[k].to));
});

test("cells are queued, then rendering, then ready; suspect ones stand out", () => {
  const states = (...rest) => cells(session(...rest)).map((cell) => cell.state);
  assert.deepEqual(states([]), ["rendering", "queued", "queued", "queued"]);
  assert.deepEqual(states([done(0, 100)]), ["ready", "rendering", "queued", "queued"]);
  assert.deepEqual(states([done(0, 100), done(1, 100, { suspect: ["flash"] })]), [
    "ready",
    "suspect",
    "rendering",
    "queued",
  ]);
});

test("after the end nothing renders any more", () => {
  const list = cells(session([done(0, 100)], { end: { reason: "cancelled" } }));
  assert.deepEqual(
    list.map((cell) => cell.state),
    ["ready", "queued", "queued", "queued"],
  );
});

test("chunks whose pictures are gone or were left out are marked as that", () => {
  const list = cells(session([done(0, 100), done(1, 100, { dropped: true })], { oldest: 1 }));
  assert.deepEqual(
    list.slice(0, 2).map((cell) => cell.state),
    ["gone", "gone"],
  );
});

test("a resumed render shows the chunks of the run before as rendered", () => {
  const list = cells(session([done(2, 100)]));
  assert.deepEqual(
    list.map((cell) => cell.state),
    ["gone", "gone", "ready", "rendering"],
  );
  assert.equal(describe(list[0]), "chunk 1: rendered in an earlier run");
});

test("the colour says how a chunk's time compares with real time", () => {
  assert.equal(chunkMs(done(0, 400)), 400);
  assert.equal(pace(done(0, 1000), 24, 24), 1);
  assert.deepEqual([0.5, 1, 1.01, 3, 5, 10, 11].map(paceName), ["live", "live", "near", "near", "slow", "slow", "crawl"]);
});

test("cells describe themselves in words", () => {
  const chunks = [done(0, 2500), done(1, 100, { suspect: ["flash"] })];
  const list = cells(session(chunks));
  assert.equal(describe(list[0], chunks[0]), "chunk 1: 2.50 s, 2.0× real time");
  assert.equal(describe(list[1], chunks[1]), "chunk 2: 0.10 s, 3.3× faster than real time; suspect: flash");
  assert.equal(describe(list[2]), "chunk 3: rendering");
  assert.equal(describe(list[3]), "chunk 4: queued");
});

test("the pointer finds the cell under it, at both ends too", () => {
  const list = cells(session([]));
  assert.deepEqual(
    [0, 0.5, 0.56, 0.999, 1].map((share) => cellAt(list, share).index),
    [0, 0, 1, 3, 3],
  );
});

test("2,000 cells on 400 pixels are one strip per pixel and hide no suspect", () => {
  const chunks = Array.from({ length: 2000 }, (_, k) => done(k, 100, k === 777 ? { suspect: ["seam"] } : {}));
  const list = strips(cells(session(chunks, { chunk_frames: Array(2000).fill(8) })), 400);
  assert.ok(list.length <= 400);
  assert.equal(list.filter((strip) => strip.state === "suspect").length, 1);
  assert.equal(list.at(-1).right, 400);
  list.slice(1).forEach((strip, k) => assert.ok(strip.left >= list[k].left));
});

test("a few cells are painted edge to edge", () => {
  const list = strips(cells(session([done(0, 100)])), 540);
  assert.deepEqual(
    list.map(({ left, right }) => [left, right]),
    [
      [0, 300],
      [300, 380],
      [380, 460],
      [460, 540],
    ],
  );
});

test("the figures follow from the chunks", () => {
  const one = session([done(0, 5000), done(1, 1000)], { memory: { used: 2 ** 30, total: 2 ** 31, device: "cuda" } });
  assert.ok(Math.abs(speed(one) - 38 / 6) < 1e-9);
  assert.ok(Math.abs(timeLeft(one) - (1000 * 16) / (38 / 6)) < 1e-6);
  assert.equal(delay(one.chunks[1]), 1010);
  const shown = Object.fromEntries(figures(one).map((row) => [row.key, row.value]));
  assert.deepEqual(shown, {
    chunk: "1.0 s",
    speed: "6.3 of 24 fps",
    left: "2.5 s",
    delay: "1.0 s",
    parts: "250 ms | 250 ms + 250 ms | 250 ms",
    memory: "1.0 of 2.0 GiB",
  });
});

test("many steps are told by their number and mean", () => {
  const one = session([done(0, 400, { step_ms: [100, 200, 300, 400, 500] })]);
  const parts = figures(one).find((row) => row.key === "parts");
  assert.equal(parts.value, "100 ms | 5 × 300 ms | 100 ms");
  assert.ok(parts.hint.includes("100 ms, 200 ms, 300 ms, 400 ms, 500 ms"));
});

test("the figures keep their rows whatever is known, so that nothing jumps", () => {
  const keys = (one) => figures(one).map((row) => row.key);
  assert.deepEqual(keys(null), keys(session([])));
  assert.deepEqual(keys(null), keys(session([done(0, 100)], { end: { reason: "complete" } })));
  assert.ok(figures(null).every((row) => row.value === "–"));
});

test("one line says what is going on", () => {
  assert.equal(status(session([])), "chunk 1 of 4, step 1 of 2");
  assert.equal(status(session([done(0, 1)], { phase: { chunk: 1, step: 1 } })), "chunk 2 of 4, step 2 of 2");
  assert.equal(status(session([done(0, 1)], { phase: { chunk: 2, step: 1 } })), "chunk 3 of 4, step 2 of 2");
  assert.equal(status(session([done(0, 1)], { end: { reason: "cancelled" } })), "cancelled, 1 of 4 chunks");
});

test("durations are short", () => {
  assert.deepEqual([0, 999, 1500, 59000, 61000, 3660000, NaN].map(duration), [
    "0 ms",
    "999 ms",
    "1.5 s",
    "59 s",
    "1 min 01 s",
    "1 h 01 min",
    "–",
  ]);
});
