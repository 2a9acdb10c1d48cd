"""The transformer of a native H3 checkpoint as diffusers' MiniMaxH3Transformer3DModel, with an optional attention mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3AttnProcessor
from safetensors import safe_open
from torch import Tensor

Rows = tuple[Tensor, Tensor, Tensor]


class MaskedAttention(MiniMaxH3AttnProcessor):
    """diffusers' own attention, with a mask that the model itself has no argument for."""

    mask: Tensor | None = None

    def __call__(self, attn: Any, hidden_states: Tensor, rotary_emb: Any = None, attention_mask: Any = None) -> Tensor:
        return super().__call__(attn, hidden_states, rotary_emb, self.mask)


OUTER_NAMES = {
    "video_patch_proj": "proj_in",
    "audio_patch_proj": "audio_proj_in",
    "condition_proj": "context_embedder",
    "time_embedder.proj_in": "time_embedder.linear_1",
    "time_embedder.proj_out": "time_embedder.linear_2",
    "final_layer.norm": "norm_out.norm",
    "final_layer.adaln_proj.linear": "norm_out.linear",
    "final_layer.video_out": "proj_out",
    "final_layer.audio_out": "audio_proj_out",
    "token_refiner.final_norm": "token_refiner.final_norm",
}
INNER_NAMES = {
    "attn.q_norm": "attn.norm_q",
    "attn.k_norm": "attn.norm_k",
    "attn.out_proj": "attn.to_out.0",
    "mlp.fc2": "ff.net.2",
    "norm1": "norm1",
    "norm2": "norm2",
    "adaln_proj.linear": "adaln_proj.linear",
}


def diffusers_state(native: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names and layouts of diffusers from native ones: qkv in thirds, and up before gate."""
    state = {}
    for name, tensor in native.items():
        stem, kind = name.removeprefix("dit.").rsplit(".", 1)
        if stem in OUTER_NAMES:
            state[f"{OUTER_NAMES[stem]}.{kind}"] = tensor
        elif stem != "rope":
            before, _, rest = stem.partition("blocks.")
            index, _, inner = rest.partition(".")
            block = f"{'token_refiner.refiner_blocks' if before else 'transformer_blocks'}.{index}."
            if inner == "attn.qkv_proj":
                parts = zip(("to_q", "to_k", "to_v"), tensor.chunk(3), strict=True)
                state |= {f"{block}attn.{part}.{kind}": third for part, third in parts}
            elif inner == "mlp.fc1":
                state[f"{block}ff.net.0.proj.{kind}"] = torch.cat(tensor.chunk(2)[::-1])
            else:
                state[f"{block}{INNER_NAMES[inner]}.{kind}"] = tensor
    return state


class Network:
    """The transformer of a checkpoint with native names, in float32."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, "pt") as file:
            native = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = diffusers_state(native)
        hidden, head = state["proj_in.weight"].shape[0], len(state["transformer_blocks.0.attn.norm_q.weight"])

        def deep(blocks: str) -> int:
            return len({name.split(blocks)[1].split(".")[0] for name in state if blocks in name})

        self.model = diffusers.MiniMaxH3Transformer3DModel(
            num_attention_heads=state["transformer_blocks.0.attn.to_q.weight"].shape[0] // head,
            attention_head_dim=head,
            hidden_size=hidden,
            num_layers=deep("transformer_blocks."),
            num_refiner_layers=deep("refiner_blocks."),
            ffn_dim=state["transformer_blocks.0.ff.net.2.weight"].shape[1],
            text_dim=state["context_embedder.weight"].shape[1],
            freq_dim=state["time_embedder.linear_1.weight"].shape[1],
            time_embed_hidden_dim=state["time_embedder.linear_1.weight"].shape[0],
            time_embed_dim=state["time_embedder.linear_2.weight"].shape[0],
            rope_freq_dim=len(native["dit.rope.inv_freq"]),
        ).eval()
        self.model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=True)
        self.attention = MaskedAttention()
        for block in self.model.transformer_blocks:
            block.attn.set_processor(self.attention)

    def __call__(
        self, values: Rows, places: Rows, times: Tensor, tags: Tensor, positions: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Velocities of all visual and all audio rows.

        `values` and `places` are (visual, audio, text) rows and their indices in the packed sequence; `times`, `tags`
        and `positions` [S, 3] are those of every row; `mask` [S, S] is True where a row (first axis) sees another.
        """
        distinct, of_row = torch.unique(times, return_inverse=True)
        self.attention.mask = None if mask is None else mask[None, None]
        batch = [rows[None] for rows in values]
        video, audio = self.model(*batch, distinct, of_row, tags, positions, *places, return_dict=False)
        return video[0], audio[0]
