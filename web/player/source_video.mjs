// Plays a preview's video fragments through a MediaSource. The server keeps the whole; here only what is needed soon.

const KEEP = 24 * 2 ** 20; // bytes of fragments in the browser before far ones are removed
const RETRY = 1000; // ms after a failed request

export class VideoSource {
  /** @param load (path) => Promise<ArrayBuffer | null> for paths of this preview */
  constructor(session, load) {
    this.kind = "video";
    this.load = load;
    this.fps = session.fps;
    this.duration = session.frames / session.fps;
    this.chunks = new Map(); // index -> { first, stop, bytes } of what is in the buffer
    this.closed = false;
    this.playing = false;
    this.target = null; // frame of a seek under way
    this.video = document.createElement("video");
    this.video.muted = true;
    this.video.playsInline = true;
    this.video.preload = "auto";
    this.failed = false; // for good: the browser refuses what it is given
    this.video.addEventListener("error", () => (this.failed = true));
  }

  async open(mime) {
    const media = new MediaSource();
    this.address = URL.createObjectURL(media);
    this.video.src = this.address;
    await new Promise((resolve, reject) => {
      media.addEventListener("sourceopen", resolve, { once: true });
      this.video.addEventListener("error", () => reject(new Error("the video was refused")), { once: true });
    });
    this.buffer = media.addSourceBuffer(mime);
    const init = await this.load("init.mp4");
    if (!init) throw new Error("the preview is gone");
    await this.#append(init);
    media.duration = this.duration;
  }

  /** Fetch what is missing of `indices`, most urgent first, and drop what is far when there is too much. */
  async want(indices, chunkOf) {
    this.indices = indices;
    if (this.busy || this.closed || Date.now() < (this.pause ?? 0)) return;
    this.busy = true;
    try {
      let next;
      while (!this.closed && (next = this.indices.find((index) => !this.chunks.has(index))) !== undefined) {
        const chunk = chunkOf(next);
        const data = chunk ? await this.load(`seg/${next}.m4s`) : null;
        if (this.closed) break;
        if (!data) {
          this.pause = Date.now() + RETRY;
          break;
        }
        await this.#evict(this.indices);
        await this.#append(data);
        this.chunks.set(next, { first: chunk.first, stop: chunk.first + chunk.frames, bytes: data.byteLength });
      }
    } catch {
      this.pause = Date.now() + RETRY; // the buffer is full or the server away; what is there goes on playing
    } finally {
      this.busy = false;
    }
  }

  has(index) {
    return this.chunks.has(index);
  }

  /** The frame that is shown, or being sought. */
  get frame() {
    return this.target ?? Math.floor(this.video.currentTime * this.fps + 1e-3);
  }

  seek(frame) {
    const time = (frame + 0.5) / this.fps;
    if (Math.abs(this.video.currentTime - time) < 0.25 / this.fps) return;
    this.target = frame;
    this.video.onseeked = () => (this.target = null);
    this.video.currentTime = time;
  }

  play(on) {
    this.playing = on;
    if (on) this.video.play().catch(() => {}); // refused when paused again at once
    else this.video.pause();
  }

  set muted(off) {
    this.video.muted = off;
  }

  tick() {}

  /** What to draw, null before the first picture. */
  get image() {
    return this.video.readyState >= 2 ? this.video : null;
  }

  close() {
    this.closed = true;
    this.video.onseeked = null;
    this.video.pause();
    this.video.removeAttribute("src");
    this.video.load();
    if (this.address) URL.revokeObjectURL(this.address);
  }

  async #evict(needed) {
    const total = () => [...this.chunks.values()].reduce((sum, chunk) => sum + chunk.bytes, 0);
    for (const [index, chunk] of [...this.chunks]) {
      if (total() <= KEEP) return;
      if (needed.includes(index)) continue;
      await this.#settled(() => this.buffer.remove(chunk.first / this.fps, chunk.stop / this.fps));
      this.chunks.delete(index);
    }
  }

  #append(data) {
    return this.#settled(() => this.buffer.appendBuffer(data));
  }

  #settled(action) {
    return new Promise((resolve, reject) => {
      const done = () => {
        this.buffer.removeEventListener("updateend", done);
        this.buffer.removeEventListener("error", failed);
        resolve();
      };
      const failed = () => {
        this.buffer.removeEventListener("updateend", done);
        reject(new Error("a fragment was refused"));
      };
      this.buffer.addEventListener("updateend", done);
      this.buffer.addEventListener("error", failed, { once: true });
      action();
    });
  }
}
