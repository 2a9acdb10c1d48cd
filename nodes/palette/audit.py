"""The audit of a clip: how sure its labels are, what probably happened to it, what to do, and one verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from .clip import LabelFrame, SemanticClip
from .edges import Signs, read_signs
from .hypotheses import CHANNEL_SWAP, GAMMA, OTHER_PALETTE, WRONG_MATRIX
from .legend import Legend
from .palette import RGB, Palette
from .reading import CLASS_INDICES, PREMULTIPLIED

# Colours with their shares of the flat area.
Unknown = tuple[tuple[RGB, float], ...]

GOOD, USABLE, STOP = "good", "usable", "stop"
LOSSY_CHROMA = "lossy chroma"
RESAMPLED = "resampled before"
UNKNOWN_COLOURS = "unknown colours"
NOTHING_LABELED = "nothing labeled"

SAMPLES = 24
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
ALL_UNLABELED = 0.95
# A class is thin where most of its pixels lie on an edge, damaged where most of those are unsure.
THIN_EDGE, THIN_UNSURE = 0.5, 0.5
FLICKER_CHANGE, FLICKER_SHARE = 0.4, 0.0005

ADVICE = {
    LOSSY_CHROMA: "Re-export the clip lossless (FFV1, PNG frames, H.264 RGB with CRF 0) or at least as 4:4:4.",
    RESAMPLED: "The clip was resized or antialiased with blending. Render it at its final size without antialiasing, or "
    "resize with nearest neighbour only.",
    WRONG_MATRIX: "Export RGB without a colour conversion, or tag the file with the matrix and range it was encoded with.",
    CHANNEL_SWAP: "Swap red and blue back in the exporter (BGR was written as RGB).",
    GAMMA: "Turn off tone mapping and gamma: set the view transform of the label pass to Raw (non-colour data).",
    PREMULTIPLIED: "Export straight (unassociated) alpha, or no alpha at all.",
    CLASS_INDICES: "The clip holds class numbers. Check that they count the classes of the chosen palette, or export colours.",
    OTHER_PALETTE: "Choose that palette instead; its classes are translated.",
    UNKNOWN_COLOURS: "Give these colours to classes in the exporter, or write a palette file that names them.",
    NOTHING_LABELED: "Check that the label pass was rendered: the clip is black.",
}


@dataclass(frozen=True)
class Audit:
    """What was found. Shares are of all pixels looked at; `damaged` and `flickering` are names of classes."""

    legend: Legend
    near: float
    causes: tuple[str, ...]
    verdict: str
    advice: str
    reading: str
    unknown: Unknown
    damaged: tuple[str, ...]
    flickering: tuple[str, ...]
    doubtful_frames: tuple[float, ...] = field(repr=False)

    def as_text(self) -> str:
        """Verdict, causes with advice, and the legend."""
        lines = [f"verdict: {self.verdict}" + (f" ({', '.join(self.causes)})" if self.causes else "")]
        lines += [line for line in (self.reading, self.advice) if line]
        lines += [f"colour {list(rgb)} belongs to no class: {share:.2%}" for rgb, share in self.unknown]
        if self.damaged:
            lines.append(f"thin classes damaged: {', '.join(self.damaged)}")
        if self.flickering:
            lines.append(f"areas that flicker: {', '.join(self.flickering)}")
        return "\n".join([*lines, self.legend.as_text()])


def audit(clip: SemanticClip, samples: int = SAMPLES) -> Audit:
    """Read a clip once and judge about `samples` of its frames, in pairs of neighbours spread evenly."""
    seen = [_look(frame, len(clip.palette), clip.reading.seen) for frame in _sampled(clip, samples)]
    classes = np.sum([look.classes for look in seen], axis=0)
    pixels = int(classes.sum())
    exact, near = (sum(getattr(look, name) for look in seen) / pixels for name in ("exact", "near"))
    doubtful = sum(look.doubtful for look in seen) / pixels
    legend = Legend(clip.palette, tuple((classes / pixels).tolist()), exact, doubtful, len(seen))
    signs = sum((look.signs for look in seen), start=Signs())
    unknown = _unknown_colours(clip, CODED_UNKNOWN if signs.coded else 0.0)
    causes = _causes(clip, legend, unknown, signs)
    return Audit(
        legend=legend,
        near=near,
        causes=causes,
        verdict=_verdict(clip, legend, unknown, causes),
        advice=" ".join(ADVICE[cause] for cause in causes),
        reading=f"{clip.reading.cause}: {clip.reading.detail}" if clip.reading.detail else clip.reading.cause,
        unknown=unknown,
        damaged=_damaged(clip.palette, seen),
        flickering=_flickering(clip.palette, seen),
        doubtful_frames=tuple(look.doubtful / look.classes.sum() for look in seen),
    )


@dataclass(frozen=True)
class _Look:
    """Counts of one frame; `classes`, `on_edge`, `unsure_on_edge` are int64 [classes]."""

    classes: np.ndarray
    on_edge: np.ndarray
    unsure_on_edge: np.ndarray
    exact: int
    near: int
    doubtful: int
    signs: Signs


def _sampled(clip: SemanticClip, samples: int) -> Iterator[LabelFrame]:
    """Pairs of neighbouring frames, spread evenly over the clip."""
    every = max(1, -(-2 * clip.frames // samples))
    yield from clip.label_frames(lambda k: k % every < 2)


def _look(frame: LabelFrame, classes: int, seen: Palette) -> _Look:
    ids = frame.ids
    edge = np.zeros(ids.shape, dtype=bool)
    for axis in (0, 1):
        change = np.swapaxes(ids, 0, axis)[1:] != np.swapaxes(ids, 0, axis)[:-1]
        np.swapaxes(edge, 0, axis)[1:] |= change
        np.swapaxes(edge, 0, axis)[:-1] |= change
    doubtful, exact = frame.doubtful, int(np.count_nonzero(frame.exact))
    count = int(np.count_nonzero(doubtful))
    return _Look(
        classes=np.bincount(ids.ravel(), minlength=classes),
        on_edge=np.bincount(ids[edge], minlength=classes),
        unsure_on_edge=np.bincount(ids[edge & doubtful], minlength=classes),
        exact=exact,
        near=ids.size - exact - count,
        doubtful=count,
        signs=read_signs(frame.rgb, frame.codes, seen),
    )


def _unknown_colours(clip: SemanticClip, least: float) -> Unknown:
    """Flat colours of no class of the reading with their share of the flat area (`least` or more), largest first."""
    reading = clip.reading
    strange = ~reading.flat.known(reading.seen, radius=float(reading.seen.radii.max()))
    strange &= reading.flat.shares >= least
    colours, shares = reading.flat.colours[strange][:16], reading.flat.shares[strange][:16]
    return tuple(((int(r), int(g), int(b)), float(share)) for (r, g, b), share in zip(colours, shares, strict=True))


def _causes(clip: SemanticClip, legend: Legend, unknown: Unknown, signs: Signs) -> tuple[str, ...]:
    causes = [clip.reading.cause] if clip.reading.cause else []
    blends = legend.doubtful - WITH_RIM * sum(share for _, share in unknown)
    if clip.reading.trusted and SOME_DOUBT < blends < TOO_MUCH_DOUBT:
        if signs.darkened > DARKENED_SHARE * signs.judged:
            causes.append(PREMULTIPLIED)
        elif signs.resampled:
            causes.append(RESAMPLED)
        if signs.coded:
            causes.append(LOSSY_CHROMA)
    if (unknown or blends >= TOO_MUCH_DOUBT) and clip.reading.cause != OTHER_PALETTE:
        causes.append(UNKNOWN_COLOURS)
    if legend.classes[0] > ALL_UNLABELED and not any(clip.palette.entries[0].rgb):
        causes.append(NOTHING_LABELED)
    return tuple(dict.fromkeys(causes))


def _verdict(clip: SemanticClip, legend: Legend, unknown: Unknown, causes: tuple[str, ...]) -> str:
    lost = sum(share for _, share in unknown) > TOO_MUCH_UNKNOWN or legend.doubtful > TOO_MUCH_DOUBT
    if not clip.reading.trusted or lost or NOTHING_LABELED in causes:
        return STOP
    return USABLE if causes or legend.doubtful > SOME_DOUBT else GOOD


def _damaged(palette: Palette, seen: list[_Look]) -> tuple[str, ...]:
    area, edge, unsure = (
        sum(getattr(look, name) for look in seen) for name in ("classes", "on_edge", "unsure_on_edge")
    )
    thin = (edge > THIN_EDGE * area) & (unsure > THIN_UNSURE * edge) & (area > 0)
    return tuple(palette.names[index] for index in np.flatnonzero(thin))


def _flickering(palette: Palette, seen: list[_Look]) -> tuple[str, ...]:
    """Classes whose area typically changes by much between neighbouring frames."""
    pairs = list(pairwise(look.classes for look in seen))[::2]
    if not pairs:
        return ()
    before, after = (np.stack(side).astype(np.float64) for side in zip(*pairs, strict=True))
    largest = np.maximum(before, after)
    change = np.median(np.abs(after - before) / np.maximum(largest, 1), axis=0)
    often = np.median(largest, axis=0) > FLICKER_SHARE * before.sum(axis=1).mean()
    return tuple(palette.names[index] for index in np.flatnonzero((change > FLICKER_CHANGE) & often))
