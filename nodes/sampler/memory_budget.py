"""How much device memory a render may take: what is free, or the limit a person sets."""

from __future__ import annotations

import os

import torch

ENVIRONMENT = "SRH3_MEMORY_GB"
BANK_ENVIRONMENT = "SRH3_KV_DTYPE"
FORM_ENVIRONMENT = "SRH3_KV"
RESERVE = 750_000_000  # bytes kept back on a GPU: library workspaces, and gaps between allocations


def asked_gigabytes(option: float | None) -> float | None:
    """The limit in decimal gigabytes from the option, else from the environment; None when neither is set.

    Raises ValueError for a limit that is not a positive number.
    """
    text = os.environ.get(ENVIRONMENT) if option is None else str(option)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(
            f"the memory limit is {text!r}; a number of gigabytes above 0 is needed. Write for example 24."
        )
    return value


def device_budget(device: torch.device, gigabytes: float | None) -> int | None:
    """Bytes a render may use on `device`; None for no limit. A limit on a CUDA device is enforced for this process.

    Without a limit a CUDA device gives what is free on it now, and the CPU has none: its weights stay memory-mapped.
    """
    if device.type != "cuda":
        return None if gigabytes is None else int(gigabytes * 1e9)
    free, total = torch.cuda.mem_get_info(device)
    if gigabytes is None:
        return max(0, free - RESERVE)
    limit = min(int(gigabytes * 1e9), total)
    torch.cuda.set_per_process_memory_fraction(limit / total, device)
    return max(0, min(limit, free) - RESERVE)


def asked_bank() -> str:
    """Format of the prefix bank from the environment: "auto", "plain" (bf16) or "fp8". Raises ValueError for another word."""
    return _asked(BANK_ENVIRONMENT, {"auto": "auto", "bf16": "plain", "fp8": "fp8"})


def asked_form(device: torch.device) -> str:
    """Form of an unquantised bank from the environment: "auto", "sandwich" or "split". Raises ValueError for another word.

    Left open it is "split" on the CPU, where a sandwich saves no time and its order of keys changes the last bits.
    """
    form = _asked(FORM_ENVIRONMENT, {"auto": "auto", "sandwich": "sandwich", "split": "split"})
    return "split" if form == "auto" and device.type == "cpu" else form


def _asked(environment: str, words: dict[str, str]) -> str:
    text = os.environ.get(environment, "").strip().lower() or "auto"
    if text not in words:
        raise ValueError(
            f"{environment} is {text!r}; {', '.join(words)} are known. Remove the variable to let it choose."
        )
    return words[text]
