"""The forms in which a checkpoint carries its modulation, as data: which tensors stand for the AdaLN projections.

Everything the projections read is one curve u(t) in a space of 2688 dimensions, so three forms smaller than the full one
are in use: projections onto a few directions of that curve, the curve sampled on a grid, and finished tables of a few
times. Canonical names are the native ones; names that no publisher uses are our own (`adaln_table`, `adaln_times`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Dims = tuple[str, ...]

TIME_MLP: Mapping[str, Dims] = {
    "time_embedder.proj_in.weight": ("time_hidden", "freq"),
    "time_embedder.proj_in.bias": ("time_hidden",),
    "time_embedder.proj_out.weight": ("time", "time_hidden"),
    "time_embedder.proj_out.bias": ("time",),
}
FINAL_ADALN: Mapping[str, Dims] = {
    "final_layer.adaln_proj.linear.weight": ("final_adaln", "coordinates"),
    "final_layer.adaln_proj.linear.bias": ("final_adaln",),
}
BLOCK_ADALN: Mapping[str, Dims] = {
    "adaln_proj.linear.weight": ("adaln", "coordinates"),
    "adaln_proj.linear.bias": ("adaln",),
}
BASIS, CURVE_TABLE = "adaln_basis.weight", "adaln_t_table"
TIMES, VECTORS, BLOCK_TABLE, FINAL_TABLE = "adaln_times", "adaln_vectors", "adaln_table", "final_layer.adaln_table"


@dataclass(frozen=True, eq=False)
class Form:
    """One form of the modulation.

    Attributes:
        name: as reports say it.
        root, block: its tensors outside blocks and in every block, with the names of their sizes.
        optional: tensors of `root` that may be absent.
        spare: patterns of tensors (in the file's names) that may lie beside it and are not read.
        sizes: size name -> (canonical tensor, dimension) that tells it.
    """

    name: str
    root: Mapping[str, Dims]
    block: Mapping[str, Dims]
    optional: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def has_time_mlp(self) -> bool:
        """Whether a time can be embedded: the full and the low-rank form."""
        return "time_embedder.proj_in.weight" in self.root

    def is_spare(self, name: str) -> bool:
        """Whether the file's tensor `name` belongs to what this form leaves unread."""
        return any(re.fullmatch(pattern, name) for pattern in self.spare)

    @property
    def any_time(self) -> bool:
        """Whether it gives the modulation of every time, not only of a few or of none."""
        return self not in (TABLES, NOTHING)


FULL = Form(
    "full",
    {**TIME_MLP, **FINAL_ADALN},
    BLOCK_ADALN,
    sizes={"coordinates": ("time_embedder.proj_out.weight", 0)},
)
LOW_RANK = Form(
    "low rank",
    {**TIME_MLP, BASIS: ("coordinates", "time"), **FINAL_ADALN},
    BLOCK_ADALN,
    sizes={"coordinates": (BASIS, 0)},
)
CURVE = Form(
    "curve",
    {CURVE_TABLE: ("grid", "coordinates"), **FINAL_ADALN},
    BLOCK_ADALN,
    sizes={"grid": (CURVE_TABLE, 0), "coordinates": (CURVE_TABLE, 1)},
)
TABLES = Form(
    "baked",
    {TIMES: ("times",), VECTORS: ("times", "vector"), FINAL_TABLE: ("times", "final_adaln")},
    {BLOCK_TABLE: ("times", "adaln")},
    optional=(VECTORS,),
    spare=(
        r"h3\.fasth3\.(version|steps|vsa\..*)",
        r"time_embedder\..*",
        r"adaln_t_table",
        r"(.*\.)?(adaln_proj|norm_out)\.linear\.(weight|bias)",
    ),
    sizes={"times": (TIMES, 0), "vector": (VECTORS, 1)},
)
NOTHING = Form("absent", {}, {}, spare=(r"time_embedder\..*",))
"""Tables must come from elsewhere."""
