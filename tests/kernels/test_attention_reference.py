"""The reference attention against the written-out formula in float64."""

import pytest
import torch
from streamrender_h3.kernels.attention import attention


def formula(q, k, v, mask=None):
    q, k, v = (x.double() for x in (q, k, v))
    scores = torch.einsum("...qhd,...khd->...hqk", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(-3), -torch.inf)
    return torch.einsum("...hqk,...khd->...qhd", scores.softmax(-1), v)


@pytest.mark.parametrize(("lead", "queries", "keys"), [((), 7, 7), ((), 5, 12), ((3,), 4, 9), ((), 1, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_the_formula(lead, queries, keys, masked):
    torch.manual_seed(0)
    q, k, v = (torch.randn(*lead, n, 3, 20) for n in (queries, keys, keys))
    mask = None
    if masked:
        mask = torch.rand(*lead, queries, keys) > 0.5
        mask[..., 0] = True
    out = attention(q, k, v, mask)
    assert out.shape == q.shape
    torch.testing.assert_close(out.double(), formula(q, k, v, mask), rtol=1e-5, atol=1e-6)


def test_one_mask_serves_a_batch():
    q, k, v = (torch.randn(2, 4, 3, 8) for _ in range(3))
    mask = torch.eye(4) > 0
    torch.testing.assert_close(attention(q, k, v, mask), v)


def test_a_hidden_key_has_no_influence_and_no_gradient():
    q, k, v = (torch.randn(4, 2, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[:, 2] = False
    attention(q, k, v, mask).sum().backward()
    assert v.grad[2].abs().sum() == 0 and v.grad[1].abs().sum() > 0
