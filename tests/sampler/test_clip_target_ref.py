"""The reference video in tiles of its own: against a masked softmax over rows in packed order that knows nothing of tiles."""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from streamrender_h3.kernels.block_sparse import seen_tiles
from streamrender_h3.nodes.loader import load_h3
from streamrender_h3.nodes.sampler.clip_aligned import aligned_tiles
from streamrender_h3.nodes.sampler.clip_attention import RowSegments, Sparsity
from streamrender_h3.nodes.sampler.clip_plan import ClipShape
from streamrender_h3.nodes.sampler.clip_sparse import SparseClip
from streamrender_h3.workflows.nano.weights import write_weights
from test_clip_sparse import LIMIT, error, latents, network_of
from test_independent_recompute import sensitive

FRAMES, SIZE, MAP_SIZE = 22, (320, 448), (160, 288)  # 7 latents of 10 x 14 and of 5 x 9 rows: clipped tiles everywhere
SHAPE = ClipShape.of(FRAMES, SIZE, MAP_SIZE)
SEGMENTS = RowSegments.of(SHAPE, 70)
GRIDS = (7, 5, 9), (7, 10, 14)  # reference, target
TILES_OF = 2 * 2 * 3, 2 * 3 * 4
SMALLEST = 0.001  # percent


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target_ref")
    path = sensitive(write_weights(folder / "weights", seed=8).model, folder / "plain.safetensors")
    return load_h3(path, dtype=torch.float32, device="cpu")


def places(grid):
    """(t, h, w) of every row of a grid, [rows, 3]."""
    return torch.cartesian_prod(*(torch.arange(side) for side in grid))


