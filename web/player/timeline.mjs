// One cell per chunk: where it lies, in which state it is, and how its time compares with real time. No DOM in here.

export const QUEUED = "queued";
export const RENDERING = "rendering";
export const READY = "ready";
export const SUSPECT = "suspect";
export const GONE = "gone"; // rendered, but its pictures are not kept any more or were left out

/** Upper bounds of the paces, in multiples of real time. */
const PACES = [
  ["live", 1],
  ["near", 3],
  ["slow", 10],
  ["crawl", Infinity],
];

/** Milliseconds the render of a chunk took, all parts together. */
export function chunkMs(chunk) {
  return chunk.encode_ms + chunk.step_ms.reduce((sum, ms) => sum + ms, 0) + chunk.decode_ms;
}

/** Time taken over time shown: 1 is real time, 4 is four times slower. */
export function pace(chunk, frames, fps) {
  return frames > 0 ? chunkMs(chunk) / ((1000 * frames) / fps) : 0;
}

/** The name of a pace's colour. */
export function paceName(ratio) {
  return PACES.find(([, bound]) => ratio <= bound)[0];
}

/** Cells of a preview: { index, from, to, state, pace, ratio }, from and to as shares of the render's length. */
export function cells(session) {
  const done = new Map(session.chunks.map((chunk) => [chunk.index, chunk]));
  const newest = Math.max(-1, ...done.keys());
  const rendering = session.end ? -1 : newest + 1;
  const total = session.chunk_frames.reduce((sum, frames) => sum + frames, 0) || 1;
  let start = 0;
  return session.chunk_frames.map((frames, index) => {
    const chunk = done.get(index);
    const cell = { index, from: start / total, to: (start + frames) / total, state: QUEUED, pace: null, ratio: 0 };
    start += frames;
    if (chunk) {
      cell.ratio = pace(chunk, frames, session.fps);
      cell.pace = paceName(cell.ratio);
      const kept = index >= session.oldest && !chunk.dropped;
      cell.state = chunk.suspect?.length ? SUSPECT : kept ? READY : GONE;
      cell.reasons = chunk.suspect ?? [];
    } else if (index === rendering) {
      cell.state = RENDERING;
    } else if (index < newest) {
      cell.state = GONE; // of the run that this one resumes
    }
    return cell;
  });
}

/** What a cell says when it is pointed at or read out. */
export function describe(cell, chunk) {
  const name = `chunk ${cell.index + 1}`;
  if (cell.state === QUEUED) return `${name}: queued`;
  if (cell.state === RENDERING) return `${name}: rendering`;
  if (!chunk) return `${name}: rendered in an earlier run`;
  const seconds = (chunkMs(chunk) / 1000).toFixed(chunkMs(chunk) < 10000 ? 2 : 0);
  const speed = cell.ratio <= 1 ? `${(1 / Math.max(cell.ratio, 0.01)).toFixed(1)}× faster than` : `${cell.ratio.toFixed(1)}×`;
  const text = `${name}: ${seconds} s, ${speed} real time`;
  if (cell.state === SUSPECT) return `${text}; suspect: ${cell.reasons.join(", ")}`;
  if (cell.state === GONE) return `${text}; ${chunk.dropped ? "left out of the preview" : "no longer kept"}`;
  return text;
}

/** The cell under a share of the width. */
export function cellAt(list, share) {
  return list.find((cell) => share >= cell.from && share < cell.to) ?? list.at(-1);
}

/**
 * Rectangles to paint for a strip `width` pixels wide: neighbours that fall on the same pixel are one, and the most
 * urgent state of them is the one that is seen.
 */
export function strips(list, width) {
  const urgency = [QUEUED, GONE, READY, RENDERING, SUSPECT];
  const slow = [null, ...PACES.map(([name]) => name)];
  const out = [];
  for (const cell of list) {
    const left = Math.floor(cell.from * width);
    const right = Math.max(left + 1, Math.floor(cell.to * width));
    const last = out.at(-1);
    if (last && left < last.left + 1 && right <= last.right + 1) {
      if (urgency.indexOf(cell.state) > urgency.indexOf(last.state)) last.state = cell.state;
      if (slow.indexOf(cell.pace) > slow.indexOf(last.pace)) last.pace = cell.pace;
      last.right = Math.max(last.right, right);
    } else {
      out.push({ left, right, state: cell.state, pace: cell.pace });
    }
  }
  return out;
}
