"""The card shown on the node: verdict, length and chunks, and the legend with each class's colour, name and share."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from .audit import GOOD, USABLE, Audit

if TYPE_CHECKING:
    from PIL.Image import Image

WIDTH, MARGIN, LINE, COLUMNS = 480, 12, 18, 74
_BACKGROUND, _TEXT = (32, 32, 32), (225, 225, 225)
_VERDICTS = {GOOD: (60, 160, 80), USABLE: (200, 150, 40)}
_STOP = (200, 60, 50)


def draw_card(found: Audit, length: list[str]) -> Image:
    """The card as an RGB image; `length` are the lines of the chunk table."""
    from PIL import Image, ImageDraw

    headline = wrap(f"{found.verdict.upper()}  {', '.join(found.causes)}", COLUMNS)
    words = [line for finding in found.findings for line in wrap(finding, COLUMNS)] + length
    legend = found.legend.picture()
    top = MARGIN + LINE * len(headline) + MARGIN
    height = top + MARGIN + LINE * len(words) + legend.height + MARGIN
    card = Image.new("RGB", (max(WIDTH, legend.width), height), _BACKGROUND)
    draw = ImageDraw.Draw(card)
    draw.rectangle([0, 0, card.width, top - 1], fill=_VERDICTS.get(found.verdict, _STOP))
    for row, line in enumerate(headline):
        draw.text((MARGIN, MARGIN + LINE * row), line, fill=(255, 255, 255))
    for row, line in enumerate(words):
        draw.text((MARGIN, top + MARGIN + LINE * row), line, fill=_TEXT)
    card.paste(legend, (0, height - legend.height - MARGIN // 2))
    return card
