"""Figures by which a rendered clip is judged. Frames are float [n, 3, H, W] in [0, 1], class ids uint8 [n, H, W]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LUMA = (0.2126, 0.7152, 0.0722)  # BT.709
BLOCK = 17  # frames from one single-frame latent to the next
BINS = 16


def psnr(frames: Tensor, truth: Tensor) -> float:
    """Peak signal to noise ratio in dB, from the mean squared error over all frames."""
    return (-10 * torch.log10((frames - truth).square().mean())).item()


def luma(frames: Tensor) -> Tensor:
    return torch.einsum("nchw,c->nhw", frames, torch.tensor(LUMA))


def slopes(picture: Tensor) -> Tensor:
    """Size of the Sobel gradient of [n, H, W], borders replicated."""
    kernel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]]) / 8
    padded = F.pad(picture[:, None], (1, 1, 1, 1), mode="replicate")
    across, down = F.conv2d(padded, torch.stack([kernel, kernel.T])[:, None]).unbind(1)
    return (across.square() + down.square()).sqrt()


def boundaries(ids: Tensor) -> Tensor:
    """1.0 on both sides of every class boundary of [n, H, W], else 0.0."""
    boundary = torch.zeros(ids.shape)
    for dim in (1, 2):
        change = (ids.diff(dim=dim) != 0).float()
        boundary.narrow(dim, 0, change.shape[dim]).add_(change)
        boundary.narrow(dim, 1, change.shape[dim]).add_(change)
    return boundary.clamp(max=1)


def edge_agreement(frames: Tensor, ids: Tensor, other: Tensor) -> float:
    """Correlation of the picture's edges with the class boundaries of `ids`, mean over frames; 1 is perfect.

    Pixels at the boundaries of the `other` map do not count: all drives share a horizon, a road and a car in the middle,
    so agreement there says nothing about which of two maps a picture follows.
    """
    boundary, edges = boundaries(ids), slopes(luma(frames)).clamp(max=0.15)
    counts = F.max_pool2d(boundaries(other)[:, None], 5, stride=1, padding=2)[:, 0] == 0
    values = []
    for edge, line, mask in zip(edges, boundary, counts, strict=True):
        pair = torch.stack((edge[mask], line[mask]))
        centred = pair - pair.mean(-1, keepdim=True)
        values.append((centred[0] * centred[1]).sum() / (centred.norm(dim=-1).prod() + 1e-9))
    return torch.stack(values).mean().item()


def histogram_distance(frames: Tensor, truth: Tensor) -> float:
    """Distance of two sets of frames in colour: mean colour plus, per channel, the earth mover's distance of histograms."""

    def cumulative(picture: Tensor) -> Tensor:
        counts = torch.stack([torch.histc(picture[:, c], BINS, 0.0, 1.0) for c in range(3)])
        return (counts / counts.sum(-1, keepdim=True)).cumsum(-1)

    means = (frames.mean((0, 2, 3)) - truth.mean((0, 2, 3))).norm()
    return (means + (cumulative(frames) - cumulative(truth)).abs().mean()).item()


def seam_ratio(frames: Tensor, starts: Sequence[int], others: Sequence[int] | None = None) -> float:
    """Mean frame difference across chunk borders over that inside chunks; `starts` are the chunks' first frames.

    With `others`, the first frames of all latents, only the borders of latents inside chunks are what is compared with: a
    causal codec shows its news there, whether a chunk begins or not.
    """
    steps = frames.diff(dim=0).abs().mean((1, 2, 3))

    def into(firsts: Sequence[int]) -> Tensor:
        mask = torch.zeros(len(steps), dtype=torch.bool)
        mask[[first - 1 for first in firsts if 0 < first <= len(steps)]] = True
        return mask

    border = into(starts)
    inside = ~border if others is None else into(others) & ~border
    return (steps[border].mean() / steps[inside].mean()).item() if border.any() and inside.any() else 1.0


def block_start_step(frames: Tensor) -> float:
    """How far the brightness of each block's first frame is off the mean of its neighbours, in grey levels, mean size."""
    level = 255 * frames.mean((1, 2, 3))
    starts = torch.arange(BLOCK, len(level) - 1, BLOCK)
    if not len(starts):
        return 0.0
    return (level[starts] - (level[starts - 1] + level[starts + 1]) / 2).abs().mean().item()
