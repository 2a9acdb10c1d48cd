// Draws the two halves of a preview picture on one canvas: the map to the left of the wipe, the render to its right.

export class Surface {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.wipe = 0; // share of the width that shows the map
    this.empty = true;
  }

  /** Size of one half in pixels. */
  resize(width, height) {
    if (this.canvas.width === width && this.canvas.height === height) return;
    this.canvas.width = width;
    this.canvas.height = height;
    this.empty = true;
  }

  /** Draw a picture that holds the render above the map. */
  draw(image) {
    const { width, height } = this.canvas;
    const seam = Math.round(width * this.wipe);
    if (seam < width) {
      this.context.drawImage(image, seam, 0, width - seam, height, seam, 0, width - seam, height);
    }
    if (seam > 0) this.context.drawImage(image, 0, height, seam, height, 0, 0, seam, height);
    this.empty = false;
  }

  clear() {
    if (this.empty) return;
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.empty = true;
  }

  /** What is seen, as a PNG. */
  png() {
    return new Promise((resolve, reject) => {
      this.canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png");
    });
  }
}
