"""RoPE coordinates (t, h, w) of the packed rows, in float64.

Time is the 40 Hz clock of `clock`, laid out text | picture | reference video | target video with sound. A continuation
does not show the model how far the stream has come: its recent and new latents are shifted back to follow the sink, so
that the windows of an endless stream repeat a few layouts. Times are summed in whole thirds and divided once: equal
layouts are equal bits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from .clock import position_thirds
from .errors import whole_number
from .rows import PATCH, Geometry, Grid
from .window import Window

ROPE_SPAN = 32  # every grid is centred on ROPE_SPAN / 2 and has an area of ROPE_SPAN ** 2, whatever its resolution

Position = tuple[float, float, float]


@dataclass(frozen=True)
class Origins:
    """Where the reference video and the target video begin on the time axis, in thirds of an audio latent."""

    reference_thirds: int
    target_thirds: int


@dataclass(frozen=True)
class FrameTimes:
    """Time coordinate of the picture, of each reference and video latent, and of each audio latent (one channel)."""

    picture: float
    reference: tuple[float, ...]
    audio: tuple[float, ...]
    video: tuple[float, ...]


def spatial_axis(side: int, area: int) -> tuple[float, ...]:
    """Coordinates of the `side / 2` patches along one side of a grid of `area` latents, in steps of 64 / sqrt(area)."""
    patches = side // PATCH[1]
    share = side / area**0.5
    return tuple(ROPE_SPAN * ((1 - share) / 2 + share * k / patches) for k in range(patches))


def spatial_axes(grid: Grid) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The h axis and the w axis of a latent grid; every modality uses its own grid."""
    height, width = grid
    return spatial_axis(height, height * width), spatial_axis(width, height * width)


def origins(window: Window, geometry: Geometry, text_rows: int, *, reference: bool = True) -> Origins:
    """Text row n sits at time n, the picture at `text_rows`, then the reference template, then the target.

    A branch without reference rows has no template between picture and target.
    """
    whole_number("text_rows", text_rows, 0, "Give the number of text rows that the look brings.")
    start = 3 * (text_rows + (geometry.picture is not None))
    return Origins(start, start + (_template_thirds(window) if reference else 0))


def frame_times(window: Window, geometry: Geometry, text_rows: int, *, reference: bool = True) -> FrameTimes:
    """The time coordinates of `window`; without reference rows `reference` is empty."""
    at = origins(window, geometry, text_rows, reference=reference)
    latents, audio = _local_thirds(window)
    return FrameTimes(
        picture=float(text_rows),
        reference=tuple((at.reference_thirds + local) / 3 for local in latents) if reference else (),
        audio=tuple((at.target_thirds + local) / 3 for local in audio),
        video=tuple((at.target_thirds + local) / 3 for local in latents),
    )


def positions(window: Window, geometry: Geometry, text_rows: int, *, reference: bool = True) -> list[Position]:
    """(t, h, w) of every row in native row order, as many as `row_plan` counts for the same arguments.

    Audio rows have h = 0; w is the lowest w of the target grid for the left channel, the highest for the right.
    """
    times = frame_times(window, geometry, text_rows, reference=reference)
    rows = [(float(n), 0.0, 0.0) for n in range(text_rows)]
    if geometry.picture is not None:
        rows += _frames((times.picture,), geometry.picture)
    rows += _frames(times.reference, geometry.reference)
    _, target_w = spatial_axes(geometry.target)
    rows += [(t, 0.0, w) for w in (target_w[0], target_w[-1]) for t in times.audio]
    rows += _frames(times.video, geometry.target)
    return rows


def layout_key(window: Window) -> Hashable:
    """Windows with equal keys have the same row plan and the same positions, for any one geometry, text and branch.

    The key holds everything the two are made from: the counts of sink and new rows, the template and all local times.
    Under the released schedule the continuations show six layouts, repeating.
    """
    latents, audio = _local_thirds(window)
    counts = (len(window.sink_latents), len(window.latents), window.audio_sink, len(window.audio_new))
    return (window.is_bootstrap, _template_thirds(window), counts, latents, audio)


def _frames(times: tuple[float, ...], grid: Grid) -> list[Position]:
    h_axis, w_axis = spatial_axes(grid)
    return [(t, h, w) for t in times for h in h_axis for w in w_axis]


def _template_thirds(window: Window) -> int:
    return position_thirds(window.latents.stop if window.is_bootstrap else window.rope_stop)


def _local_thirds(window: Window) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Times of the video and the audio latents from the target's origin: the sink as it is, the rest moved up to it."""
    shift = position_thirds(window.sink_stop) - position_thirds(max(window.sink_stop, window.recent_start))
    sink, audio_sink = len(window.sink_latents), window.audio_sink
    latents = [position_thirds(i) for i in window.window_latents]
    audio = [3 * j for j in window.audio_window]
    return (
        (*latents[:sink], *(t + shift for t in latents[sink:])),
        (*audio[:audio_sink], *(t + shift for t in audio[audio_sink:])),
    )
