"""The kernels of sparse attention at the sizes of the released model and a clip of 345 frames."""

from __future__ import annotations

from compile_case import Case
from streamrender_h3.kernels import block_sparse, compression, key_layout, tile_lists, tile_means

HEADS, WIDTH, BLOCK, TILES = 56, 128, key_layout.BLOCK, 1749
MAP_FROM = 90  # the first architecture that reads through tensor maps
INDICES = dict.fromkeys(("Q_STARTS", "Q_SIZES", "STARTS", "SIZES", "LISTED", "COUNT"), "*i32")
STRIDES = ("Q_STRIDE", "Q_HEAD_STRIDE", "KV_STRIDE", "KV_HEAD_STRIDE", "OUT_STRIDE", "MAP_ROWS", "MAP_COLUMNS")
NUMBERS = ("QUERY_TILES", "PAIRS", "ROWS", "ALWAYS", "MOST", "FIRST_OF_2")


def attention_case(
    module: object, *, parts: int = 1, two: bool = False, join: bool = True, lse: bool = False, maps: bool = False
) -> Case:
    kernel, tuned = module.kernel, {"STAGES": 2, "num_warps": 4}
    tensors = dict.fromkeys(("Q", "K", "V", "K2", "V2", "OUT", "BEFORE"), "*bf16")
    types = tensors | {"LSE": "*fp32", "BEFORE_LSE": "*fp32", "SCALE": "fp32"} | INDICES
    types |= dict.fromkeys((*STRIDES, *NUMBERS), "i32")
    if maps:
        types |= dict.fromkeys(("K", "V", "K2", "V2"), f"tensordesc<bf16[{BLOCK},{WIDTH}]>")
    values = {"WIDTH": WIDTH, "BLOCK_WIDTH": WIDTH, "BLOCK": BLOCK, "PARTS": parts, "TWO": two, "JOIN": join}
    values |= {"WRITE_LSE": lse, "TENSOR_MAP": maps, "STAGES": tuned["STAGES"]}
    names = set(kernel.arg_names)
    types, values = ({name: value for name, value in some.items() if name in names} for some in (types, values))
    return Case(kernel, types, values, tuned["num_warps"], dot=True, rows=True)


def means_case() -> Case:
    tuned = tile_means.tuning()
    types = {"X": "*bf16", "OUT": "*fp32", "STARTS": "*i32", "SIZES": "*i32", "TILES": "i32", "STRIDE": "i32"}
    shape = {"COLUMNS": HEADS * WIDTH, "WIDTH": WIDTH, "BLOCK": tuned["BLOCK"], "ROWS": tuned["ROWS"]}
    return Case(tile_means.kernel, types, shape, tuned["num_warps"], rows=True)


def lists_case() -> Case:
    types = {"SCORES": "*fp32", "WANTED": "*i32", "LISTED": "*i32", "COUNT": "*i32"}
    types |= dict.fromkeys(("QUERIES", "KEYS", "MOST", "OFFSET", "HEAD_STRIDE", "ROW_STRIDE"), "i32")
    return Case(tile_lists.kernel, types, {"BLOCK": 2048}, 4, rows=True)


def gated_case() -> Case:
    tuned = compression.tuning(HEADS)
    types = {"OUT": "*bf16", "GATE": "*bf16", "MIXED": "*fp32", "OF_ROW": "*i32", "TOTAL_ROWS": "i32", "TILES": "i32"}
    shape = {"HEADS": HEADS, "WIDTH": WIDTH, "ROWS": tuned["ROWS"], "BLOCK_HEADS": tuned["BLOCK_HEADS"]}
    return Case(compression.kernel, types, shape | {"BLOCK_WIDTH": WIDTH}, tuned["num_warps"], rows=True)


def cases(architecture: int) -> dict[str, Case]:
    made = {
        "block_sparse": attention_case(block_sparse),
        "block_sparse lse": attention_case(block_sparse, join=False, lse=True),
        "block_sparse 256": attention_case(block_sparse, parts=4),
        "block_sparse two sources": attention_case(block_sparse, two=True, join=False),
        "tile_means": means_case(),
        "tile_lists": lists_case(),
        "compression": gated_case(),
    }
    if architecture >= MAP_FROM:
        made["block_sparse maps"] = attention_case(block_sparse, maps=True)
    return made
