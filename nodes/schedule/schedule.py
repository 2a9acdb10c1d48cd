"""The streaming policy: how many units are kept as sink, as recent history, and made anew in every chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .clock import FPS, frame_of_latent, latent_of_unit, units_covering
from .errors import ScheduleError, whole_number
from .window import Window, plan_window


@dataclass(frozen=True)
class Coverage:
    """What a clip of `frames` RGB frames costs: whole chunks only, the clip padded to the end of the last one."""

    frames: int
    chunks: int
    padded_frames: int  # frames rendered before the video is trimmed back to `frames`

    @property
    def padding(self) -> int:
        """How often the clip's last frame is repeated."""
        return self.padded_frames - self.frames

    @property
    def seconds(self) -> float:
        """Length of the trimmed video at 24 fps."""
        return self.frames / FPS


@dataclass(frozen=True)
class Schedule:
    """A chunked sliding window over the stream. The first four values count units, the audio values audio latents.

    Chunk 0 makes units [0, bootstrap); chunk k >= 1 makes the next `chunk` units and sees the first `sink` units of the
    stream and the last `window` units before its own. `bootstrap=None` becomes window + chunk. `merged` glues the
    1-frame latent of each codec cycle to its successor (units of 5, 4, 4, 4 frames); else a unit is a single latent.

    `audio_left` is the audio decoder's left context; `audio_right` is how far audio is generated ahead of the video.
    From continuation number `sink_switch_at` on (chunk 1 is number 1) the sink shrinks to `sink_after_switch` units.

    Raises `ScheduleError` for values out of range.
    """

    sink: int = 2
    window: int = 2
    chunk: int = 2
    bootstrap: int | None = None
    merged: bool = True
    audio_left: int = 29
    audio_right: int = 0
    sink_switch_at: int | None = None
    sink_after_switch: int | None = None

    def __post_init__(self) -> None:
        whole_number("sink", self.sink, 0, "Set sink to 0 for no sink, or to 2 as the released model uses.")
        whole_number("window", self.window, 0, "Set window to 0 for no history, or to 2 as the released model uses.")
        whole_number("chunk", self.chunk, 1, "Set chunk to 2 as the released model uses.")
        if self.bootstrap is None:
            object.__setattr__(self, "bootstrap", self.window + self.chunk)
        whole_number("bootstrap", self.bootstrap, 1, "Set bootstrap to 7, or leave it out for window + chunk.")
        if not isinstance(self.merged, bool):
            raise ScheduleError(f"merged is {self.merged!r}; True or False is needed. Leave it out for merged units.")
        whole_number("audio_left", self.audio_left, 0, "Leave it out for 29, the audio decoder's reach.")
        whole_number("audio_right", self.audio_right, 0, "Leave it out for 0, no audio ahead of the video.")
        self._check_sink_switch()

    def _check_sink_switch(self) -> None:
        if self.sink_switch_at is None and self.sink_after_switch is None:
            return
        if self.sink_switch_at is None or self.sink_after_switch is None:
            raise ScheduleError(
                f"sink_switch_at is {self.sink_switch_at} and sink_after_switch is {self.sink_after_switch}; a "
                "shrinking sink needs both. Set both, or leave both out."
            )
        whole_number("sink_switch_at", self.sink_switch_at, 1, "Set 1 to shrink the sink from chunk 1 on.")
        whole_number("sink_after_switch", self.sink_after_switch, 0, "Set 0 to drop the sink altogether.")
        if self.sink_after_switch > self.sink:
            raise ScheduleError(
                f"sink_after_switch is {self.sink_after_switch} but sink is {self.sink}; the sink can only shrink, "
                f"dropped latents do not come back. Set sink_after_switch to {self.sink} or less."
            )

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read `release`, `teacher` or four comma-separated unit counts `sink,window,chunk,bootstrap`."""
        name = text.strip().lower()
        if name in PRESETS:
            return PRESETS[name]
        try:
            sink, window, chunk, bootstrap = (int(part) for part in name.split(","))
        except ValueError:
            raise ScheduleError(
                f"schedule is {text!r}; {', '.join(PRESETS)} or four whole numbers sink,window,chunk,bootstrap are "
                "needed. Write for example 2,2,2,7."
            ) from None
        return cls(sink, window, chunk, bootstrap)

    @property
    def bootstrap_units(self) -> int:
        """`bootstrap` as the plain int it is after construction."""
        return self.window + self.chunk if self.bootstrap is None else self.bootstrap

    @property
    def prefix_bank_refusal(self) -> str | None:
        """Why keys and values of the prefix rows may not be kept across chunks, or None if they may."""
        if self.sink > self.bootstrap_units:
            return (
                f"sink is {self.sink} units but the bootstrap makes only {self.bootstrap_units}; a prefix bank needs "
                f"the whole sink after chunk 0. Set sink to {self.bootstrap_units} or less, or use dense windows."
            )
        if self.sink_after_switch is not None and self.sink_after_switch < self.sink:
            return (
                f"the sink shrinks from {self.sink} to {self.sink_after_switch} units; a prefix bank needs a sink that "
                "never changes. Leave out sink_switch_at, or use dense windows."
            )
        return None

    @property
    def prefix_bank_allowed(self) -> bool:
        """Whether a prefix bank is possible: the bootstrap makes the whole sink and the sink never changes."""
        return self.prefix_bank_refusal is None

    def sink_units(self, index: int) -> int:
        """Sink size in force for chunk `index`."""
        if self.sink_switch_at is None or self.sink_after_switch is None or index < self.sink_switch_at:
            return self.sink
        return self.sink_after_switch

    def units_of(self, index: int) -> range:
        """The new units of chunk `index`."""
        whole_number("chunk index", index, 0, "Count chunks from 0, the bootstrap.")
        stop = self.bootstrap_units + self.chunk * index
        return range(stop - self.chunk if index else 0, stop)

    def window_at(self, index: int) -> Window:
        """The window of chunk `index` (0 is the bootstrap)."""
        return plan_window(self, index)

    def windows(self, frames: int) -> Iterator[Window]:
        """The windows, in order, of as many full chunks as cover `frames` RGB frames."""
        return (self.window_at(index) for index in range(self.chunks_for(frames)))

    def chunks_for(self, frames: int) -> int:
        """How many chunks cover `frames` RGB frames; every one is full, the bootstrap and the last one included."""
        whole_number("frames", frames, 1, "Give a clip with at least one frame.")
        beyond_bootstrap = units_covering(frames, self.merged) - self.bootstrap_units
        return 1 + max(0, -(-beyond_bootstrap // self.chunk))

    def frames_through(self, index: int) -> int:
        """RGB frames of the stream up to and including chunk `index`."""
        return frame_of_latent(latent_of_unit(self.units_of(index).stop, self.merged))

    def coverage(self, frames: int) -> Coverage:
        """Chunks and padding for a clip of `frames` RGB frames."""
        chunks = self.chunks_for(frames)
        return Coverage(frames, chunks, self.frames_through(chunks - 1))


RELEASE = Schedule(sink=2, window=2, chunk=2, bootstrap=7)
TEACHER = Schedule(sink=4, window=5, chunk=2, bootstrap=7)
PRESETS = {"release": RELEASE, "teacher": TEACHER}
