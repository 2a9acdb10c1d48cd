"""The optimiser of the hidden matrices: updates of one size in every direction, matrices and kernels alike."""

from __future__ import annotations

import pytest
import torch
from streamrender_h3.workflows.nano.train_muon import LIKE_ADAM, Muon, orthogonal
from torch import nn


@pytest.mark.parametrize("shape", [(3, 48, 48), (2, 40, 90), (2, 90, 40)])
def test_an_update_goes_about_equally_far_in_every_direction_of_the_gradient(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    rank = min(shape[1:])
    u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    gradient = u @ torch.diag(torch.logspace(0, -1.5, rank)) @ v
    along = torch.einsum(
        "nij,nik,njk->nj", u, orthogonal(gradient), v
    )  # the length in each direction, 0.03 to 1 before
    assert along.min() > 0.5 and along.max() < 1.3


def test_the_first_step_is_the_orthogonal_gradient_times_the_learning_rate() -> None:
    torch.manual_seed(1)
    kernels = [nn.Parameter(torch.randn(40, 8, 3, 3)) for _ in range(2)]
    before = [k.detach().clone() for k in kernels]
    gradients = [torch.randn_like(k) for k in kernels]
    for kernel, gradient in zip(kernels, gradients, strict=True):
        kernel.grad = gradient.clone()
    Muon(kernels, lr=0.01, weight_decay=0.0).step()
    for kernel, old, gradient in zip(kernels, before, gradients, strict=True):
        wanted = orthogonal(gradient.flatten(1)[None])[0].view_as(kernel) * (0.01 * LIKE_ADAM * 72**0.5)
        torch.testing.assert_close(old - kernel.detach(), wanted, atol=2e-6, rtol=1e-4)


def test_a_parameter_without_gradient_stays() -> None:
    moved, still = nn.Parameter(torch.ones(32, 32)), nn.Parameter(torch.ones(32, 32))
    moved.grad = torch.randn(32, 32)
    Muon([moved, still], lr=0.1).step()
    assert torch.equal(still, torch.ones(32, 32)) and not torch.equal(moved, torch.ones(32, 32))
