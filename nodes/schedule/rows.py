"""The packed rows of one window: text, picture, reference, audio, video, and which of them are prefix and which move.

One document, batch 1. Visual rows are 2x2 patches in (frame, h, w) order; audio rows are channel-major, all of the left
channel before the right. Prefix rows (text, picture and everything of the sink) attend only to each other, so their
keys and values stay valid from chunk 1 on; the moving rows attend to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import ScheduleError, whole_number
from .window import Window

Grid = tuple[int, int]  # (height, width) in latents
Size = tuple[int, int]  # (height, width) in pixels

LATENT_PIXELS = 16
PATCH = (1, 2, 2)  # latents per row in (t, h, w)
AUDIO_CHANNELS = 2
MINIMUM_GRID = 4

VISUAL_TAG, TEXT_TAG, AUDIO_TAG = 0, 1, 2  # AdaLN modality of a row


@dataclass(frozen=True)
class Geometry:
    """Latent grids (height, width) of target video, semantic reference video and picture (None: no picture rows).

    Sides are even and at least 4: pixel sizes are multiples of 32 and at least 64. Raises `ScheduleError` otherwise.
    """

    target: Grid
    reference: Grid
    picture: Grid | None

    def __post_init__(self) -> None:
        for name, grid in (("target", self.target), ("reference", self.reference), ("picture", self.picture)):
            if grid is not None:
                _grid(name, (grid[0] * LATENT_PIXELS, grid[1] * LATENT_PIXELS))

    @classmethod
    def from_sizes(cls, target: Size, reference: Size, picture: Size | None) -> Geometry:
        """The geometry of three pixel sizes (height, width)."""
        return cls(
            _grid("target", target),
            _grid("reference", reference),
            None if picture is None else _grid("picture", picture),
        )


def _grid(name: str, size: Size) -> Grid:
    """The latent grid of a pixel size, checked before the division can hide a remainder."""
    height, width = size
    step, least = LATENT_PIXELS * PATCH[1], LATENT_PIXELS * MINIMUM_GRID
    if any(side % step or side < least for side in size):
        fit_height, fit_width = (max(least, round(side / step) * step) for side in size)
        raise ScheduleError(
            f"the {name} size is {width}x{height} pixels; width and height must be multiples of {step} and at least "
            f"{least}. Set it to {fit_width}x{fit_height}."
        )
    return height // LATENT_PIXELS, width // LATENT_PIXELS


RELEASE_GEOMETRY = Geometry(target=(48, 84), reference=(30, 52), picture=(48, 84))  # 1344x768 with an 832x480 reference


@dataclass(frozen=True)
class RowPlan:
    """Where everything lies in the packed rows; all ranges use native row numbers.

    `segments` maps text, picture, reference, audio, video, in that order, to their rows. `prefix` and `moving` are
    disjoint and cover all `total` rows. `noisy_video` and `noisy_audio` are the rows being denoised; no other row's
    output is used.
    """

    segments: Mapping[str, range] = field(hash=False)
    total: int
    prefix: tuple[range, ...]
    moving: tuple[range, ...]
    noisy_video: tuple[range, ...]
    noisy_audio: tuple[range, ...]

    @property
    def prefix_count(self) -> int:
        return sum(map(len, self.prefix))

    @property
    def moving_count(self) -> int:
        return sum(map(len, self.moving))

    def within(self, segment: str, rows: Iterable[range]) -> tuple[range, ...]:
        """The part of `rows` that lies in `segment`, numbered from the segment's first row."""
        bounds = self.segments[segment]
        cuts = (range(max(r.start, bounds.start), min(r.stop, bounds.stop)) for r in rows)
        return tuple(range(r.start - bounds.start, r.stop - bounds.start) for r in cuts if r)


def rows_per_frame(grid: Grid) -> int:
    """Rows of one latent frame of `grid`."""
    return (grid[0] // PATCH[1]) * (grid[1] // PATCH[2])


def row_plan(window: Window, geometry: Geometry, text_rows: int, *, reference: bool = True) -> RowPlan:
    """The packed rows of `window` with `text_rows` text rows; `reference=False` is a branch without reference rows."""
    whole_number("text_rows", text_rows, 0, "Give the number of text rows that the look brings.")
    picture_rows = rows_per_frame(geometry.picture) if geometry.picture else 0
    reference_frame = rows_per_frame(geometry.reference) if reference else 0
    video_frame = rows_per_frame(geometry.target)
    audio, sink, audio_sink = len(window.audio_window), len(window.sink_latents), window.audio_sink

    counts = {
        "text": text_rows,
        "picture": picture_rows,
        "reference": reference_frame * len(window.reference_latents),
        "audio": AUDIO_CHANNELS * audio,
        "video": video_frame * len(window.window_latents),
    }
    segments: dict[str, range] = {}
    total = 0
    for name, count in counts.items():
        segments[name] = range(total, total + count)
        total += count

    channels = [segments["audio"].start + channel * audio for channel in range(AUDIO_CHANNELS)]
    video = segments["video"]
    prefix: tuple[range, ...] = ()
    if not window.is_bootstrap:
        prefix = _joined(
            segments["text"],
            segments["picture"],
            segments["reference"][: sink * reference_frame],
            *(range(start, start + audio_sink) for start in channels),
            video[: sink * video_frame],
        )
    return RowPlan(
        segments=segments,
        total=total,
        prefix=prefix,
        moving=tuple(_gaps(prefix, total)),
        noisy_video=_joined(range(video.stop - len(window.latents) * video_frame, video.stop)),
        noisy_audio=_joined(*(range(start + audio - len(window.audio_new), start + audio) for start in channels)),
    )


def tags(plan: RowPlan, text_tags: Sequence[int]) -> list[int]:
    """AdaLN modality of every row: 0 visual, 1 text, 2 audio; `text_tags` are 0 for the text encoder's vision rows."""
    text = plan.segments["text"]
    if len(text_tags) != len(text):
        raise ScheduleError(
            f"{len(text_tags)} text tags came for {len(text)} text rows; one tag per row is needed. "
            "Pass the tags that belong to these text states."
        )
    strange = sorted(set(text_tags) - {VISUAL_TAG, TEXT_TAG})
    if strange:
        raise ScheduleError(
            f"text tags hold {strange}; only {VISUAL_TAG} (vision rows) and {TEXT_TAG} (text rows) are known. "
            "Encode the prompt again."
        )
    audio_start, video_start = plan.segments["audio"].start, plan.segments["video"].start
    return [
        *text_tags,
        *[VISUAL_TAG] * (audio_start - text.stop),
        *[AUDIO_TAG] * (video_start - audio_start),
        *[VISUAL_TAG] * (plan.total - video_start),
    ]


def _joined(*ranges: range) -> tuple[range, ...]:
    """Ascending ranges without the empty ones, neighbours that touch made one."""
    joined: list[range] = []
    for r in filter(None, ranges):
        if joined and joined[-1].stop == r.start:
            joined[-1] = range(joined[-1].start, r.stop)
        else:
            joined.append(r)
    return tuple(joined)


def _gaps(ranges: Iterable[range], total: int) -> Iterator[range]:
    """The rows of [0, total) outside the ascending `ranges`."""
    start = 0
    for r in (*ranges, range(total, total)):
        if start < r.start:
            yield range(start, r.start)
        start = r.stop
