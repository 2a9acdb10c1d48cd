"""The form of sparse attention: chosen by table, named by the environment, never replaced in silence."""

from __future__ import annotations

import pytest
import torch
from streamrender_h3.kernels import launch
from streamrender_h3.kernels.choice import AttentionError
from streamrender_h3.kernels.sparse_dispatch import EAGER_ROWS, _choose, choose_sparse
from streamrender_h3.kernels.tiles import Tiles

CPU = torch.device("cpu")
TILES = Tiles.of([70, 5, (5, 5, 9)], (4, 4, 4))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("SRH3_SPARSE", raising=False)
    monkeypatch.delenv("SRH3_ATTENTION", raising=False)
    _choose.cache_clear()
    yield
    _choose.cache_clear()


def rows() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(TILES.rows, 2, 32, generator=random) for _ in range(3)]


def test_the_processor_runs_the_definition():
    chosen = choose_sparse(CPU, torch.float32, 32)
    assert chosen.name == "eager"
    assert chosen.run(*rows(), TILES, 0.8).shape == (TILES.rows, 2, 32)


def test_off_sees_every_tile(monkeypatch):
    monkeypatch.setenv("SRH3_SPARSE", "off")
    chosen = choose_sparse(CPU, torch.float32, 32)
    q, k, v = rows()
    torch.testing.assert_close(chosen.run(q, k, v, TILES, 0.8), chosen.dense.run(q, k, v))


def test_a_named_form_that_cannot_run_is_an_error(monkeypatch):
    monkeypatch.setenv("SRH3_SPARSE", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(launch, "MISSING", "")
    with pytest.raises(AttentionError, match=r"'triton' cannot run on cpu .*need CUDA.*set SRH3_SPARSE=auto"):
        choose_sparse(CPU, torch.float32, 32)


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttentionError, match=r"SRH3_SPARSE is 'fast', .* choose one of auto, triton, eager, off"):
        choose_sparse(CPU, torch.float32, 32, "fast")


def test_a_long_clip_is_refused_where_only_torch_runs():
    chosen = choose_sparse(CPU, torch.float32, 32)
    chosen.need_rows(EAGER_ROWS)
    with pytest.raises(AttentionError, match=r"38710 rows, .* takes 32768 at most; set the attention mode to dense"):
        chosen.need_rows(38710)


def test_rows_of_another_sequence_are_refused():
    q, k, v = rows()
    with pytest.raises(ValueError, match="299 queries and 299 keys for tiles of 300 rows"):
        choose_sparse(CPU, torch.float32, 32).run(q[1:], k[1:], v[1:], TILES, 0.8)
