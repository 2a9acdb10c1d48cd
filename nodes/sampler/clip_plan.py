"""A whole clip in numbers: its latents, sound, segments, decoded chunks, packed rows and their coordinates. No torch in here.

The native layout of MiniMax-H3 (T2VA and Ref2VA): text | picture | reference video | sound | video, everything new denoised
together in one forward over all rows. Lengths the model makes are 17k + 5 frames, which are 5k + 2 video latents and
round(frames * 40 / 24) sound latents. It drifts after about five seconds under a reference video, so a longer clip is made
in segments: each begins on the last frame of the one before, which takes the place of the picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..schedule import FPS, Geometry, frame_of_latent, position_thirds, rows_per_frame, spatial_axes
from ..schedule.clock import AUDIO_HZ, FRAMES_PER_CYCLE, LATENTS_PER_CYCLE
from ..schedule.rope import Position
from ..schedule.rows import AUDIO_CHANNELS, AUDIO_TAG, VISUAL_TAG
from .finite import RenderError

SEGMENT_FRAMES = 124  # 5.2 s, the shortest clip the model was released for
LONGEST_FRAMES = 345  # 14.4 s, the longest one
LEAST_FRAMES, TAIL_LATENTS = 5, 2
DECODE_LATENTS = LATENTS_PER_CYCLE  # decoded, written and shown at a time: 17 frames


def fitting_frames(frames: int) -> int:
    """The fewest frames of the form 17k + 5 that hold `frames`."""
    return LEAST_FRAMES + FRAMES_PER_CYCLE * max(0, -(-(frames - LEAST_FRAMES) // FRAMES_PER_CYCLE))


def latents_of(frames: int) -> int:
    """Video latents of 17k + 5 frames: 5k + 2."""
    return LATENTS_PER_CYCLE * ((frames - LEAST_FRAMES) // FRAMES_PER_CYCLE) + TAIL_LATENTS


def sound_of(frames: int) -> int:
    """Sound latents of `frames`, per channel."""
    return round(frames * AUDIO_HZ / FPS)


@dataclass(frozen=True)
class Segment:
    """One call of the model: `frames` frames from the clip's frame `start` on, of which those before `stop` are shown.

    From the second on the first frame is the one that the segment before ended with; it is not shown again.
    """

    index: int
    start: int
    frames: int
    stop: int

    @property
    def latents(self) -> int:
        return latents_of(self.frames)

    @property
    def sound(self) -> int:
        return sound_of(self.frames)

    @property
    def shown(self) -> range:
        """Frames of the clip that come from here."""
        return range(self.start + (self.index > 0), self.stop)


@dataclass(frozen=True)
class ClipChunk:
    """What is decoded at a time: latents of a segment, and the clip's frames that they stand for."""

    index: int
    segment: Segment
    latents: range
    frames: range

    @property
    def last(self) -> bool:
        """Whether the segment ends with it."""
        return self.latents.stop == self.segment.latents


