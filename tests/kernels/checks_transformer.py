"""The kernels of the transformer, and their references, against float64 at the worst cases of the specification."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from check_tools import DEVICE, ELEMENTWISE, INTERPRETED, SOURCE, off, random
from streamrender_h3.kernels import fp8_rows, head_norm_rope, lse_merge, norm_modulate, swiglu, widen_heads
from streamrender_h3.kernels.fp8_rows import Fp8Rows

Lines = Iterator[tuple]
EPS = 1e-5
FP8 = torch.float8_e4m3fn
FP8_RUNS = INTERPRETED or torch.cuda.get_device_capability() >= fp8_rows.CAPABILITY
FP8_FLIPS = 1e-4  # share of the codes whose value lay so near the middle of two that the last bit of float32 decides
SCALE_LIMIT = 1e-6
INTERPRETED_CODES = 0.1  # relative, of codes times scale; a right conversion stays below 0.04
# heads, channels, half; in the third one every channel turns
HEADS = ((7, 128, 48), (20, 16, 6), (3, 32, 16), *(() if INTERPRETED else ((56, 128, 48),)))


def integers(high: int, count: int) -> torch.Tensor:
    return torch.randint(high, (count,), generator=SOURCE).int().to(DEVICE)


def in_fp8(name: str, made: object, expected: torch.Tensor, flips: float = FP8_FLIPS) -> Lines:
    """Scales and codes of rows that should hold `expected`, float64."""
    assert isinstance(made, Fp8Rows)
    assert made.codes.dtype == FP8
    truth = fp8_rows.reference(expected.float())
    yield f"{name} scale", off(made.scale, truth.scale), SCALE_LIMIT
    if INTERPRETED:  # its conversion loses the carry from the mantissa to the exponent, and cuts off subnormal values
        yield f"{name} codes", off(made.codes.double() * made.scale.double(), expected), INTERPRETED_CODES
        return
    codes, right = (rows.codes.view(torch.uint8).int() for rows in (made, truth))
    codes, right = (x.where(x != 128, 0) for x in (codes, right))  # the sign of a zero is nobody's business
    wrong = codes != right
    assert ((codes - right).abs()[wrong] <= 1).all(), (codes[wrong][:9].tolist(), right[wrong][:9].tolist())
    yield f"{name} codes", float(wrong.float().mean()), flips


# --- norm and modulation ---------------------------------------------------------------------------------------------


def norm_modulates(dtype: torch.dtype) -> Lines:
    rows, times = 9, 2
    for width in (48, 1300, 5376) if INTERPRETED else (48, 5376):
        tables, other = random(3 * times, 6, width, dtype=dtype), random(3, 6, width, dtype=dtype)
        tables[4, 0], tables[4, 1] = 0, -1  # rows of table row 4 become zero
        time, tag = integers(times, rows), integers(3, rows)
        time[:6], tag[:6] = 1, torch.tensor([1, 1, 0, 0, 1, 2], device=DEVICE)  # text with a picture inside, tag 0
        row = time * 3 + tag
        weight = random(width, dtype=dtype)
        shift, scale = tables[:, 0], tables[:, 1]
        branch = random(rows, width + 8, dtype=dtype)[:, :width]
        for name, options in (("norm", {}), ("add", {"branch": branch, "gate": other[:, 2]})):
            x = random(rows, width, dtype=dtype) * 4
            where = row if name == "norm" else (row % 3).int()  # the gate is another block's and has fewer rows
            summed, expected = norm_truth(x, weight, shift, scale, where, **options)
            outputs = [dtype, torch.float32, *([FP8] if FP8_RUNS else [])]
            for out in outputs:
                for side in ("launch", "reference"):
                    mine = x.clone()
                    y = getattr(norm_modulate, side)(mine, weight, EPS, shift, scale, where, out, **options)
                    case = f"{side} {name} {width} {str(out).removeprefix('torch.')}"
                    yield f"{case} stream", off(mine, summed)
                    if out == FP8:
                        yield from in_fp8(case, y, expected)
                    else:
                        assert y.dtype == out
                        yield case, off(y, expected), ELEMENTWISE[out]


def norm_truth(
    x: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    row: torch.Tensor,
    branch: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    x, at = x.double(), row.long()
    if branch is not None and gate is not None:
        x = x + gate[at].double() * branch.double()
    normed = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    return x, normed * (1 + scale[at].double()) + shift[at].double()


# --- heads -----------------------------------------------------------------------------------------------------------


def head_norm_ropes(dtype: torch.dtype) -> Lines:
    rows = 5
    for heads, width, half in HEADS:
        qkv = random(rows, 3 * heads * width, dtype=dtype)
        weights = random(width, dtype=dtype), random(width, dtype=dtype)
        angle = random(rows, half)
        for angles in {torch.float32, dtype}:
            cos, sin = angle.cos().to(angles), angle.sin().to(angles)
            q, k = (
                turned_truth(qkv.view(rows, 3, heads, width)[:, part], weight, cos, sin)
                for part, weight in enumerate(weights)
            )
            v = qkv.view(rows, 3, heads, width)[:, 2]
            some = torch.tensor([4, 1, 3], dtype=torch.int32, device=DEVICE)
            for picked in (None, some) if angles == dtype else (None,):
                for side in ("launch", "reference"):
                    arena = torch.full((2, rows + 5, heads, width), 7.0, dtype=dtype, device=DEVICE)
                    keys, values = arena[:, 2 : 2 + rows]
                    made = getattr(head_norm_rope, side)(qkv, *weights, cos, sin, EPS, keys, values, picked)
                    case = f"{side} {heads}x{width}{'' if picked is None else ' picked'}"
                    yield f"{case} q", off(made, q if picked is None else q[picked.long()])
                    yield f"{case} k", off(keys, k)
                    assert torch.equal(values, v)
                    assert (arena[:, :2] == 7).all() and (arena[:, 2 + rows :] == 7).all()


def turned_truth(x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x, half = x.double(), cos.shape[1]
    normed = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    turn = torch.complex(cos.double(), sin.double())[:, None]
    pairs = torch.complex(normed[..., :half], normed[..., half : 2 * half]) * turn
    return torch.cat((pairs.real, pairs.imag, normed[..., 2 * half :]), dim=-1)


# --- swiglu, merge, rows in fp8 --------------------------------------------------------------------------------------


def both_swiglus(dtype: torch.dtype) -> Lines:
    for width in (24, 1300) if INTERPRETED else (24, 14336):
        x = random(7, 2 * width, dtype=dtype) * 3
        x[3] = 0
        for gate_first in (True, False):
            gate, value = x.double().chunk(2, dim=-1) if gate_first else x.double().chunk(2, dim=-1)[::-1]
            expected = gate * torch.sigmoid(gate) * value
            for side in ("launch", "reference"):
                run, case = getattr(swiglu, side), f"{side} {width} gate {'first' if gate_first else 'second'}"
                yield case, off(run(x, gate_first=gate_first), expected)
                yield f"{case} float32", off(run(x, gate_first=gate_first, out=torch.float32), expected), 1e-6
                if FP8_RUNS:
                    yield from in_fp8(case, run(x, gate_first=gate_first, out=FP8), expected)


def lse_merges(dtype: torch.dtype) -> Lines:
    for rows, heads, width in ((5, 7, 16), (33, 56, 128)):
        a, b = random(rows, heads, width, dtype=dtype), random(rows, heads, width, dtype=dtype)
        lse_a, lse_b = random(heads, rows) * 3, random(heads, rows) * 3
        lse_a[2, 2], lse_b[2, 2], lse_a[3, 1], lse_b[3, 1] = 80, 79, -160, -80
        lse_a[0, 0] = lse_b[0, 0] = lse_a[1, 1] = lse_b[1, 2] = -torch.inf
        a[1, 1] = b[2, 1] = torch.nan  # a side without keys may hold anything
        weight = torch.stack((lse_a, lse_b)).double().softmax(0).nan_to_num(0.0).transpose(1, 2)[..., None]
        expected = a.double().nan_to_num(0.0) * weight[0] + b.double().nan_to_num(0.0) * weight[1]
        for side in ("launch", "reference"):
            mine = a.clone()
            made = getattr(lse_merge, side)(mine, lse_a, b, lse_b)
            assert made is mine
            assert (made[0, 0] == 0).all()
            yield f"{side} {rows}x{heads}x{width}", off(made, expected)


def rows_in_fp8(dtype: torch.dtype) -> Lines:
    if not FP8_RUNS:
        return
    for width in (48, 700, 7168, *(() if INTERPRETED else (14336,))):
        x = random(7, width + 8, dtype=dtype)[:, :width]
        x[1] = 0
        x[2] *= 6e-5
        x[3] *= 1e4
        made, expected = fp8_rows.launch(x), fp8_rows.reference(x)
        assert float(made.scale[1]) == 1
        yield from in_fp8(f"launch {width}", made, x.double(), 0.0)  # the same float32 goes in, so nothing may differ
        assert INTERPRETED or torch.equal(made.scale, expected.scale)
        loss = off(expected.codes.double() * expected.scale.double(), x)
        yield f"reference {width}", loss, 0.04  # three bits of mantissa


# --- more rows than 32 bits can address ------------------------------------------------------------------------------


def rows_past_32_bits(dtype: torch.dtype) -> Lines:
    """Every kernel on so many rows that the last ones lie past element 2**31; on a GPU with room for them."""
    few = 3
    if INTERPRETED or dtype != torch.bfloat16 or torch.cuda.mem_get_info()[0] < 40 * 2**30:
        yield "not here", 0.0
        return

    def tall(width: int, last: torch.Tensor | None = None) -> torch.Tensor:
        x = torch.zeros(2**31 // width + few, width, dtype=dtype, device=DEVICE)
        x[-few:] = random(few, width, dtype=dtype) if last is None else last
        return x

    x = tall(2 * 14336)
    yield "swiglu", off(swiglu.launch(x)[-few:], swiglu.reference(x[-few:].float()))
    x, branch = tall(5376), tall(5376)
    weight, tables = random(5376, dtype=dtype), random(3, 6, 5376, dtype=dtype)
    row = integers(3, len(x))
    shift, scale, gate = tables[:, 0], tables[:, 1], tables[:, 2]
    summed, expected = norm_truth(x[-few:], weight, shift, scale, row[-few:], branch[-few:], gate)
    y = norm_modulate.launch(x, weight, EPS, shift, scale, row, dtype, branch=branch, gate=gate)
    yield "norm_modulate", off(y[-few:], expected)
    yield "norm_modulate stream", off(x[-few:], summed)
    yield from in_fp8("fp8_rows", Fp8Rows(*(part[-few:] for part in fp8_rows.launch(x))), x[-few:].double(), 0.0)
    del x, branch, y
    a, b = tall(7168).view(-1, 56, 128), tall(7168).view(-1, 56, 128)
    lse = random(56, 1).expand(56, len(a)).contiguous()
    expected = (a[-few:].double() + b[-few:].double()) / 2
    yield "lse_merge", off(lse_merge.launch(a, lse, b, lse)[-few:], expected)
    del a, b, lse
    qkv = tall(3 * 7168)
    cos, sin = torch.ones(len(qkv), 48, device=DEVICE), torch.zeros(len(qkv), 48, device=DEVICE)
    keys, values = (torch.empty(len(qkv), 56, 128, dtype=dtype, device=DEVICE) for _ in range(2))
    weight = random(128, dtype=dtype)
    q = head_norm_rope.launch(qkv, weight, weight, cos, sin, EPS, keys, values)
    parts = qkv[-few:].view(few, 3, 56, 128)
    for name, made, part in (("q", q, parts[:, 0]), ("k", keys, parts[:, 1])):
        yield f"head_norm_rope {name}", off(made[-few:], turned_truth(part, weight, cos[-few:], sin[-few:]))
    assert torch.equal(values[-few:], parts[:, 2])


# --- an fp8 bank -----------------------------------------------------------------------------------------------------


def widened_heads(dtype: torch.dtype) -> Lines:
    for rows, heads, width in ((5, 7, 128), (3, 20, 48), *(() if INTERPRETED else ((7115, 56, 128),))):
        codes = random(rows, heads, width).clamp(-400, 400).to(FP8)
        scale = random(rows, heads, 1, dtype=torch.bfloat16).abs() + 2**-6
        made, expected = (torch.full((rows, heads, width), float("nan"), dtype=dtype, device=DEVICE) for _ in range(2))
        widen_heads.launch(codes, scale, made)
        widen_heads.reference(codes, scale, expected)
        truth = codes.double() * scale.double()
        yield f"launch {rows}x{heads}x{width}", off(made, truth)
        yield f"reference {rows}x{heads}x{width}", off(expected, truth)
