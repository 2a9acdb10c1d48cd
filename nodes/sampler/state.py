"""All that a rollout carries from one chunk to the next, as plain tensors that can be stored and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Snapshot:
    """The frozen sink, noise included: prefix rows must never change once their keys are in the bank."""

    video: Tensor
    audio: Tensor
    reference: Tensor


@dataclass(frozen=True)
class RolloutState:
    """A rollout between two chunks. Weights, conditions and the prefix bank are not in it: they follow from the inputs."""

    index: int  # of the next chunk
    noise: Tensor  # uint8, the state of the random generator
    video: Mapping[int, Tensor]  # latent index -> [24, h, w]
    reference: Mapping[int, Tensor]  # latent index -> [24, h', w']
    audio: Mapping[int, Tensor]  # audio index -> [2, 32]
    snapshot: Snapshot | None

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, on the CPU; `from_tensors` reads it back."""
        found = {"index": torch.tensor(self.index), "noise": self.noise}
        for name in ("video", "reference", "audio"):
            store: Mapping[int, Tensor] = getattr(self, name)
            if store:
                found[f"history.{name}.index"] = torch.tensor(list(store))
                found[f"history.{name}"] = torch.stack(list(store.values()))
            if self.snapshot is not None:
                found[f"sink.{name}"] = getattr(self.snapshot, name)
        return {name: tensor.cpu().contiguous() for name, tensor in found.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> RolloutState:
        """The state that `tensors` came from; raises KeyError when one is missing."""

        def store(name: str) -> dict[int, Tensor]:
            if f"history.{name}" not in tensors:
                return {}
            indices = tensors[f"history.{name}.index"].tolist()
            return dict(zip(indices, tensors[f"history.{name}"].to(device).unbind(0), strict=True))

        sink = {
            name: tensors[f"sink.{name}"].to(device)
            for name in ("video", "audio", "reference")
            if "sink.video" in tensors
        }
        return cls(
            index=int(tensors["index"]),
            noise=tensors["noise"].cpu(),
            video=store("video"),
            reference=store("reference"),
            audio=store("audio"),
            snapshot=Snapshot(**sink) if sink else None,
        )
