"""One window of the stream: what chunk k makes, what it sees, and what must be kept for the chunk after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .clock import audio_of_latent, frame_of_latent, latent_of_unit

if TYPE_CHECKING:
    from .schedule import Schedule


@dataclass(frozen=True)
class Window:
    """The plan of one chunk on the absolute clock; ranges are half open, tuples are sorted and in row order.

    New in this chunk: `units`, `latents`, `frames`, and `audio_new`, the audio latents denoised with them.
    `audio_commit` becomes final together with the video; `audio_lookahead` is made ahead of its video and waits for it.
    Seen by this chunk: `window_latents` = `sink_latents` + `recent_latents` + `latents`, and `audio_window`. A latent
    that is both sink and recent is listed once, as sink. Kept after it: `kept_latents` and `kept_audio`.
    """

    index: int
    units: range
    latents: range
    frames: range
    sink_latents: tuple[int, ...]
    recent_latents: tuple[int, ...]
    audio_window: tuple[int, ...]
    audio_new: range
    audio_commit: range
    audio_lookahead: range
    sink_units: int  # sink size in force
    sink_stop: int  # latent after the whole sink, made already or not
    recent_start: int  # first latent of the recent history, inside the sink or not
    rope_stop: int  # latents in the stationary template of a continuation: sink, recent and chunk end to end
    keep_sink_stop: int
    keep_recent_start: int

    @property
    def is_bootstrap(self) -> bool:
        """Chunk 0 sees nothing but itself."""
        return self.index == 0

    @property
    def next_counts(self) -> tuple[int, int]:
        """Latents and RGB frames that this chunk takes in; no other size is accepted."""
        return len(self.latents), len(self.frames)

    @property
    def history_latents(self) -> tuple[int, ...]:
        """Clean latents from earlier chunks: sink, then recent."""
        return self.sink_latents + self.recent_latents

    @property
    def window_latents(self) -> tuple[int, ...]:
        """Every video latent in row order: sink, recent, new."""
        return self.history_latents + tuple(self.latents)

    @property
    def reference_latents(self) -> tuple[int, ...]:
        """Latents of the semantic video in row order: the same ones as the video's, sink included."""
        return self.window_latents

    @property
    def audio_sink(self) -> int:
        """How many leading audio latents of `audio_window` belong to the sink."""
        return audio_of_latent(len(self.sink_latents))

    @property
    def kept_latents(self) -> tuple[int, ...]:
        """Latents of this window that the next chunk sees again; raw reference latents are kept likewise."""
        return tuple(i for i in self.window_latents if i < self.keep_sink_stop or i >= self.keep_recent_start)

    @property
    def kept_audio(self) -> tuple[int, ...]:
        """Audio latents of this window that the next chunk sees again, look-ahead included."""
        sink_stop, recent_start = audio_of_latent(self.keep_sink_stop), audio_of_latent(self.keep_recent_start)
        return tuple(j for j in self.audio_window if j < sink_stop or j >= recent_start)


def plan_window(schedule: Schedule, index: int) -> Window:
    """The window of chunk `index` under `schedule`."""

    def first_latent(unit: int) -> int:
        return latent_of_unit(max(0, unit), schedule.merged)

    units = schedule.units_of(index)
    latents = range(first_latent(units.start), first_latent(units.stop))
    sink_units = schedule.sink_units(index)
    sink_stop = first_latent(sink_units)
    sink_history = min(sink_stop, latents.start)
    recent_start = first_latent(units.start - schedule.window)

    audio_stop = audio_of_latent(latents.stop)
    audio_ahead = audio_stop + schedule.audio_right
    audio_sink = audio_of_latent(sink_history)
    audio_recent = max(audio_sink, audio_of_latent(recent_start))
    audio_start = audio_of_latent(latents.start)

    return Window(
        index=index,
        units=units,
        latents=latents,
        frames=range(frame_of_latent(latents.start), frame_of_latent(latents.stop)),
        sink_latents=tuple(range(sink_history)),
        recent_latents=tuple(range(max(sink_history, recent_start), latents.start)),
        audio_window=(*range(audio_sink), *range(audio_recent, audio_ahead)),
        audio_new=range(audio_start + schedule.audio_right if index else 0, audio_ahead),
        audio_commit=range(audio_start, audio_stop),
        audio_lookahead=range(audio_stop, audio_ahead),
        sink_units=sink_units,
        sink_stop=sink_stop,
        recent_start=recent_start,
        rope_stop=first_latent(sink_units + schedule.window + schedule.chunk),
        keep_sink_stop=min(first_latent(schedule.sink_units(index + 1)), latents.stop),
        keep_recent_start=first_latent(units.stop - schedule.window),
    )


def pair_decoder_frames(window: Window) -> range:
    """RGB frames that a decoder working on latent pairs (2i, 2i+1) publishes after this chunk, without a final flush.

    An unpaired last latent is held until its partner arrives with a later chunk.
    """
    start, stop = (frame_of_latent(latent - latent % 2) for latent in (window.latents.start, window.latents.stop))
    return range(start, stop)
