// Paints the timeline's cells and turns pointer and keys on it into frames.

import { cellAt, cells, describe, strips } from "./timeline.mjs";

const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 };

export class TimelineView {
  /** @param actions { seek(frame), step(by), chunk(by) } */
  constructor(parts, actions) {
    this.slider = parts.timeline;
    this.strip = parts.strip;
    this.head = parts.head;
    this.actions = actions;
    this.cells = [];
    this.slider.addEventListener("pointerdown", (event) => this.#grab(event));
    this.slider.addEventListener("pointermove", (event) => this.#point(event));
    this.slider.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Paint the state of a preview; null paints an empty strip. */
  show(session) {
    this.session = session;
    this.cells = session ? cells(session) : [];
    this.total = session ? session.frames : 0;
    this.slider.setAttribute("aria-valuemax", String(Math.max(0, this.total - 1)));
    this.slider.dataset.states = this.cells.length <= 256 ? this.cells.map((cell) => cell.state).join(" ") : "";
    this.paint();
  }

  paint() {
    const scale = globalThis.devicePixelRatio || 1;
    const width = Math.round(this.slider.clientWidth * scale);
    const height = Math.round(this.slider.clientHeight * scale);
    if (!width || !height) return;
    if (this.strip.width !== width || this.strip.height !== height) {
      this.strip.width = width;
      this.strip.height = height;
    }
    const context = this.strip.getContext("2d");
    const style = getComputedStyle(this.slider);
    const colour = (name) => style.getPropertyValue(`--srh3-${name}`).trim();
    context.clearRect(0, 0, width, height);
    const gap = this.cells.length * 4 * scale < width ? Math.round(scale) : 0;
    for (const { left, right, state, pace } of strips(this.cells, width)) {
      const wide = Math.max(1, right - left - gap);
      const done = state === "ready" || state === "suspect" || state === "gone";
      context.globalAlpha = state === "gone" ? 0.45 : 1;
      context.fillStyle = colour(done ? pace : state);
      context.fillRect(left, 0, wide, height);
      if (state === "suspect") {
        context.fillStyle = colour("suspect"); // a mark as well as a colour
        context.fillRect(left, 0, wide, Math.ceil(height / 3));
      } else if (state === "rendering") {
        context.fillStyle = colour("queued");
        context.fillRect(left, 0, wide, Math.floor(height / 2));
      }
      context.globalAlpha = 1;
    }
  }

  /** Put the playhead on a frame. */
  at(frame, text) {
    const share = this.total ? (frame + 0.5) / this.total : 0;
    this.head.style.left = `${100 * share}%`;
    this.slider.setAttribute("aria-valuenow", String(frame));
    this.slider.setAttribute("aria-valuetext", text);
  }

  /** The description of the cell that holds a frame. */
  text(frame) {
    if (!this.cells.length) return "nothing rendered yet";
    return this.#describe(cellAt(this.cells, (frame + 0.5) / this.total));
  }

  #describe(cell) {
    return describe(cell, this.session.chunks.find((chunk) => chunk.index === cell.index));
  }

  #share(event) {
    const box = this.slider.getBoundingClientRect(); // of the zoomed graph too
    return Math.min(0.999999, Math.max(0, (event.clientX - box.left) / box.width));
  }

  #grab(event) {
    if (event.button !== 0 || !this.session) return;
    this.slider.setPointerCapture(event.pointerId);
    this.actions.seek(Math.floor(this.#share(event) * this.total));
  }

  #point(event) {
    if (!this.session) return;
    const share = this.#share(event);
    this.slider.title = this.#describe(cellAt(this.cells, share));
    if (this.slider.hasPointerCapture(event.pointerId)) this.actions.seek(Math.floor(share * this.total));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in STEPS) this.actions.step(STEPS[event.key]);
    else if (event.key === "PageDown") this.actions.chunk(-1);
    else if (event.key === "PageUp") this.actions.chunk(1);
    else if (event.key === "Home") this.actions.seek(0);
    else if (event.key === "End") this.actions.seek(this.total - 1);
    else return;
    event.preventDefault();
  }
}
