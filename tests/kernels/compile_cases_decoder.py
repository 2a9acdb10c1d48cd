"""The kernels of the ViT decoder at the sizes of the released model."""

from __future__ import annotations

from compile_case import Case
from streamrender_h3.kernels import few_queries, qk_rope_write, residual_norm, segment_attention, swiglu

HEAD = {"HEADS": 32, "WIDTH": 64, "BLOCK_WIDTH": 64}


def attention_case(architecture: int) -> Case:
    tuned = segment_attention.tuning(divmod(architecture, 10), 2)
    return Case(
        segment_attention.kernel,
        dict.fromkeys(("Q", "K", "V", "OUT"), "*bf16") | {"TILES": "*i32", "SCALE": "fp32"},
        HEAD | {"BM": segment_attention.TILE_QUERIES, "BN": tuned["BN"], "STAGES": tuned["STAGES"]},
        tuned["num_warps"],
        dot=True,
    )


def cases(architecture: int) -> dict[str, Case]:
    row = dict.fromkeys(("X", "SCALE", "WEIGHT"), "*fp32") | {"BRANCH": "*bf16", "SOURCE": "*i32", "Y": "*bf16"}
    return {
        "residual_norm": Case(
            residual_norm.kernel, row | {"EPS": "fp32"}, {"WIDTH": 2048, "BLOCK": 2048, "MODE": 2}, 8, rows=True
        ),
        "swiglu": Case(
            swiglu.kernel,
            {"X": "*bf16", "Y": "*bf16", "Y_SCALE": "*bf16"},
            {"WIDTH": 8192, "BLOCK": 2048, "GATE_FIRST": True, "FP8": False},
            4,
            rows=True,
        ),
        "qk_rope_write": Case(
            qk_rope_write.kernel,
            dict.fromkeys(("QKV", "Q", "K", "V"), "*bf16")
            | dict.fromkeys(("COS", "SIN"), "*fp32")
            | {"QUERY_ROWS": "*i32", "KEY_ROWS": "*i32", "EPS": "fp32", "TOKENS": "i32", "COPIES": "i32"},
            {"HEADS": 32, "WIDTH": 64, "HALF": 24, "BLOCK_HEADS": 16, "BLOCK_WIDTH": 64},
            4,
            rows=True,
        ),
        "segment_attention": attention_case(architecture),
        "few_queries partial": Case(
            few_queries.partial_kernel,
            dict.fromkeys(("Q", "K", "V"), "*bf16")
            | {"SPANS": "*i32", "PARTS": "*fp32", "STATS": "*fp32", "SCALE": "fp32"},
            HEAD | {"QUERIES": 5, "BM": 16, "BN": few_queries.BLOCK_KEYS},
            4,
            stages=2,
            dot=True,
        ),
        "few_queries merge": Case(
            few_queries.merge_kernel,
            {"PARTS": "*fp32", "STATS": "*fp32", "OUT": "*bf16", "SPAN_COUNT": "i32"},
            HEAD | {"QUERIES": 5, "BLOCK_SPANS": 64},
            4,
        ),
    }
