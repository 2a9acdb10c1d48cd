"""The MiniMax-H3 transformer: text, video and audio rows in one sequence, denoised together in one forward pass.

It never sees a raw timestep or a grid: rows arrive packed, positions as rotations, times as modulation vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .blocks import Attend, Bank, Block, FinalLayer, LayerAttention, TokenRefiner, in_float32
from .config import ConfigError, H3Config
from .modulation import Modulation, ProjectedModulation, TimeMLP, distinct_times
from .rope import Rope, RotaryEmbedding

FLOAT32_TENSORS = (
    *(f"{layer}.{kind}" for layer in ("video_patch_proj", "audio_patch_proj") for kind in ("weight", "bias")),
    *(f"time_embedder.{layer}.{kind}" for layer in ("proj_in", "proj_out") for kind in ("weight", "bias")),
    *(f"final_layer.{layer}.{kind}" for layer in ("video_out", "audio_out") for kind in ("weight", "bias")),
    "rope.inv_freq",
)
"""Native names of the tensors that stay float32 whatever the compute dtype."""


@dataclass(frozen=True, eq=False)
class RowOrder:
    """Another order for the blocks to work in, as kernels with three-dimensional tiles need it. Attention has no order."""

    rows: Tensor  # [S] long, the packed row at every place
    places: Tensor  # [S] long, the place of every packed row

    @classmethod
    def of(cls, rows: Tensor) -> RowOrder:
        """From the packed row at every place, a permutation of 0 to S - 1."""
        rows = rows.long()
        places = torch.empty_like(rows)
        places[rows] = torch.arange(len(rows), device=rows.device)
        return cls(rows, places)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """One attention document of S = T + Nb + Na + Nv rows, in the order of the fields.

    Every tensor may have one leading batch dimension; `modulation_row`, `time_index` and `rope` may do without it and
    are then shared by the batch. With `order`, `rope` and `modulation_row` are in that order; everything else is packed.
    """

    text: Tensor  # [T, hidden], refined text
    before: Tensor  # [Nb, 96] float32, visual rows before the audio: picture, then reference
    audio: Tensor  # [Na, 32] float32
    video: Tensor  # [Nv, 96] float32
    rope: Rope  # of all S rows
    modulation_row: Tensor  # [S] int32 or int64, time_index * 3 + tag
    time_index: Tensor  # [S] int32 or int64, into the sorted distinct times of the forward
    predict_video: slice | Tensor | None = None  # which of the video rows get a velocity; None for no row
    predict_audio: slice | Tensor | None = None  # which of the audio rows
    order: RowOrder | None = None  # in which the blocks work; None for the packed one

    @property
    def segments(self) -> tuple[int, int, int, int]:
        """Row counts (T, Nb, Na, Nv)."""
        return self.text.shape[-2], self.before.shape[-2], self.audio.shape[-2], self.video.shape[-2]

    def __post_init__(self) -> None:
        total = sum(self.segments)
        described = {
            "rope": self.rope.cos.shape[-2],
            "modulation_row": self.modulation_row.shape[-1],
            "time_index": self.time_index.shape[-1],
            "order": total if self.order is None else len(self.order.rows),
        }
        wrong = {name: count for name, count in described.items() if count != total}
        if wrong:
            raise ValueError(
                f"packed rows (text, before, audio, video) = {self.segments} are {total} rows, but {wrong} rows are "
                "described; all must agree. Build them from one row plan."
            )


class H3(nn.Module):
    """The whole network, in the tensor names of native checkpoints.

    With `adaln=False` it has neither time MLP nor AdaLN projections (40 percent of the parameters): the modulation then
    comes from tables. `dtype` is the dtype of weights and activations, chosen here and not changed by `.to` afterwards;
    the tensors named in FLOAT32_TENSORS are float32 regardless. `operations` supplies Linear and RMSNorm.
    """

    def __init__(
        self,
        config: H3Config,
        *,
        adaln: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: Any = nn,
    ) -> None:
        super().__init__()
        if adaln and not config.has_time_mlp:
            raise ConfigError(
                "H3 was asked for with its AdaLN projections, but the config has no time MLP to feed them. "
                "Build it with adaln=False and use tables."
            )
        device = torch.device(device) if device is not None else None
        self.config = config
        self.dtype = dtype or torch.get_default_dtype()
        at = {"device": device, "dtype": self.dtype}
        full = {"device": device, "dtype": torch.float32}
        parts = {"operations": operations, **at}

        self.video_patch_proj = operations.Linear(config.video_features, config.hidden, bias=True, **full)
        self.audio_patch_proj = operations.Linear(config.audio_channels, config.hidden, bias=True, **full)
        self.condition_proj = operations.Linear(config.text_dim, config.hidden, bias=True, **at)
        self.token_refiner = TokenRefiner(config, **parts)
        if adaln:
            self.time_embedder = TimeMLP(
                config.freq_dim, config.time_hidden, config.time_dim, device=device, operations=operations
            )
        self.blocks = nn.ModuleList(Block(config, adaln=adaln, **parts) for _ in range(config.layers))
        self.final_layer = FinalLayer(config, adaln=adaln, **parts)
        # called as model.rope(positions), float64 [S, 3] -> Rope
        self.rope = RotaryEmbedding(config.rope_freqs, config.rope_theta, device=device, dtype=self.dtype)

    def refine_text(self, text: Tensor) -> Tensor:
        """Encoder states [T, text_dim] of ONE prompt -> rows [T, hidden]. Free of time: once per prompt."""
        if text.shape[-1] != self.config.text_dim:
            raise ValueError(
                f"text rows {text.shape[-1]} wide arrived; this model reads rows {self.config.text_dim} wide. "
                "Use the text encoder the model was made for."
            )
        return self.token_refiner(self.condition_proj(text.to(self.dtype)))

    def modulation(self, times: Sequence[float]) -> Modulation:
        """Modulation from the full AdaLN weights, for the sorted distinct float32 values of `times`."""
        if not hasattr(self, "time_embedder"):
            raise ConfigError(
                "this H3 model was built without AdaLN projections; they are needed to compute a modulation. "
                "Look the times up in its AdaLN tables."
            )
        distinct = distinct_times(times)
        vector = self.time_embedder(distinct, self.rope.inv_freq.device).to(self.dtype)
        projections = [self.get_submodule(f"blocks.{layer}.adaln_proj") for layer in range(self.config.layers)]
        return ProjectedModulation(distinct, vector, projections, self.final_layer.adaln_proj)

    def forward(
        self,
        rows: PackedRows,
        modulation: Modulation,
        *,
        bank: Bank | None = None,
        visible: Tensor | None = None,
        attend: Attend | None = None,
        sparse: LayerAttention | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Data-ward velocity x0 - noise, float32: [n_video, 96] and [n_audio, 32] for the rows that ask for it.

        `bank` adds keys and values of rows that are not in this pass; `visible` [S, keys] bool restricts which keys a
        row sees (True: sees). Without either, all rows see each other. `attend` or `sparse` computes the attention of the
        blocks in place of torch's; neither knows a mask.
        """
        x = self.embed(rows)
        how = {"attend": attend} if sparse is None else {"sparse": sparse}
        for layer, block in enumerate(self.blocks):
            x = block(x, modulation.block(layer), rows.modulation_row, rows.rope, visible, bank, layer, **how)
        if rows.order is not None:
            x = x[..., rows.order.places, :]

        final = modulation.final()
        _, _, x_audio, x_video = x.split(rows.segments, dim=-2)
        _, _, time_audio, time_video = rows.time_index.split(rows.segments, dim=-1)

        def predict(x: Tensor, time_index: Tensor, wanted: slice | Tensor | None, head: nn.Module) -> Tensor:
            wanted = slice(0) if wanted is None else wanted
            return self.final_layer(x[..., wanted, :], final, time_index[..., wanted], head)

        return (
            predict(x_video, time_video, rows.predict_video, self.final_layer.video_out),
            predict(x_audio, time_audio, rows.predict_audio, self.final_layer.audio_out),
        )

    def embed(self, rows: PackedRows) -> Tensor:
        """Every modality through its own projection, then one sequence [S, hidden], in the order of the blocks."""
        parts = (
            rows.text,
            in_float32(self.video_patch_proj, rows.before),
            in_float32(self.audio_patch_proj, rows.audio),
            in_float32(self.video_patch_proj, rows.video),
        )
        x = torch.cat([part.to(self.dtype) for part in parts], dim=-2)
        return x if rows.order is None else x[..., rows.order.rows, :]
