"""Segments, the attention by groups, and the choice among what is installed."""

from __future__ import annotations

import logging
import sys
import types

import pytest
import torch
from streamrender_h3.kernels import choice, dispatch
from streamrender_h3.kernels.attention import attention
from streamrender_h3.kernels.dispatch import AttentionError, choose, offer_host_attention
from streamrender_h3.kernels.segments import TILE_QUERIES, Group, Segments, by_groups, tile_rows

CPU = torch.device("cpu")
GROUPS = (Group(2, 3, 7, 9), Group(1, 4, 5, 5))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(dispatch, "_choose", dispatch._choose.__wrapped__)
    monkeypatch.setattr(choice, "_host", [])
    monkeypatch.delenv("SRH3_ATTENTION", raising=False)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_segments_see_their_own_keys_only():
    segments = Segments.of(GROUPS, CPU)
    q, k, v = random(10, 2, 8), random(23, 2, 8), random(23, 2, 8)
    k[7:9] = v[7:9] = k[16:18] = float("nan")  # reserved, not visible
    out = torch.empty_like(q)
    by_groups(q, k, v, segments, out)
    for (first, queries), (key, keys) in zip(((0, 3), (3, 3), (6, 4)), ((0, 7), (9, 7), (18, 5)), strict=True):
        expected = attention(q[first : first + queries], k[key : key + keys], v[key : key + keys])
        torch.testing.assert_close(out[first : first + queries], expected)


def test_segments_count_rows_once():
    segments = Segments.of(GROUPS, CPU)
    assert segments.queries_before.tolist() == [0, 3, 6, 10] and segments.rows_before.tolist() == [0, 9, 18, 23]
    assert (segments.max_queries, segments.max_keys, segments.whole) == (4, 7, False)
    assert Segments.of((Group(2, 3, 7, 7),), CPU).whole


def test_tiles_cover_every_query_once_and_start_with_most_keys():
    tiles = tile_rows([(0, 5, 0, 3), (5, 300, 3, 90)])
    assert sorted((first, first + count) for first, count, _, _ in tiles) == [
        (0, 5),
        (5, 5 + TILE_QUERIES),
        (5 + TILE_QUERIES, 5 + 2 * TILE_QUERIES),
        (5 + 2 * TILE_QUERIES, 305),
    ]
    assert [tile[3] for tile in tiles] == sorted((tile[3] for tile in tiles), reverse=True)


def test_the_cpu_uses_torch_and_says_so_once(caplog):
    with caplog.at_level(logging.INFO, "streamrender_h3"):
        assert choose(CPU, torch.float32, 8).name == "sdpa"
    assert [r.message for r in caplog.records] == ["decoder attention on cpu in float32: sdpa"]


def test_the_table_falls_through_with_reasons(monkeypatch):
    monkeypatch.setattr(dispatch, "order", lambda device: ("fa3", "comfy", "sdpa"))
    choice = choose(CPU, torch.float32, 8)
    assert choice.name == "sdpa"
    assert [reason.split(":")[0] for reason in choice.passed] == ["fa3", "comfy"]
    assert "CUDA device" in str(choice) and "no host" in str(choice)


def test_an_attention_that_computes_wrongly_is_passed_over(monkeypatch):
    monkeypatch.setattr(dispatch, "order", lambda device: ("comfy", "sdpa"))
    offer_host_attention(lambda q, k, v: q)
    choice = choose(CPU, torch.float32, 8)
    assert choice.name == "sdpa" and "self-test is off by" in choice.passed[0]
    offer_host_attention(torch.nn.functional.scaled_dot_product_attention)
    assert choose(CPU, torch.float32, 8).name == "comfy"


def test_a_named_attention_never_falls_back(monkeypatch):
    monkeypatch.setenv("SRH3_ATTENTION", "fa4")
    with pytest.raises(AttentionError, match="'fa4' cannot run on cpu"):
        choose(CPU, torch.float32, 8)
    monkeypatch.setenv("SRH3_ATTENTION", "psychic")
    with pytest.raises(AttentionError, match="choose one of auto, fa4"):
        choose(CPU, torch.float32, 8)
    monkeypatch.setenv("SRH3_ATTENTION", "comfy")
    with pytest.raises(AttentionError, match="no host has handed in"):
        choose(CPU, torch.float32, 8)


def test_a_namespace_without_the_function_is_not_flash_attention(monkeypatch):
    """Flash attention 4 leaves a package `flash_attn` behind in which the function of version 2 is missing."""
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    with pytest.raises(ImportError):
        dispatch.BACKENDS["fa2"]()


@pytest.mark.parametrize("whole", [True, False])
def test_variable_length_attention_is_used_when_the_ring_is_full(monkeypatch, whole):
    """A stand-in with the interface of flash attention, tuple result included."""
    seen = []

    def varlen(q, k, v, cu_q, cu_k, max_q, max_k):
        seen.append((max_q, max_k))
        out = torch.empty_like(q)
        for i in range(len(cu_q) - 1):
            rows, keys = slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])
            out[rows] = attention(q[rows], k[keys], v[keys])
        return out, None

    segments = Segments.of((Group(2, 3, 9 if whole else 7, 9), Group(1, 4, 5, 5)), CPU)
    q, k, v = random(10, 2, 8), random(23, 2, 8), random(23, 2, 8)
    out, expected = torch.empty_like(q), torch.empty_like(q)
    dispatch._varlen(varlen)(q, k, v, segments, out)
    by_groups(q, k, v, segments, expected)
    torch.testing.assert_close(out, expected)
    assert bool(seen) == whole
