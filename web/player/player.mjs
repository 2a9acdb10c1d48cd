// The player of one sampler node: shows one preview at a time and plays what exists of it, round and round.

import { figures, status } from "./figures.mjs";
import { element, markup, setIcon, setLabel } from "./markup.mjs";
import { canAssembleVideo } from "./media.mjs";
import { clock, following, isBreak, nearest, playable, preceding, spanAt, wanted } from "./sequencer.mjs";
import { PictureSource } from "./source_pictures.mjs";
import { VideoSource } from "./source_video.mjs";
import { Surface } from "./surface.mjs";
import { TimelineView } from "./timeline_view.mjs";
import { Wipe } from "./wipe.mjs";

const AHEAD = 8; // seconds of chunks at hand
const STUCK = 700; // ms without a new frame after which playback goes on elsewhere

export class Player {
  /** @param host { load(session, path), policy(session), view(file), say(text) } */
  constructor(host) {
    this.host = host;
    this.parts = markup(figures(null));
    this.root = this.parts.root;
    this.surface = new Surface(this.parts.canvas);
    this.wipe = new Wipe(this.parts, (share) => {
      this.surface.wipe = share;
      this.dirty = true;
    });
    this.timeline = new TimelineView(this.parts, {
      seek: (frame) => this.seek(frame),
      step: (by) => this.step(by),
      chunk: (by) => this.skip(by),
    });
    for (const [name, made] of Object.entries(this.parts.buttons)) made.addEventListener("click", () => this.press(name));
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.spans = [];
    this.session = undefined;
    this.playing = true;
    this.show(null);
    this.resized = new ResizeObserver(() => this.timeline.paint());
    this.resized.observe(this.parts.timeline);
    const loop = (now) => {
      if (this.closed) return;
      this.#tick(now);
      requestAnimationFrame(loop);
    };
    requestAnimationFrame(loop);
  }

  /** Show a preview (null: none). The same one again takes in what is new. */
  show(session) {
    if (session?.session !== this.session?.session || this.session === undefined) this.#begin(session);
    this.spans = session ? playable(session.chunks, session.oldest) : [];
    this.timeline.show(session);
    for (const row of figures(session)) {
      const { label, value } = this.parts.values[row.key];
      if (label.textContent !== row.label) label.textContent = row.label;
      if (value.textContent !== row.value) value.textContent = row.value;
      value.parentElement.title = row.hint;
    }
    this.parts.status.textContent = status(session);
    this.parts.hint.textContent = session ? (session.off ? status(session) : "waiting for the first chunk") : status(null);
    const { buttons } = this.parts;
    const some = this.spans.length > 0;
    for (const name of ["play", "back", "forward", "newest", "copy", "full"]) buttons[name].disabled = !some;
    buttons.mute.disabled = !session?.sound;
    buttons.open.disabled = !session?.end?.file;
    setLabel(buttons.open, session?.end?.file ? "open the file" : "open the file (when the render is over)");
    this.root.dataset.chunks = String(session?.chunks.length ?? 0);
    this.root.dataset.end = session?.end?.reason ?? "";
    this.#announce(session);
    this.#controls();
    if (some && !this.source && !this.opening) this.#open(session);
  }

  press(name) {
    if (name === "play") this.play(!this.playing);
    else if (name === "back") this.step(-1);
    else if (name === "forward") this.step(1);
    else if (name === "newest") this.#go(this.spans.at(-1)?.first ?? 0);
    else if (name === "mute") this.mute(!this.muted);
    else if (name === "copy") this.copy();
    else if (name === "open") globalThis.open(this.host.view(this.session.end.file), "_blank", "noopener");
    else if (name === "full") this.fullScreen();
  }

  play(on) {
    this.playing = on;
    this.source?.play(on);
    this.#controls();
  }

  /** Show the frame nearest to a wish; playing goes on from there. */
  seek(frame) {
    const goal = nearest(this.spans, frame);
    if (goal !== null) this.#go(goal);
  }

  /** Pause and move by single frames. */
  step(by) {
    this.play(false);
    const move = by > 0 ? following : preceding;
    const goal = this.source ? move(this.spans, this.source.frame) : null;
    if (goal !== null) this.#go(goal);
  }

  /** Move by whole chunks. */
  skip(by) {
    const here = this.spans.findIndex((span) => span === spanAt(this.spans, this.source?.frame ?? 0));
    const goal = this.spans[Math.min(this.spans.length - 1, Math.max(0, here + by))];
    if (goal) this.#go(goal.first);
  }

  mute(off) {
    this.muted = off;
    if (this.source) this.source.muted = off;
    this.#controls();
  }

  async copy() {
    try {
      const png = await this.surface.png();
      if (globalThis.ClipboardItem && navigator.clipboard?.write) {
        await navigator.clipboard.write([new ClipboardItem({ "image/png": png })]);
        this.host.say("Frame copied");
      } else {
        const link = element("a", { href: URL.createObjectURL(png), download: `frame_${this.source.frame}.png` });
        link.click(); // pages that are not https may not use the clipboard
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
        this.host.say("Frame saved (this page may not use the clipboard)");
      }
    } catch (error) {
      this.host.say(`The frame could not be copied: ${error.message}`);
    }
  }

  fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.root.requestFullscreen?.().catch(() => this.host.say("This page may not go full screen"));
  }

  close() {
    this.closed = true;
    this.resized.disconnect();
    this.source?.close();
  }

  #begin(session) {
    this.source?.close();
    this.source = null;
    this.opening = null;
    this.session = session;
    this.playing = true;
    this.muted = true;
    this.shown = -1;
    this.surface.clear();
    this.root.toggleAttribute("data-empty", true);
    this.root.dataset.session = session?.session ?? "";
    this.root.dataset.source = "";
    this.root.dataset.frame = "";
    this.parts.time.textContent = `0:00 / ${clock(session?.frames ?? 0, session?.fps ?? 24)}`;
    this.timeline.at(0, "nothing rendered yet");
    if (!session) return;
    this.surface.resize(session.width, session.height);
    this.parts.frame.style.setProperty("--srh3-shape", String(session.width / session.height));
  }

  /** Open the best source that works here: video first, pictures otherwise. */
  async #open(session) {
    const turn = (this.opening = {});
    const load = (path) => this.host.load(session, path);
    let source = null;
    if (session.transport === "fmp4" && (await canAssembleVideo(session.mime, await this.host.policy(session)))) {
      source = new VideoSource(session, load);
      try {
        await source.open(session.mime);
      } catch {
        source.close();
        source = null;
      }
    }
    if (this.opening !== turn || this.closed) {
      source?.close();
      return;
    }
    this.#use(source ?? this.#pictures(session), this.spans[0]?.first ?? 0);
  }

  #pictures(session) {
    return new PictureSource(session, (path) => this.host.load(session, path), (frame) => following(this.spans, frame));
  }

  #use(source, frame) {
    this.source?.close();
    this.source = source;
    this.root.dataset.source = source.kind;
    source.muted = this.muted;
    source.seek(frame);
    source.play(this.playing);
  }

  #go(frame) {
    this.source?.seek(frame);
    this.since = performance.now();
    this.dirty = true;
  }

  #tick(now) {
    const { source, spans } = this;
    if (!source || !spans.length) return;
    if (source.failed) {
      this.#use(this.#pictures(this.session), nearest(spans, Math.max(0, this.shown)));
      return;
    }
    source.tick(now);
    const frame = source.frame;
    source.want(wanted(spans, frame, AHEAD, this.session.fps), (index) => this.#chunk(index));
    if (frame !== this.frame) {
      this.frame = frame;
      this.since = now;
    }
    if (this.playing && source.kind === "video") this.#keepPlaying(frame, now - this.since);
    const image = source.image;
    if (!image || (frame === this.shown && !this.dirty && source.kind === "pictures")) return;
    this.surface.draw(image);
    this.dirty = false;
    if (frame !== this.shown) this.#moved(frame);
  }

  /** A video stops at the end of what exists, and before a gap: go on with the frame that follows. */
  #keepPlaying(frame, waited) {
    const here = spanAt(this.spans, frame);
    const over = !here || (isBreak(this.spans, frame) && waited > 1000 / this.session.fps);
    const stuck = here && waited > STUCK && this.source.has(here.index);
    if (!over && !stuck) return;
    const goal = over ? following(this.spans, frame) : nearest(this.spans, frame + 1); // never back from within a gap
    if (goal !== null) this.#go(goal);
    if (this.source.video.paused) this.source.play(true);
  }

  #moved(frame) {
    this.shown = frame;
    this.root.removeAttribute("data-empty");
    this.root.dataset.frame = String(frame);
    const time = `${clock(frame, this.session.fps)} / ${clock(this.session.frames, this.session.fps)}`;
    if (this.parts.time.textContent !== time) this.parts.time.textContent = time;
    this.timeline.at(frame, `frame ${frame + 1} of ${this.session.frames}, ${this.timeline.text(frame)}`);
    const picture = `frame ${frame + 1}`;
    this.parts.canvas.setAttribute("aria-label", picture);
  }

  #chunk(index) {
    return this.session.chunks.find((chunk) => chunk.index === index);
  }

  #controls() {
    const { play, mute } = this.parts.buttons;
    setIcon(play, this.playing ? "pause" : "play");
    setLabel(play, this.playing ? "pause" : "play");
    const sound = Boolean(this.session?.sound);
    setIcon(mute, sound && !this.muted ? "sound" : "muted");
    setLabel(mute, sound ? (this.muted ? "sound on" : "mute") : "this preview has no sound");
    this.root.dataset.playing = String(this.playing);
  }

  /** Read out the first chunk and the end; every chunk would be a torrent. */
  #announce(session) {
    const text = session?.end ? status(session) : session?.chunks.length ? "the first chunk can be watched" : "";
    if (this.parts.voice.textContent !== text) this.parts.voice.textContent = text;
  }

  /** Keys belong to the player while the focus is in it; those with Ctrl or Command go on to the host. */
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const onButton = event.target.closest("button");
    if (event.key === " " && !onButton && this.spans.length) {
      this.press("play");
      event.preventDefault();
    } else if (event.key === "f" && this.spans.length) this.press("full");
    else if (event.key === "m" && this.session?.sound) this.press("mute");
    else if (event.key === "," && this.source) this.step(-1);
    else if (event.key === "." && this.source) this.step(1);
    if (event.key !== "Escape" && event.key !== "Tab") event.stopPropagation();
  }
}
