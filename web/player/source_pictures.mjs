// Shows a preview's chunks as single pictures at the right pace: works under every content policy and without H.264.

const KEEP = 48 * 2 ** 20; // bytes of JPEG in the browser before far chunks are dropped
const AHEAD = 8; // pictures decoded before their time
const RETRY = 1000; // ms after a failed request

/** Split a bundle: count, lengths (uint32, big endian), then the files. */
export function unbundle(data) {
  const view = new DataView(data);
  const count = view.getUint32(0);
  const files = [];
  let start = 4 + 4 * count;
  for (let number = 0; number < count; number += 1) {
    const length = view.getUint32(4 + 4 * number);
    files.push(data.slice(start, start + length));
    start += length;
  }
  return files;
}

export class PictureSource {
  /** @param load (path) => Promise<ArrayBuffer | null>; @param next (frame) => the frame that playback shows after it */
  constructor(session, load, next) {
    this.kind = "pictures";
    this.load = load;
    this.next = next;
    this.fps = session.fps;
    this.chunks = new Map(); // index -> { first, stop, bytes, files }
    this.decoded = new Map(); // frame -> ImageBitmap, or the promise of one
    this.playing = false;
    this.closed = false;
    this.frame = 0;
    this.due = 0;
  }

  async open() {}

  async want(indices, chunkOf) {
    this.indices = indices;
    if (this.busy || this.closed || Date.now() < (this.pause ?? 0)) return;
    this.busy = true;
    try {
      let next;
      while (!this.closed && (next = this.indices.find((index) => !this.chunks.has(index))) !== undefined) {
        const chunk = chunkOf(next);
        const data = chunk ? await this.load(`frames/${next}`) : null;
        if (!data) {
          this.pause = Date.now() + RETRY;
          break;
        }
        const files = unbundle(data);
        const stop = chunk.first + files.length;
        this.chunks.set(next, { first: chunk.first, stop, bytes: data.byteLength, files });
        this.#evict();
      }
    } catch {
      this.pause = Date.now() + RETRY;
    } finally {
      this.busy = false;
    }
  }

  has(index) {
    return this.chunks.has(index);
  }

  seek(frame) {
    this.frame = frame;
    this.due = 0;
  }

  play(on) {
    this.playing = on;
    this.due = 0;
  }

  set muted(off) {}

  /** Move on when the time of the next picture has come and it is decoded. `now` in ms. */
  tick(now) {
    this.#decodeAhead();
    if (!this.playing) return;
    if (!this.due) this.due = now + 1000 / this.fps;
    while (now >= this.due) {
      const next = this.next(this.frame);
      if (next === null || !this.decoded.has(next) || this.decoded.get(next) instanceof Promise) {
        this.due = now; // wait for it; nothing is skipped
        return;
      }
      this.frame = next;
      this.due = Math.max(this.due + 1000 / this.fps, now - 250);
    }
  }

  get image() {
    const bitmap = this.decoded.get(this.frame);
    return bitmap instanceof Promise ? null : (bitmap ?? null);
  }

  close() {
    this.closed = true;
    for (const bitmap of this.decoded.values()) if (!(bitmap instanceof Promise)) bitmap.close();
    this.decoded.clear();
    this.chunks.clear();
  }

  #decodeAhead() {
    const soon = [this.frame];
    for (let frame = this.frame; soon.length < AHEAD; soon.push(frame)) {
      frame = this.next(frame);
      if (frame === null || soon.includes(frame)) break;
    }
    for (const [frame, bitmap] of this.decoded) {
      if (soon.includes(frame) || bitmap instanceof Promise) continue;
      bitmap.close();
      this.decoded.delete(frame);
    }
    for (const frame of soon) {
      if (this.decoded.has(frame)) continue;
      const file = this.#file(frame);
      if (!file) continue;
      const promise = createImageBitmap(new Blob([file], { type: "image/jpeg" })).then(
        (bitmap) => (this.closed ? bitmap.close() : this.decoded.set(frame, bitmap)),
        () => this.decoded.delete(frame),
      );
      this.decoded.set(frame, promise);
    }
  }

  #file(frame) {
    for (const chunk of this.chunks.values()) {
      if (frame >= chunk.first && frame < chunk.stop) return chunk.files[frame - chunk.first];
    }
    return null;
  }

  #evict() {
    let total = [...this.chunks.values()].reduce((sum, chunk) => sum + chunk.bytes, 0);
    for (const [index, chunk] of [...this.chunks]) {
      if (total <= KEEP) return;
      if (this.indices.includes(index)) continue;
      total -= chunk.bytes;
      this.chunks.delete(index);
    }
  }
}
