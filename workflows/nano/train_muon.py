"""Muon, the optimiser of the hidden matrices: momentum made orthogonal before it is applied (Keller Jordan, 2024).

Every direction of a matrix then moves at one speed, so that few steps do what takes Adam many. Convolution kernels count as
matrices [out, in * height * width]. Matrices of one shape go through the iteration together, or thousands of small kernels
would take longer than the network itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's coefficients: fast near 0, singular values end between 0.7 and 1.2
ITERATIONS = 5
LIKE_ADAM = 0.2  # size of an update's entries in learning rates, about that of Adam (Liu et al. 2025, Moonlight)


def orthogonal(matrices: Tensor) -> Tensor:
    """About U V^T of each matrix U S V^T of the batch [n, rows, columns]."""
    a, b, c = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised per matrix, with decoupled weight decay; parameters of two or more dimensions."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[p.shape].append(p)
            for same in alike.values():
                self._move(same, group["lr"], group["momentum"], group["weight_decay"])

    def _move(self, same: list[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        """One step of parameters of one shape."""
        grads = [p.grad for p in same if p.grad is not None]
        for p in same:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        means = [self.state[p]["momentum"] for p in same]
        torch._foreach_lerp_(means, grads, 1 - momentum)
        ahead = torch._foreach_lerp(grads, means, momentum)
        update = orthogonal(torch.stack([part.flatten(1) for part in ahead]))
        speed = LIKE_ADAM * max(update.shape[1:]) ** 0.5 * lr
        torch._foreach_mul_(same, 1 - lr * weight_decay)
        torch._foreach_add_(same, [u.view(p.shape) for u, p in zip(update, same, strict=True)], alpha=-speed)
