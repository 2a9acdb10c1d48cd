"""Sizes of an H3 transformer, given by hand or read from the tensor shapes of a checkpoint with native names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MODALITIES = 3  # AdaLN rows per time: 0 video (also picture and reference), 1 text, 2 audio
BLOCK_SLOTS = 6  # shift, scale, gate of the attention, then of the MLP
FINAL_SLOTS = 2  # shift, scale

Shapes = Mapping[str, tuple[int, ...]]


class ConfigError(ValueError):
    """Sizes that do not describe an H3 transformer."""


@dataclass(frozen=True)
class H3Config:
    """Every size of the network. The 33-billion-parameter model and a toy are the same code at two of these.

    `freq_dim`, `time_hidden` and `time_dim` are all 0 when a checkpoint carries no time MLP (its AdaLN projections have
    been replaced by tables); such a config can only build the table form. `gate_compress` says that the checkpoint
    carries gates for a sparse-attention branch, which dense attention does not read.
    """

    hidden: int
    layers: int
    refiner_layers: int
    heads: int
    head_dim: int
    ffn: int
    text_dim: int
    freq_dim: int
    time_hidden: int
    time_dim: int
    rope_freqs: int
    rope_theta: float = 10000.0
    latent_channels: int = 24
    audio_channels: int = 32
    patch: tuple[int, int, int] = (1, 2, 2)
    eps: float = 1e-5
    gate_compress: bool = False

    def __post_init__(self) -> None:
        positive = ("hidden", "layers", "heads", "head_dim", "ffn", "text_dim", "rope_freqs")
        for name in (*positive, "latent_channels", "audio_channels"):
            if getattr(self, name) < 1:
                raise ConfigError(f"H3 config has {name}={getattr(self, name)}; it must be at least 1. Correct {name}.")
        if self.refiner_layers < 0:
            raise ConfigError(
                f"H3 config has refiner_layers={self.refiner_layers}; it cannot be negative. Use 0 for none."
            )
        if self.rotary > self.head_dim:
            raise ConfigError(
                f"H3 config has rope_freqs={self.rope_freqs}, which rotates {self.rotary} channels of each head; "
                f"a head has {self.head_dim}. Use rope_freqs <= {self.head_dim // 6}."
            )
        if self.patch != (1, 2, 2):
            raise ConfigError(f"H3 config has patch={self.patch}; only (1, 2, 2) exists. Use patch=(1, 2, 2).")
        time = (self.freq_dim, self.time_hidden, self.time_dim)
        if min(time) < 0 or (any(time) and not all(time)) or self.freq_dim % 2:
            raise ConfigError(
                f"H3 config has freq_dim, time_hidden, time_dim = {time}; a time MLP needs all three positive "
                "and an even freq_dim. Set them, or all to 0 for a model without time MLP."
            )

    @property
    def inner(self) -> int:
        """Width of the attention, heads * head_dim (not the hidden width)."""
        return self.heads * self.head_dim

    @property
    def rotary(self) -> int:
        """Rotated channels per head: three axes, `rope_freqs` frequencies each, in pairs."""
        return 2 * 3 * self.rope_freqs

    @property
    def video_features(self) -> int:
        """Width of a video row: latent channels times patch volume."""
        return self.latent_channels * self.patch[0] * self.patch[1] * self.patch[2]

    @property
    def has_time_mlp(self) -> bool:
        return self.time_dim > 0

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> H3Config:
        """Read the sizes off the tensor shapes of a checkpoint in native names (no prefix).

        Only the shapes that carry a size are looked at; a strict comparison of names is the loader's business.
        Raises ConfigError naming the first tensor that is missing or that contradicts the others.
        """
        hidden, video_features = _shape(shapes, "video_patch_proj.weight", 2)
        _, audio_channels = _shape(shapes, "audio_patch_proj.weight", 2)
        _, text_dim = _shape(shapes, "condition_proj.weight", 2)
        (head_dim,) = _shape(shapes, "blocks.0.attn.q_norm.weight", 1)
        qkv_rows, qkv_width = _shape(shapes, "blocks.0.attn.qkv_proj.weight", 2)
        fc1_rows, _ = _shape(shapes, "blocks.0.mlp.fc1.weight", 2)
        (rope_freqs,) = _shape(shapes, "rope.inv_freq", 1)
        time_hidden = freq_dim = time_dim = 0
        if any(name.startswith("time_embedder.") for name in shapes):
            time_hidden, freq_dim = _shape(shapes, "time_embedder.proj_in.weight", 2)
            time_dim, _ = _shape(shapes, "time_embedder.proj_out.weight", 2)

        for name, found, unit in (
            ("video_patch_proj.weight", video_features, 4),
            ("blocks.0.attn.qkv_proj.weight", qkv_rows, 3 * head_dim),
            ("blocks.0.mlp.fc1.weight", fc1_rows, 2),
        ):
            if found % unit:
                raise ConfigError(
                    f"tensor {name} has shape {tuple(shapes[name])}; {found} must be a multiple of {unit}. "
                    "Choose an H3 checkpoint in native layout."
                )
        if qkv_width != hidden:
            raise ConfigError(
                f"tensor blocks.0.attn.qkv_proj.weight reads rows {qkv_width} wide, but video_patch_proj.weight makes "
                f"them {hidden} wide; both must agree. Choose a checkpoint whose tensors come from one H3 model."
            )
        return cls(
            hidden=hidden,
            layers=_count_blocks(shapes, "blocks"),
            refiner_layers=_count_blocks(shapes, "token_refiner.blocks"),
            heads=qkv_rows // (3 * head_dim),
            head_dim=head_dim,
            ffn=fc1_rows // 2,
            text_dim=text_dim,
            freq_dim=freq_dim,
            time_hidden=time_hidden,
            time_dim=time_dim,
            rope_freqs=rope_freqs,
            latent_channels=video_features // 4,
            audio_channels=audio_channels,
            gate_compress="blocks.0.attn.to_gate_compress.weight" in shapes,
        )


def _shape(shapes: Shapes, name: str, dimensions: int) -> tuple[int, ...]:
    shape = shapes.get(name)
    if shape is None:
        raise ConfigError(f"tensor {name} is missing; every H3 transformer has it. Choose an H3 checkpoint.")
    if len(shape) != dimensions:
        raise ConfigError(
            f"tensor {name} has shape {tuple(shape)}; {dimensions} dimension(s) are needed. Choose an H3 checkpoint."
        )
    return tuple(shape)


def _count_blocks(shapes: Shapes, prefix: str) -> int:
    pattern = re.compile(re.escape(prefix) + r"\.(\d+)\.")
    found = {int(match[1]) for match in map(pattern.match, shapes) if match}
    gaps = sorted(set(range(len(found))) - found)
    if gaps:
        raise ConfigError(
            f"tensors {prefix}.N hold {len(found)} blocks but not number {gaps[0]}; numbers must run from 0 without a "
            "gap. Check that every shard of the checkpoint is there."
        )
    return len(found)


RELEASE = H3Config(
    hidden=5376,
    layers=50,
    refiner_layers=2,
    heads=56,
    head_dim=128,
    ffn=14336,
    text_dim=5120,
    freq_dim=256,
    time_hidden=5376,
    time_dim=2688,
    rope_freqs=16,
)
"""MiniMax-H3 Ref2VA, the model StreamRender-H3 is built on."""
