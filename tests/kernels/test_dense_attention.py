"""Attention of packed rows: the choice among what is installed, and the log-sum-exp by which parts are joined."""

from __future__ import annotations

import logging
import sys
import types

import pytest
import torch
from streamrender_h3.kernels import choice, dense_attention, dispatch, lse_merge
from streamrender_h3.kernels.attention import attention
from streamrender_h3.kernels.choice import AttentionError, offer_host_attention
from streamrender_h3.kernels.dense_attention import BACKENDS, choose_dense, reference

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for module in (dense_attention, dispatch):
        monkeypatch.setattr(module, "_choose", module._choose.__wrapped__)
    monkeypatch.setattr(choice, "_host", [])
    monkeypatch.delenv("SRH3_ATTENTION", raising=False)


@pytest.fixture
def packed():
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randn(rows, 7, 16, generator=random) for rows in (9, 31, 31))


def as_if_on_cuda(monkeypatch, *names):
    monkeypatch.setattr(dense_attention, "order", lambda device: names)
    monkeypatch.setattr(dense_attention, "ON_CUDA_ONLY", ())


def library(monkeypatch, module, **functions):
    """A stand-in for an installed package."""
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**functions))


def flash(factor=1.0, base=1.0, always_tuple=False):
    """The interface of flash attention over [1, rows, heads, d], with a mistake in the output or the log-sum-exp."""

    def run(q, k, v, *, return_attn_probs=False, return_lse=False):
        out, lse = reference(q[0], k[0], v[0])
        if not (return_attn_probs or return_lse or always_tuple):
            return out[None] * factor
        return out[None] * factor, lse[None] * base, None

    return run


def test_the_definition_is_softmax_attention_and_its_log_sum(packed):
    q, k, v = packed
    out, lse = reference(q, k, v)
    torch.testing.assert_close(out, attention(q, k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / 4
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-6, atol=1e-6)


def test_attention_without_keys_is_nothing(packed):
    q, k, v = packed
    out, lse = reference(q, k[:0], v[:0])
    assert (out == 0).all() and (lse == -torch.inf).all()
    torch.testing.assert_close(lse_merge.reference(out, lse, *reference(q, k, v)), attention(q, k, v))


def test_two_parts_of_the_keys_join_by_their_log_sums(packed):
    q, k, v = packed
    chosen = choose_dense(CPU, torch.float32, 16)
    parts = [chosen.run_lse(q, k[part], v[part]) for part in (slice(12), slice(12, None))]
    joined = lse_merge.reference(*parts[0], *parts[1])
    assert (joined - chosen.run(q, k, v)).norm() / joined.norm() < 1e-6


def test_the_cpu_uses_torch_and_says_so_once(caplog, packed):
    with caplog.at_level(logging.INFO, "streamrender_h3"):
        chosen = choose_dense(CPU, torch.float32, 16)
    assert chosen.name == "sdpa" and chosen.run(*packed).is_contiguous()
    assert [r.message for r in caplog.records] == ["transformer attention on cpu in float32: sdpa"]


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((12, 1), ["fa2", "cudnn", "sdpa", "fa4"]),
        ((10, 3), ["fa4", "cudnn", "fa2", "sdpa"]),
        ((9, 0), ["fa3", "fa4", "cudnn", "fa2", "sdpa"]),
        ((8, 6), ["fa2", "sdpa", "fa4"]),
        ((7, 5), ["comfy", "sdpa"]),
    ],
)
def test_each_card_has_its_order(monkeypatch, capability, names):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert list(dense_attention.order(torch.device("cuda"))) == names
    assert list(dense_attention.order(torch.device("mps"))) == ["comfy", "sdpa"]


def test_int8_is_never_chosen_by_itself():
    assert "int8" in BACKENDS
    assert all("int8" not in names for _, names in dense_attention.ORDER)


def test_the_table_falls_through_with_reasons(monkeypatch, packed):
    as_if_on_cuda(monkeypatch, "fa3", "fa2", "comfy", "sdpa")
    library(monkeypatch, "flash_attn_interface", flash_attn_func=flash(factor=1.1))
    chosen = choose_dense(CPU, torch.float32, 16)
    assert chosen.name == "sdpa"
    assert [reason.split(":")[0] for reason in chosen.passed] == ["fa3", "fa2", "comfy"]
    assert "self-test is off by" in str(chosen) and "no host" in str(chosen)