def tile_numbers(grid):
    """The tile of every row of a grid in packed order, counted t, then h, then w."""
    _, h, w = (math.ceil(side / 4) for side in grid)
    t_, h_, w_ = (places(grid) // 4).unbind(1)
    return (t_ * h + h_) * w + w_


def forced_rows(reference, target):
    """[target rows, reference rows]: same four latents, and no more than a reference patch from the area of the row."""
    mine, theirs = places(target)[:, None], places(reference)[None]
    near = mine[..., 0] // 4 == theirs[..., 0] // 4
    for axis in (1, 2):
        a, b = target[axis], reference[axis]
        start, stop = (mine[..., axis] * b / a - 1), (mine[..., axis] + 1) * b / a + 1
        near &= (theirs[..., axis] < stop - 1e-9) & (theirs[..., axis] + 1 > start + 1e-9)
    return near


@dataclass
class PackedOrder:
    """A `ClipAttention` whose blocks run in packed order: one masked softmax in float32 over all rows."""

    keep: float
    force: bool = True
    calls: list = field(default_factory=list)

    def prepare(self, segments, device):
        self.order = torch.arange(segments.rows)
        runs = list(segments.runs)
        spans = torch.tensor([0, *runs, math.prod(segments.grid)]).cumsum(0).tolist()
        assert runs[2] == math.prod(GRIDS[0])  # text, picture, reference, audio
        reference, target = tile_numbers(GRIDS[0]), tile_numbers(GRIDS[1])
        self.tile = torch.full((segments.rows,), -1)
        self.tile[spans[2] : spans[3]] = reference
        self.tile[spans[4] :] = target + int(reference.max()) + 1
        self.count = int(self.tile.max()) + 1
        self.forced = torch.zeros(self.count, self.count, dtype=torch.bool)
        first = int(reference.max()) + 1
        if self.force:
            self.forced[:first, :first] = torch.eye(first, dtype=torch.bool)
            q, k = forced_rows(*GRIDS).nonzero().unbind(1)
            self.forced[target[q] + first, reference[k]] = True
        return self

    def at(self, step):
        return self.attend

    def attend(self, layer, q, k, v, gate):
        self.calls.append(layer)
        scale, free = q.shape[-1] ** -0.5, self.tile < 0
        budget = max(1, min(math.ceil(self.keep / 100 * self.count - 1e-9), self.count))
        means = [torch.stack([x[self.tile == n].mean(0) for n in range(self.count)], 1) for x in (q, k)]
        scores = means[0] @ means[1].transpose(1, 2) * scale
        chosen = torch.zeros_like(scores, dtype=torch.bool)
        for head, tile in torch.cartesian_prod(torch.arange(q.shape[1]), torch.arange(self.count)).tolist():
            must = self.forced[tile].nonzero().flatten().tolist()
            others = [n for n in scores[head, tile].argsort(descending=True).tolist() if n not in must]
            chosen[head, tile, must + others[: max(0, budget - len(must))]] = True
        out = torch.empty_like(q)
        for head in range(q.shape[1]):
            seen = chosen[head][self.tile.clamp(min=0)][:, self.tile.clamp(min=0)] | free[:, None] | free[None]
            logits = q[:, head] @ k[:, head].T * scale
            out[:, head] = logits.masked_fill(~seen, -torch.inf).softmax(-1) @ v[:, head]
        return out


def sparse(keep, target_ref=True):
    return SparseClip(Sparsity(keep, target_ref=target_ref), torch.float32, 32)


@pytest.mark.parametrize("keep", [SMALLEST, 20.0, 50.0])
def test_a_forward_equals_a_masked_softmax_over_rows(model, keep):
    given, independent = latents(SHAPE), PackedOrder(keep)
    found, wanted = network_of(model, SHAPE, sparse(keep))(given, 1), network_of(model, SHAPE, independent)(given, 1)
    assert independent.calls == [0, 1, 2] and independent.count == sum(TILES_OF)
    assert error(found, wanted) <= LIMIT
    for other in (PackedOrder(keep, force=False), sparse(keep, target_ref=False), None):
        assert error(network_of(model, SHAPE, other)(given, 1), wanted) > 1e-4


def test_everything_kept_is_dense_attention(model):
    given = latents(SHAPE)
    assert error(network_of(model, SHAPE, sparse(100.0))(given, 1), network_of(model, SHAPE)(given, 1)) <= LIMIT


def test_a_branch_without_reference_has_one_grid(model):
    shape, given = SHAPE.without_reference(), latents(SHAPE.without_reference())
    prepared = sparse(20.0).prepare(RowSegments.of(shape, 70), torch.device("cpu"))
    assert prepared.forced is None and prepared.tiles.n_video == TILES_OF[1]
    found = [network_of(model, shape, sparse(20.0, target_ref))(given, 1) for target_ref in (True, False)]
    assert error(*found) == 0.0


@pytest.mark.parametrize("keep", [SMALLEST, 40.0])
def test_the_aligned_reference_is_chosen_even_at_the_smallest_share(keep):
    """Keys of the reference point away from every query, so that nothing but force can choose them."""
    prepared = sparse(keep).prepare(SEGMENTS, torch.device("cpu"))
    tiles, random = prepared.tiles, torch.Generator().manual_seed(1)
    assert tiles.n_video == sum(TILES_OF)
    q, k = (torch.randn(tiles.rows, 2, 32, generator=random) + 3 for _ in range(2))
    reference = tiles.of_row - tiles.n_prefix < TILES_OF[0]
    k[reference & (tiles.of_row >= tiles.n_prefix)] -= 6
    seen = seen_tiles(prepared.choose(q, k, k, None).lists, tiles.n_tiles)[..., tiles.n_prefix :]
    mask = aligned_tiles(*GRIDS, (4, 4, 4))
    assert seen[:, mask].all()
    budget = max(1, math.ceil(keep / 100 * sum(TILES_OF)))
    assert torch.equal(seen.sum(-1), mask.sum(-1).clamp(min=budget).expand(2, -1))
    of_target = seen[:, TILES_OF[0] :, : TILES_OF[0]]
    assert torch.equal(of_target, mask[TILES_OF[0] :, : TILES_OF[0]].expand(2, -1, -1))  # the budget goes to the target


def test_aligned_tiles_at_the_released_size():
    """A tile of 4 x 4 rows is 2.5 x 2.48 patches of the map, and one more on every side."""
    mask = aligned_tiles((37, 15, 26), (37, 24, 42), (4, 4, 4))
    of_reference, of_target = 10 * 4 * 7, 10 * 6 * 11
    assert mask.shape == (of_reference + of_target,) * 2 and not mask[:, of_reference:].any()
    own = mask[of_reference:, :of_reference].view(10, 6, 11, 10, 4, 7)
    for t, h, w, key_h, key_w in ((0, 0, 0, {0}, {0}), (3, 2, 5, {1, 2}, {2, 3}), (9, 5, 10, {2, 3}, {5, 6})):
        found = own[t, h, w].nonzero().tolist()
        assert found == [[t, a, b] for a in sorted(key_h) for b in sorted(key_w)]
    assert int(own.flatten(3).sum(-1).min()) >= 1 and int(own.flatten(3).sum(-1).max()) <= 9
    torch.testing.assert_close(mask[:of_reference, :of_reference], torch.eye(of_reference, dtype=torch.bool))
    with pytest.raises(ValueError, match="a reference of 36 latents for a target of 37"):
        aligned_tiles((36, 15, 26), (37, 24, 42), (4, 4, 4))


def test_the_report_and_the_memory_plan_know_of_it():
    facts = sparse(20.0).facts()
    assert facts["name"] == "vsa_target_ref" and "no checkpoint was trained" in facts["experimental"]
    assert "target_ref" not in sparse(20.0, target_ref=False).facts()
    released = RowSegments.of(ClipShape.of(345, (768, 1344), (480, 832)), 1500)
    both, one = (sparse(10.0, target_ref).working_bytes(released, 56, 128, 2) for target_ref in (True, False))
    assert abs(both - one) < 0.1 * one  # the same rows, in tiles of 4x4x4 instead of runs of 64
