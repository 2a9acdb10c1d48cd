"""The legend of a clip: how much of it each class covers, and how sure the labels are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .palette import Palette

if TYPE_CHECKING:
    from PIL.Image import Image

    from .clip import SemanticClip

SAMPLES = 32

_BACKGROUND, _BRIGHT, _DIM = (32, 32, 32), (235, 235, 235), (120, 120, 120)


@dataclass(frozen=True)
class Legend:
    """Shares in [0, 1] of the pixels looked at: `classes` in palette order, `exact` colours, `doubtful` blends."""

    palette: Palette
    classes: tuple[float, ...]
    exact: float
    doubtful: float
    frames: int

    @property
    def shares(self) -> dict[str, float]:
        """Class name -> share."""
        return dict(zip(self.palette.names, self.classes, strict=True))

    def as_text(self) -> str:
        """One line per class that occurs, largest first, then how sure the labels are."""
        width = max(len(name) for name in self.palette.names)
        rows = sorted(self.shares.items(), key=lambda row: -row[1])
        lines = [f"{name:<{width}}  {share:8.3%}" for name, share in rows if share > 0]
        lines.append(f"exact colours {self.exact:.2%}, doubtful pixels {self.doubtful:.3%} ({self.frames} frames seen)")
        return "\n".join(lines)

    def picture(self, row: int = 24) -> Image:
        """The legend drawn: colour square, name and share of each class, then how sure the labels are; RGB image."""
        from PIL import Image, ImageDraw

        lines = [f"{name}  {share:.2%}" for name, share in self.shares.items()]
        lines += [f"exact  {self.exact:.2%}", f"doubtful  {self.doubtful:.2%}"]
        image = Image.new("RGB", (row * 12, row * len(lines) + row // 2), _BACKGROUND)
        draw = ImageDraw.Draw(image)
        for index, line in enumerate(lines):
            top = row // 4 + index * row
            present = index >= len(self.palette) or self.classes[index] > 0
            draw.text((row * 3 // 2, top + row // 4), line, fill=_BRIGHT if present else _DIM)
            if index < len(self.palette):
                colour = self.palette.entries[index].rgb
                draw.rectangle((row // 4, top + 2, row, top + row - 4), fill=colour, outline=_DIM)
        return image


def read_legend(clip: SemanticClip, samples: int = SAMPLES) -> Legend:
    """Read a clip once and count at most `samples` of its frames, spread evenly."""
    classes = np.zeros(len(clip.palette), dtype=np.int64)
    exact = doubtful = frames = 0
    every = -(-clip.frames // samples)
    for frame in clip.label_frames(lambda k: k % every == 0):
        classes += np.bincount(frame.ids.ravel(), minlength=len(clip.palette))
        exact += int(frame.exact.sum())
        doubtful += int(frame.doubtful.sum())
        frames += 1
    pixels = int(classes.sum())
    shares = tuple(float(count) / pixels for count in classes)
    return Legend(clip.palette, shares, exact / pixels, doubtful / pixels, frames)
