"""Device and memory as the host manages them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def device() -> torch.device:
    """The device the host computes on."""
    from comfy import model_management

    return model_management.get_torch_device()


def prefers_bfloat16() -> bool:
    """Whether the host's device computes bf16 well; otherwise weights are best kept in float32."""
    from comfy import model_management

    return bool(model_management.should_use_bf16(device()))


def attention() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The attention that the host's user chose, over [batch, heads, rows, d]."""
    from comfy.ldm.modules.attention import optimized_attention

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = q.shape[1]
        return optimized_attention(q, k, v, heads, skip_reshape=True).unflatten(-1, (heads, -1)).transpose(1, 2)

    return attend


@contextmanager
def on_device(patchers: list[Any], working_bytes: int) -> Iterator[torch.device]:
    """Load what the patchers hold, leaving `working_bytes` free; on leaving, cached device memory is given back."""
    from comfy import model_management

    # Adapters are merged also into layers that stay in host memory.
    model_management.load_models_gpu(patchers, memory_required=working_bytes, force_patch_weights=True)
    try:
        yield device()
    finally:
        model_management.soft_empty_cache()


def make_room(nbytes: int) -> None:
    """Have the host move its models off the device until `nbytes` are free."""
    from comfy import model_management

    model_management.free_memory(nbytes, device())


def memory_budget() -> int | None:
    """Bytes of the device's memory that the host lets models use; None on the CPU, whose memory it does not divide."""
    from comfy import model_management

    where = device()
    if where.type == "cpu":
        return None
    total = int(model_management.get_total_memory(where))
    reserved = getattr(model_management, "extra_reserved_memory", lambda: 0)()
    return max(0, total - int(reserved))


def memory_use() -> dict[str, Any]:
    """Bytes used and total of the memory the host computes in, and the kind of device it belongs to."""
    from comfy import model_management

    total, free = model_management.get_total_memory(device()), model_management.get_free_memory(device())
    return {"used": int(total - free), "total": int(total), "device": device().type}