@pytest.mark.parametrize(
    ("name", "module", "always_tuple"),
    [
        ("fa2", "flash_attn", False),
        ("fa3", "flash_attn_interface", False),
        ("fa4", "flash_attn.cute", False),
        ("fa4", "flash_attn.cute", True),
    ],
)
def test_flash_attention_is_called_as_its_releases_want(monkeypatch, packed, name, module, always_tuple):
    as_if_on_cuda(monkeypatch, name)
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    library(monkeypatch, module, flash_attn_func=flash(always_tuple=always_tuple))
    chosen = choose_dense(CPU, torch.float32, 16)
    expected, expected_lse = reference(*packed)
    assert chosen.name == name
    torch.testing.assert_close(chosen.run(*packed), expected)
    out, lse = chosen.run_lse(*packed)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


def test_flash_attention_3_before_it_could_be_asked_returns_the_log_sum_always(monkeypatch, packed):
    as_if_on_cuda(monkeypatch, "fa3")
    library(monkeypatch, "flash_attn_interface", flash_attn_func=lambda q, k, v: flash(always_tuple=True)(q, k, v)[:2])
    torch.testing.assert_close(choose_dense(CPU, torch.float32, 16).run_lse(*packed)[1], reference(*packed)[1])


def test_a_wrong_log_sum_costs_the_log_sum_only(monkeypatch, packed):
    """A library that returns it to base 2 still attends rightly."""
    as_if_on_cuda(monkeypatch, "fa2", "sdpa")
    library(monkeypatch, "flash_attn", flash_attn_func=flash(base=1.4427))
    chosen = choose_dense(CPU, torch.float32, 16)
    assert chosen.name == "fa2" and chosen.run_lse is None
    assert "fa2 without log-sum-exp: its log-sum-exp is off by" in str(chosen)
    torch.testing.assert_close(chosen.run(*packed), attention(*packed))


def test_the_hosts_own_attention_is_used_when_named(monkeypatch, packed):
    monkeypatch.setenv("SRH3_ATTENTION", "comfy")
    with pytest.raises(AttentionError, match="no host has handed in"):
        choose_dense(CPU, torch.float32, 16)
    offer_host_attention(torch.nn.functional.scaled_dot_product_attention)
    chosen = choose_dense(CPU, torch.float32, 16)
    assert chosen.name == "comfy" and chosen.run_lse is None
    torch.testing.assert_close(chosen.run(*packed), attention(*packed))


def test_a_named_attention_never_falls_back(monkeypatch):
    for name in ("fa4", "cudnn", "int8"):
        monkeypatch.setenv("SRH3_ATTENTION", name)
        with pytest.raises(
            AttentionError, match=f"'{name}' cannot run on cpu .*set SRH3_ATTENTION=auto or one of sdpa"
        ):
            choose_dense(CPU, torch.float32, 16)


@pytest.mark.parametrize("choose", [choose_dense, dispatch.choose], ids=["transformer", "decoder"])
def test_an_unknown_name_is_an_error_for_both(monkeypatch, choose):
    monkeypatch.setenv("SRH3_ATTENTION", "psychic")
    with pytest.raises(AttentionError, match=r"choose one of auto, fa4.*int8"):
        choose(CPU, torch.float32, 16)


@pytest.mark.parametrize(
    ("name", "choose", "line"),
    [
        ("triton", choose_dense, "transformer attention on cpu in float32: sdpa (triton: not for this use)"),
        ("varlen", choose_dense, "transformer attention on cpu in float32: sdpa (varlen: not for this use)"),
        ("int8", dispatch.choose, "decoder attention on cpu in float32: sdpa (int8: not for this use)"),
    ],
)
def test_a_name_for_the_other_use_leaves_this_one_alone_and_says_so(monkeypatch, caplog, name, choose, line):
    monkeypatch.setenv("SRH3_ATTENTION", name)
    with caplog.at_level(logging.INFO, "streamrender_h3"):
        assert choose(CPU, torch.float32, 16).name == "sdpa"
    assert [r.message for r in caplog.records] == [line]


def test_every_name_belongs_to_a_table():
    assert set(choice.NAMES) == set(BACKENDS) | set(dispatch.BACKENDS)
