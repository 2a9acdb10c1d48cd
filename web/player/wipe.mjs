// The slider over the picture that uncovers the semantic map.

const KEYS = { ArrowLeft: -0.02, ArrowDown: -0.02, ArrowRight: 0.02, ArrowUp: 0.02, PageDown: -0.1, PageUp: 0.1 };

export class Wipe {
  /** @param changed (share) called with the share of the width that shows the map */
  constructor(parts, changed) {
    this.slider = parts.wipe;
    this.frame = parts.frame;
    this.names = parts.names;
    this.changed = changed;
    this.frame.addEventListener("pointerdown", (event) => this.#grab(event));
    this.frame.addEventListener("pointermove", (event) => this.#drag(event));
    this.frame.addEventListener("dblclick", () => this.set(this.share > 0 ? 0 : 0.5));
    this.slider.addEventListener("keydown", (event) => this.#key(event));
    this.set(0);
  }

  set(share) {
    this.share = Math.min(1, Math.max(0, share));
    const percent = Math.round(100 * this.share);
    this.frame.style.setProperty("--srh3-wipe", `${100 * this.share}%`);
    this.frame.dataset.wipe = this.share > 0 ? (this.share < 1 ? "both" : "map") : "render";
    this.slider.setAttribute("aria-valuenow", String(percent));
    this.slider.setAttribute("aria-valuetext", `${percent} % map`);
    this.changed(this.share);
  }

  #at(event) {
    const box = this.frame.getBoundingClientRect();
    return (event.clientX - box.left) / box.width;
  }

  #grab(event) {
    if (event.button !== 0) return;
    this.start = event.target === this.slider ? null : event.clientX; // beside the handle: only once it is dragged
    this.frame.setPointerCapture(event.pointerId);
    this.slider.focus({ preventScroll: true });
  }

  #drag(event) {
    if (!this.frame.hasPointerCapture(event.pointerId)) return;
    if (this.start !== null && Math.abs(event.clientX - this.start) < 4) return;
    this.start = null;
    this.set(this.#at(event));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in KEYS) this.set(this.share + KEYS[event.key]);
    else if (event.key === "Home") this.set(0);
    else if (event.key === "End") this.set(1);
    else return;
    event.preventDefault();
  }
}
