"""Which sparse attention whole-clip sampling has at hand."""

from __future__ import annotations

from .clip_attention import ClipAttention, Sparsity
from .finite import RenderError


def sparse_attention(sparsity: Sparsity) -> ClipAttention:
    """The attention that keeps `sparsity.keep` percent of the video tiles. Raises `RenderError` where there is none."""
    raise RenderError(
        f"attention over {sparsity.keep:g} % of the video tiles was asked for, and this version has no kernels for it; "
        "set attention to 'dense'"
    )
