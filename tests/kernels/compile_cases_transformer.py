"""The kernels of the transformer at the sizes of the released model, with the tuning that a launch takes."""

from __future__ import annotations

from compile_case import Case
from streamrender_h3.kernels import fp8_rows, head_norm_rope, lse_merge, norm_modulate, swiglu, widen_heads

HIDDEN, HEADS, WIDTH, HALF, FFN = 5376, 56, 128, 48, 14336
FP8_FROM = 89  # the first architecture that converts to float8_e4m3fn


def norm_case(*, fp8: bool, add: bool = True, out: str = "*bf16") -> Case:
    tuned = norm_modulate.tuning(HIDDEN)
    types = dict.fromkeys(("X", "BRANCH", "GATE", "WEIGHT", "SHIFT", "SCALE"), "*bf16")
    types |= {"ROW": "*i32", "Y": "*fp8e4nv" if fp8 else out, "Y_SCALE": "*fp32", "EPS": "fp32"}
    types |= dict.fromkeys(("BRANCH_STRIDE", "GATE_STRIDE", "SHIFT_STRIDE", "SCALE_STRIDE"), "i32")
    shape = {"BLOCK": tuned["BLOCK"], "PARTS": tuned["PARTS"], "ADD": add, "FP8": fp8, "WIDTH": HIDDEN}
    return Case(norm_modulate.kernel, types, shape, tuned["num_warps"], fp8=fp8, rows=True)


def head_case(*, picked: bool) -> Case:
    tuned = head_norm_rope.tuning(HEADS)
    heads = tuned["BLOCK_HEADS"]
    types = dict.fromkeys(("QKV", "Q_WEIGHT", "K_WEIGHT", "COS", "SIN", "Q", "K", "V"), "*bf16")
    types |= {"Q_ROWS": "*i32", "EPS": "fp32", "QUERIES": "i32", "ROWS": "i32"}
    shape = {"HEADS": HEADS, "WIDTH": WIDTH, "HALF": HALF, "PICKED": picked, "BLOCK_HEADS": heads}
    blocks = {"BLOCK": 64, "BLOCK_COPY": heads * WIDTH}
    return Case(head_norm_rope.kernel, types, shape | blocks, tuned["num_warps"], rows=True)


def swiglu_case(*, fp8: bool) -> Case:
    tuned = swiglu.tuning(FFN, fp8)
    types = {"X": "*bf16", "Y": "*fp8e4nv" if fp8 else "*bf16", "Y_SCALE": "*fp32"}
    shape = {"WIDTH": FFN, "BLOCK": tuned["BLOCK"], "GATE_FIRST": True, "FP8": fp8}
    return Case(swiglu.kernel, types, shape, tuned["num_warps"], fp8=fp8, rows=True)


def merge_case() -> Case:
    tuned = lse_merge.tuning(HEADS)
    types = {"A": "*bf16", "B": "*bf16", "LSE_A": "*fp32", "LSE_B": "*fp32", "TOTAL_ROWS": "i32"}
    shape = {"HEADS": HEADS, "WIDTH": WIDTH, "ROWS": tuned["ROWS"], "BLOCK_HEADS": tuned["BLOCK_HEADS"]}
    return Case(lse_merge.kernel, types, shape | {"BLOCK_WIDTH": WIDTH}, tuned["num_warps"], rows=True)


def fp8_case(width: int) -> Case:
    types = {"X": "*bf16", "CODES": "*fp8e4nv", "SCALES": "*fp32", "X_STRIDE": "i32"}
    shape = {"WIDTH": width, "BLOCK": 1 << (width - 1).bit_length()}
    return Case(fp8_rows.kernel, types, shape, fp8_rows.tuning(width)["num_warps"], fp8=True, rows=True)


def widen_case() -> Case:
    types = {"CODES": "*fp8e4nv", "SCALE": "*bf16", "OUT": "*bf16", "COUNT": "i32"}
    shape = {"WIDTH": WIDTH, "BLOCK": WIDTH, "HEADS_AT_ONCE": widen_heads.TUNING["HEADS_AT_ONCE"]}
    return Case(widen_heads.kernel, types, shape, widen_heads.TUNING["num_warps"], fp8=True, rows=True)


def cases(architecture: int) -> dict[str, Case]:
    made = {
        "norm_modulate add": norm_case(fp8=False),
        "norm_modulate first": norm_case(fp8=False, add=False),
        "norm_modulate final": norm_case(fp8=False, add=False, out="*fp32"),
        "norm_modulate fp8": norm_case(fp8=True),
        "head_norm_rope": head_case(picked=False),
        "head_norm_rope picked": head_case(picked=True),
        "swiglu wide": swiglu_case(fp8=False),
        "swiglu fp8": swiglu_case(fp8=True),
        "lse_merge": merge_case(),
        "fp8_rows attention": fp8_case(HEADS * WIDTH),
        "fp8_rows ffn": fp8_case(FFN),
        "widen_heads": widen_case(),
    }
    return {name: case for name, case in made.items() if architecture >= FP8_FROM or not case.fp8}
