// The numbers under the picture. Pure: a preview's state in, labelled texts out, always the same rows so that nothing jumps.

import { chunkMs } from "./timeline.mjs";

const NONE = "–";
const RECENT = 8; // chunks that averages look back on
const FEW = 4; // steps that are shown one by one

/** Milliseconds as people read them. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return NONE;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function gibibytes(bytes) {
  return (bytes / 2 ** 30).toFixed(1);
}

function framesOf(session, chunk) {
  return session.chunk_frames[chunk.index] ?? chunk.frames;
}

/** Frames per second of the last chunks, by the time they took. */
export function speed(session) {
  const recent = session.chunks.slice(-RECENT);
  const ms = recent.reduce((sum, chunk) => sum + chunkMs(chunk), 0);
  const frames = recent.reduce((sum, chunk) => sum + framesOf(session, chunk), 0);
  return ms > 0 ? (1000 * frames) / ms : NaN;
}

/** Milliseconds until the last chunk, judged by the recent ones; 0 after the end. */
export function timeLeft(session) {
  if (session.end) return 0;
  const done = session.chunks.length ? session.chunks.at(-1).index + 1 : 0;
  const frames = session.chunk_frames.slice(done).reduce((sum, count) => sum + count, 0);
  return (1000 * frames) / speed(session);
}

/** From the moment a chunk's first map frame was taken until its pictures could be fetched. */
export function delay(chunk) {
  return chunkMs(chunk) + chunk.preview_ms;
}

/** Each step where there are few, as StreamRender-H3 has; else their number and mean. */
function stepsOf(times) {
  if (times.length <= FEW) return times.map(duration).join(" + ");
  return `${times.length} × ${duration(times.reduce((sum, ms) => sum + ms, 0) / times.length)}`;
}

const ENDS = { complete: "finished", cancelled: "cancelled", error: "stopped by an error" };

/** One line on what is going on. */
export function status(session) {
  if (!session) return "The render appears here while it is made";
  const total = session.chunk_frames.length;
  if (session.end) return `${ENDS[session.end.reason] ?? session.end.reason}, ${session.chunks.length} of ${total} chunks`;
  if (session.off) return "no live preview for this render; the server's log says why";
  const shown = session.chunks.length ? session.chunks.at(-1).index + 1 : 0;
  const chunk = Math.max(shown, session.phase?.chunk ?? 0); // the preview may lag behind the render
  const at = session.phase?.chunk === chunk ? session.phase.step : 0;
  return `chunk ${Math.min(chunk + 1, total)} of ${total}, step ${Math.min(at + 1, session.steps)} of ${session.steps}`;
}

/** The rows: { key, label, value, hint }. Without a preview the same rows, empty. */
export function figures(session) {
  const last = session?.chunks.at(-1);
  const rate = session ? speed(session) : NaN;
  const memory = session?.memory;
  return [
    { key: "chunk", label: "chunk", value: last ? duration(chunkMs(last)) : NONE, hint: "time of the newest chunk" },
    {
      key: "speed",
      label: "speed",
      value: Number.isFinite(rate) ? `${rate.toFixed(1)} of ${session.fps} fps` : NONE,
      hint: "frames rendered per second, against the rate they are shown at",
    },
    {
      key: "left",
      label: "left",
      value: session && last ? (session.end ? "done" : duration(timeLeft(session))) : NONE,
      hint: "time left, judged by the last chunks",
    },
    {
      key: "delay",
      label: "delay",
      value: last ? duration(delay(last)) : NONE,
      hint: "from reading a chunk's map to its picture being ready here",
    },
    {
      key: "parts",
      label: "parts",
      value: last ? `${duration(last.encode_ms)} | ${stepsOf(last.step_ms)} | ${duration(last.decode_ms)}` : NONE,
      hint: `newest chunk: encode | each step${last ? ` (${last.step_ms.map(duration).join(", ")})` : ""} | decode`,
    },
    {
      key: "memory",
      label: memory && memory.device !== "cpu" ? "GPU" : "memory",
      value: memory ? `${gibibytes(memory.used)} of ${gibibytes(memory.total)} GiB` : NONE,
      hint: "memory in use where the model runs",
    },
  ];
}
