// Which frame comes next. Pure functions over the chunks that can be played; frames are whole numbers counted from the
// start of the render, a span is { index, first, stop } with `stop` excluded.

/** Chunks that have pictures and are still kept by the server, in order. */
export function playable(chunks, oldest = 0) {
  return chunks
    .filter((chunk) => chunk.frames > 0 && chunk.index >= oldest)
    .map((chunk) => ({ index: chunk.index, first: chunk.first, stop: chunk.first + chunk.frames }))
    .sort((a, b) => a.first - b.first);
}

/** The span that holds a frame, or undefined. */
export function spanAt(spans, frame) {
  let low = 0;
  let high = spans.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (frame < spans[middle].first) high = middle - 1;
    else if (frame >= spans[middle].stop) low = middle + 1;
    else return spans[middle];
  }
  return undefined;
}

/** The playable frame nearest to a wish, null when there is none. */
export function nearest(spans, frame) {
  if (!spans.length) return null;
  const wish = Math.floor(frame);
  if (spanAt(spans, wish)) return wish;
  const candidates = spans.flatMap((span) => [span.first, span.stop - 1]);
  return candidates.reduce((best, one) => (Math.abs(one - wish) < Math.abs(best - wish) ? one : best));
}

/** The frame after `frame`, over gaps and from the end back to the start: this is how playback loops. */
export function following(spans, frame) {
  if (!spans.length) return null;
  if (spanAt(spans, frame + 1)) return frame + 1;
  return (spans.find((span) => span.first > frame) ?? spans[0]).first;
}

/** The frame before `frame`, over gaps and from the start back to the end. */
export function preceding(spans, frame) {
  if (!spans.length) return null;
  if (spanAt(spans, frame - 1)) return frame - 1;
  return (spans.findLast((span) => span.stop <= frame) ?? spans.at(-1)).stop - 1;
}

/** True when playback cannot simply run on after `frame`: the end, or a gap. */
export function isBreak(spans, frame) {
  return spans.length > 0 && following(spans, frame) !== frame + 1;
}

/** Chunks to have at hand, most urgent first: from the one that holds `frame` on, `seconds` ahead, round the end. */
export function wanted(spans, frame, seconds, fps) {
  if (!spans.length) return [];
  const here = nearest(spans, frame);
  let at = spans.findIndex((span) => here >= span.first && here < span.stop);
  const list = [];
  let ahead = -(here - spans[at].first);
  while (list.length < spans.length && ahead < seconds * fps) {
    list.push(spans[at].index);
    ahead += spans[at].stop - spans[at].first;
    at = (at + 1) % spans.length;
  }
  return list;
}

/** 0:07 or 1:02:03 from frames. */
export function clock(frames, fps) {
  const seconds = Math.floor(frames / fps);
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  const [hours, minutes, rest] = parts;
  const tail = `${hours ? String(minutes).padStart(2, "0") : minutes}:${String(rest).padStart(2, "0")}`;
  return hours ? `${hours}:${tail}` : tail;
}
