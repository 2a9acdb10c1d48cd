import assert from "node:assert/strict";
import { test } from "node:test";

import {
  clock,
  following,
  isBreak,
  nearest,
  playable,
  preceding,
  spanAt,
  wanted,
} from "../../../web/player/sequencer.mjs";

const chunk = (index, first, frames) => ({ index, first, frames });
const CHUNKS = [chunk(0, 0, 30), chunk(1, 30, 9), chunk(2, 39, 0), chunk(3, 39, 8), chunk(4, 55, 8)]; // 47..54 was dropped
const SPANS = playable(CHUNKS);

test("only chunks with pictures that are still kept can be played, in order", () => {
  assert.deepEqual(
    playable([CHUNKS[4], CHUNKS[0], CHUNKS[2]]).map((span) => span.index),
    [0, 4],
  );
  assert.deepEqual(
    playable(CHUNKS, 3).map((span) => span.index),
    [3, 4],
  );
  assert.deepEqual(playable([]), []);
});

test("every frame belongs to the chunk that holds it, and the frames of a gap to none", () => {
  assert.deepEqual(
    [0, 29, 30, 38, 39, 46, 47, 54, 55, 62, 63].map((frame) => spanAt(SPANS, frame)?.index),
    [0, 0, 1, 1, 3, 3, undefined, undefined, 4, 4, undefined],
  );
});

test("playback runs through all that exists, over the gap, and round to the start", () => {
  let frame = 0;
  const seen = [];
  for (let count = 0; count < 56; count += 1) {
    seen.push(frame);
    frame = following(SPANS, frame);
  }
  const all = [...Array(47).keys(), ...Array.from({ length: 8 }, (_, k) => 55 + k)];
  assert.deepEqual(seen, [...all, 0]);
});

test("stepping back is the exact reverse of stepping forward", () => {
  for (const span of SPANS) {
    for (let frame = span.first; frame < span.stop; frame += 1) {
      assert.equal(preceding(SPANS, following(SPANS, frame)), frame);
      assert.equal(following(SPANS, preceding(SPANS, frame)), frame);
    }
  }
});

test("a video must be moved by hand at the end and at a gap only", () => {
  assert.deepEqual(
    [28, 29, 38, 46, 61, 62].map((frame) => isBreak(SPANS, frame)),
    [false, false, false, true, false, true],
  );
  assert.equal(isBreak([], 0), false);
});

test("when a chunk arrives the loop becomes longer without a jump", () => {
  const before = playable(CHUNKS.slice(0, 1));
  assert.equal(following(before, 29), 0);
  assert.equal(following(playable(CHUNKS.slice(0, 2)), 29), 30);
});

test("a wish goes to the nearest frame that exists", () => {
  assert.deepEqual(
    [-5, 0, 12.7, 48, 53, 54, 1000].map((frame) => nearest(SPANS, frame)),
    [0, 0, 12, 46, 55, 55, 62],
  );
  assert.equal(nearest([], 3), null);
});

test("chunks are fetched from the playhead on, a few seconds ahead, round the end", () => {
  assert.deepEqual(wanted(SPANS, 0, 1, 24), [0]);
  assert.deepEqual(wanted(SPANS, 29, 1, 24), [0, 1, 3, 4]);
  assert.deepEqual(wanted(SPANS, 56, 1, 24), [4, 0]);
  assert.deepEqual(wanted(SPANS, 0, 1e6, 24), [0, 1, 3, 4]);
  assert.deepEqual(wanted([], 0, 1, 24), []);
});

test("fetching ahead stays small in a long render", () => {
  const many = playable(Array.from({ length: 2000 }, (_, k) => chunk(k, 8 * k, 8)));
  const list = wanted(many, 9000, 8, 24);
  assert.equal(list[0], 1125);
  assert.ok(list.length <= 26);
});

test("a player without anything to play does nothing", () => {
  assert.equal(following([], 0), null);
  assert.equal(preceding([], 0), null);
  assert.equal(spanAt([], 0), undefined);
});

test("times are read as people write them", () => {
  assert.deepEqual(
    [0, 24, 24 * 61, 24 * 3723].map((frames) => clock(frames, 24)),
    ["0:00", "0:01", "1:01", "1:02:03"],
  );
});
