"""The audit of a clip: how sure its labels are, what probably happened to it, what to do, and one verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from .clip import SemanticClip
from .edges import Signs
from .errors import Trouble
from .hypotheses import CHANNEL_SWAP, GAMMA, OTHER_PALETTE, WRONG_MATRIX
from .legend import Legend
from .palette import RGB
from .reading import CLASS_INDICES, PREMULTIPLIED, TRANSPARENT
from .survey import LOOKS, Survey, survey

# Colours with their shares of the flat area.
Unknown = tuple[tuple[RGB, float], ...]

GOOD, USABLE, STOP = "good", "usable", "stop"
LOSSY_CHROMA = "lossy chroma"
RESAMPLED = "resampled before"
UNKNOWN_COLOURS = "unknown colours"
NOTHING_LABELED = "nothing labeled"
PARTLY_UNLABELED = "unlabeled areas"
BAD_FRAMES = "bad frames"

# Shares of all pixels: above the first a clip is no longer good, above the second it is not a label clip.
SOME_DOUBT, TOO_MUCH_DOUBT = 0.0005, 0.3
# Share of the flat area in colours of no class above which the clip must not be rendered.
TOO_MUCH_UNKNOWN = 0.05
# Heavy compression makes small flat spots of its own: below this share of the flat area they are not colours of the clip.
CODED_UNKNOWN = 0.003
# An area of an unknown colour is this much larger than its flat part.
WITH_RIM = 1.25
# Share of the judged blends that must be darkened class colours before alpha is blamed.
DARKENED_SHARE = 0.3
UNLABELED = "unlabeled"  # the class of palettes for what has none
# Shares of unlabeled pixels worth a word, and those of a picture that holds nothing.
MUCH_UNLABELED, ALL_UNLABELED = 0.25, 0.95
# Share of the frames that may be no label pictures.
MOST_BAD_FRAMES = 0.1
# A class is thin where most of its pixels lie on an edge, damaged where most of those are unsure.
THIN_EDGE, THIN_UNSURE = 0.5, 0.5
# A class flickers when its area jumps by this part of itself and back, twice; it must cover this share of the frame.
FLICKER_CHANGE, FLICKER_SHARE, FLICKER_JUMPS = 0.4, 0.0005, 2

ADVICE = {
    LOSSY_CHROMA: "Re-export the clip lossless (FFV1, PNG frames, H.264 RGB with CRF 0) or at least as 4:4:4.",
    RESAMPLED: "The clip was resized or antialiased with blending. Render it at its final size without antialiasing, or "
    "resize with nearest neighbour only.",
    WRONG_MATRIX: "Export RGB without a colour conversion, or tag the file with the matrix and range it was encoded with.",
    CHANNEL_SWAP: "Swap red and blue back in the exporter (BGR was written as RGB).",
    GAMMA: "Turn off tone mapping and gamma: set the view transform of the label pass to Raw (non-colour data).",
    PREMULTIPLIED: "Export straight (unassociated) alpha, or no alpha at all.",
    TRANSPARENT: "Transparent pixels that carry class colours count as unlabeled. Export without alpha.",
    CLASS_INDICES: "The clip holds class numbers. Check that they count the classes of the chosen palette, or export colours.",
    OTHER_PALETTE: "Choose that palette instead; its classes are translated.",
    UNKNOWN_COLOURS: "Give these colours to classes in the exporter, or write a palette file that names them; if all colours "
    "look slightly wrong, turn off the view transform and tone mapping.",
    NOTHING_LABELED: "Check that the label pass was rendered: the clip is black.",
    PARTLY_UNLABELED: "Much of the picture is unlabeled (black), which the model does not know. Give these areas a class.",
    BAD_FRAMES: "Cut these frames away or export them again; fades and titles are no label pictures.",
}


@dataclass(frozen=True)
class Audit:
    """What was found. Shares are of all pixels; `damaged` and `flickering` are names of classes.

    `bad_frames` are numbers of 24 fps frames; `survey` has the shares frame by frame.
    """

    legend: Legend
    near: float
    causes: tuple[str, ...]
    verdict: str
    advice: str
    reading: str
    unknown: Unknown
    damaged: tuple[str, ...]
    flickering: tuple[str, ...]
    bad_frames: tuple[int, ...]
    survey: Survey = field(repr=False)

    @property
    def headline(self) -> str:
        """The verdict with its causes."""
        return f"{self.verdict}" + (f" ({', '.join(self.causes)})" if self.causes else "")

    @property
    def findings(self) -> list[str]:
        """Everything beyond the shares, one line each."""
        lines = [line for line in (self.reading, self.advice) if line]
        lines += [f"colour {list(rgb)} belongs to no class: {share:.2%}" for rgb, share in self.unknown]
        if self.bad_frames:
            lines.append(f"frames that are no label pictures: {spans(self.bad_frames)}")
        if self.damaged:
            lines.append(f"thin classes damaged: {', '.join(self.damaged)}")
        if self.flickering:
            lines.append(f"areas that flicker: {', '.join(self.flickering)}")
        return lines

    def as_text(self) -> str:
        """Verdict, causes with advice, and the legend."""
        return "\n".join([f"verdict: {self.headline}", *self.findings, self.legend.as_text()])


def audit(clip: SemanticClip, looks: int = LOOKS, on_frame: Callable[[int], None] = lambda frame: None) -> Audit:
    """Read a clip once, about `looks` of its frames closely, and judge it.

    `on_frame` gets the number of each frame after it was read, and may raise to stop.
    """
    seen = survey(clip, looks, on_frame)
    shares = tuple(seen.mean("classes").tolist())
    legend = Legend(clip.palette, shares, float(seen.mean("exact")), float(seen.mean("doubtful")), len(seen.counts))
    signs = sum((look.signs for look in seen.looks), start=Signs())
    unknown = _unknown_colours(clip, CODED_UNKNOWN if signs.coded else 0.0)
    bad = _bad_frames(seen, clip)
    doubt = float(np.delete(seen.per_frame("doubtful"), bad).mean())
    causes = _causes(clip, legend, doubt, unknown, signs, bad)
    troubles = {trouble.cause: trouble for trouble in clip.source.troubles}
    causes = (*causes, *troubles)
    return Audit(
        legend=legend,
        near=float(seen.mean("near")),
        causes=causes,
        verdict=_verdict(clip, doubt, unknown, causes, len(bad) / clip.frames),
        advice=" ".join(troubles[cause].advice if cause in troubles else ADVICE[cause] for cause in causes),
        reading=_reading(clip, tuple(troubles.values())),
        unknown=unknown,
        damaged=_damaged(seen),
        flickering=_flickering(seen),
        bad_frames=bad,
        survey=seen,
    )


def spans(numbers: tuple[int, ...], most: int = 6) -> str:
    """Numbers as "3, 7-9"; no more than `most` spans."""
    cuts = [0, *(np.flatnonzero(np.diff(numbers) > 1) + 1).tolist(), len(numbers)]
    parts = [(numbers[start], numbers[stop - 1]) for start, stop in pairwise(cuts)]
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts[:most])
    return text + (", ..." if len(parts) > most else "")


def _reading(clip: SemanticClip, troubles: tuple[Trouble, ...]) -> str:
    own = f"{clip.reading.cause}: {clip.reading.detail}" if clip.reading.detail else clip.reading.cause
    return "; ".join([*([own] if own else []), *(trouble.detail for trouble in troubles)])


def _unknown_colours(clip: SemanticClip, least: float) -> Unknown:
    """Flat colours of no class of the reading with their share of the flat area (`least` or more), largest first."""
    reading = clip.reading
    strange = ~reading.flat.known(reading.seen, radius=float(reading.seen.radii.max()))
    strange &= reading.flat.shares >= least
    colours, shares = reading.flat.colours[strange][:16], reading.flat.shares[strange][:16]
    return tuple(((int(r), int(g), int(b)), float(share)) for (r, g, b), share in zip(colours, shares, strict=True))


def _bad_frames(seen: Survey, clip: SemanticClip) -> tuple[int, ...]:
    """Frames that are no label pictures in a clip of which others are."""
    if not clip.reading.trusted:
        return ()
    bad = seen.per_frame("doubtful") > TOO_MUCH_DOUBT
    if _has_black(clip):
        bad |= seen.per_frame("classes")[:, 0] > ALL_UNLABELED
    return () if bad.all() else tuple(np.flatnonzero(bad).tolist())


def _causes(
    clip: SemanticClip, legend: Legend, doubt: float, unknown: Unknown, signs: Signs, bad: tuple[int, ...]
) -> tuple[str, ...]:
    causes = [clip.reading.cause] if clip.reading.cause else []
    blends = doubt - WITH_RIM * sum(share for _, share in unknown)
    if clip.reading.trusted and SOME_DOUBT < blends < TOO_MUCH_DOUBT:
        if signs.darkened > DARKENED_SHARE * signs.judged:
            causes.append(PREMULTIPLIED)
        elif signs.resampled:
            causes.append(RESAMPLED)
        if signs.coded:
            causes.append(LOSSY_CHROMA)
    if (unknown or blends >= TOO_MUCH_DOUBT) and clip.reading.cause not in (OTHER_PALETTE, CLASS_INDICES):
        causes.append(UNKNOWN_COLOURS)
    if _has_black(clip) and legend.classes[0] > ALL_UNLABELED:
        causes.append(NOTHING_LABELED)
    elif clip.reading.trusted and clip.palette.names[0] == UNLABELED and legend.classes[0] > MUCH_UNLABELED:
        causes.append(PARTLY_UNLABELED)
    if bad:
        causes.append(BAD_FRAMES)
    return tuple(dict.fromkeys(causes))


def _verdict(clip: SemanticClip, doubt: float, unknown: Unknown, causes: tuple[str, ...], bad: float) -> str:
    """`doubt` is the share of doubtful pixels in the frames that are not `bad`, of which it is a share of all."""
    strange = min(doubt, sum(share for _, share in unknown))  # pixels of an unknown colour are doubtful
    lost = strange > TOO_MUCH_UNKNOWN or doubt > TOO_MUCH_DOUBT
    if not clip.reading.trusted or lost or NOTHING_LABELED in causes or bad > MOST_BAD_FRAMES:
        return STOP
    return USABLE if causes or doubt > SOME_DOUBT else GOOD


def _has_black(clip: SemanticClip) -> bool:
    return not any(clip.palette.entries[0].rgb)


def _damaged(seen: Survey) -> tuple[str, ...]:
    looks = seen.looks
    area, edge, unsure = (
        np.sum([getattr(look, name) for look in looks], axis=0) for name in ("classes", "on_edge", "unsure_on_edge")
    )
    thin = (edge > THIN_EDGE * area) & (unsure > THIN_UNSURE * edge) & (area > 0)
    return tuple(seen.palette.names[index] for index in np.flatnonzero(thin))


def _flickering(seen: Survey) -> tuple[str, ...]:
    """Classes whose area jumps from one frame to the next and back again."""
    areas = np.array([one.classes for one in seen.counts])  # [n, classes]
    if len(areas) < 3:
        return ()
    before, now, after = areas[:-2], areas[1:-1], areas[2:]
    jump = np.minimum(np.abs(now - before), np.abs(now - after)) * (np.sign(now - before) == np.sign(now - after))
    largest = np.maximum(now, np.maximum(before, after))
    jumps = (jump > FLICKER_CHANGE * largest) & (largest > FLICKER_SHARE)
    return tuple(seen.palette.names[index] for index in np.flatnonzero(jumps.sum(axis=0) >= FLICKER_JUMPS))