@dataclass(frozen=True)
class ClipPlan:
    """A clip of `frames` frames as segments, which are all of one length."""

    frames: int
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, frames: int, segment_frames: int = SEGMENT_FRAMES) -> ClipPlan:
        """As few segments of at most `segment_frames` (rounded up to 17k + 5) as cover `frames`, evenly long."""
        longest = fitting_frames(segment_frames)
        if frames < 1:
            raise RenderError(f"the clip has {frames} frames; at least one is needed. Give a longer clip.")
        if longest > LONGEST_FRAMES:
            raise RenderError(
                f"{segment_frames} frames were asked for at a time; the model makes at most {LONGEST_FRAMES} (14.4 seconds). "
                f"Set {LONGEST_FRAMES} or less."
            )
        count = max(1, -(-(frames - 1) // (longest - 1)))
        length = fitting_frames(-(-(frames - 1) // count) + 1)
        stops = [min(frames, (index + 1) * (length - 1) + 1) for index in range(count)]
        return cls(frames, tuple(Segment(i, i * (length - 1), length, stop) for i, stop in enumerate(stops)))

    @property
    def chunks(self) -> tuple[ClipChunk, ...]:
        """Everything in the order in which it is decoded."""
        chunks: list[ClipChunk] = []
        for segment in self.segments:
            for first in range(0, segment.latents, DECODE_LATENTS):
                latents = range(first, min(segment.latents, first + DECODE_LATENTS))
                own = range(*(segment.start + frame_of_latent(latent) for latent in (latents.start, latents.stop)))
                start, stop = max(own.start, segment.shown.start), min(own.stop, segment.stop)
                chunks.append(ClipChunk(len(chunks), segment, latents, range(start, max(start, stop))))
        return tuple(chunks)

    def windows(self, frames: int) -> Iterator[ClipChunk]:
        """The chunks, as the preview asks a schedule for its windows."""
        return iter(self.chunks)


# ---------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class ClipShape:
    """The grids of one call, latent (height, width); without a reference, or a picture, there are no such rows."""

    frames: int
    target: tuple[int, int]
    picture: tuple[int, int] | None = None
    reference: tuple[int, int] | None = None

    @classmethod
    def of(cls, frames: int, size: tuple[int, int], reference_size: tuple[int, int] | None = None) -> ClipShape:
        """From pixel sizes (height, width): T2VA without a reference size, Ref2VA with one. Raises `ScheduleError`."""
        grids = Geometry.from_sizes(target=size, reference=reference_size or size, picture=size)
        if reference_size is None:
            return cls(frames, grids.target)
        return cls(frames, grids.target, grids.target, grids.reference)

    def without_reference(self) -> ClipShape:
        """The same without the reference video, as one guidance call has it."""
        return replace(self, reference=None)

    def segments(self, text_rows: int) -> dict[str, range]:
        """Packed rows of text, picture, reference, audio and video, in that order; empty where there are none."""
        latents = latents_of(self.frames)
        counts = {
            "text": text_rows,
            "picture": rows_per_frame(self.picture) if self.picture else 0,
            "reference": rows_per_frame(self.reference) * latents if self.reference else 0,
            "audio": AUDIO_CHANNELS * sound_of(self.frames),
            "video": rows_per_frame(self.target) * latents,
        }
        found, total = {}, 0
        for name, count in counts.items():
            found[name] = range(total, total + count)
            total += count
        return found

    def rows(self, text_rows: int) -> int:
        """All packed rows."""
        return self.segments(text_rows)["video"].stop

    @property
    def grid(self) -> tuple[int, int, int]:
        """Rows of the video along time, height and width."""
        return latents_of(self.frames), self.target[0] // 2, self.target[1] // 2

    @property
    def reference_grid(self) -> tuple[int, int, int] | None:
        """Rows of the reference video along time, height and width."""
        return None if self.reference is None else (self.grid[0], self.reference[0] // 2, self.reference[1] // 2)

    def positions(self, text_rows: int) -> list[Position]:
        """(t, h, w) of every packed row, float64, as `MiniMax-H3` lays out T2VA and Ref2VA.

        The picture takes one unit of time after the text, the reference video its own length, then sound and video begin.
        """
        latents = [position_thirds(latent) for latent in range(latents_of(self.frames) + 1)]
        rows: list[Position] = [(float(n), 0.0, 0.0) for n in range(text_rows)]
        origin = 3 * text_rows  # thirds, so that nothing is rounded on the way
        if self.picture:
            rows += _frames([origin], self.picture)
            origin += 3
        if self.reference:
            rows += _frames([origin + time for time in latents[:-1]], self.reference)
            origin += latents[-1]
        _, width = spatial_axes(self.target)
        sound = range(sound_of(self.frames))
        rows += [((origin + 3 * j) / 3, 0.0, w) for w in (width[0], width[-1]) for j in sound]
        return rows + _frames([origin + time for time in latents[:-1]], self.target)

    def tags(self, text_tags: list[int]) -> list[int]:
        """AdaLN modality of every packed row."""
        parts = self.segments(len(text_tags))
        visual = len(parts["picture"]) + len(parts["reference"])
        sound, video = len(parts["audio"]), len(parts["video"])
        return [*text_tags, *[VISUAL_TAG] * visual, *[AUDIO_TAG] * sound, *[VISUAL_TAG] * video]


def _frames(thirds: list[int], grid: tuple[int, int]) -> list[Position]:
    h_axis, w_axis = spatial_axes(grid)
    return [(time / 3, h, w) for time in thirds for h in h_axis for w in w_axis]
