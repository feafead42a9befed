"""Where tensors live and how precisely they are computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from densecap_search.errors import ConfigError

HALVED = "bf16 weights"  # a tower whose weights and activations are all bfloat16, unlike autocast
MOST_STREAMS = 8  # each has the activations of a batch in memory
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str = "auto") -> torch.device:
    """``auto`` takes cuda, then mps, then cpu; a device that is not there is an error by name."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if not available.get(name.split(":")[0], False):
        present = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"there is no {name} on this machine; devices here: {present}")
    return torch.device(name)


def choose_precision(requested: str, device: torch.device) -> str:
    """fp32, bf16 or fp16 for a device.

    ``auto`` is fp32 on cpu and mps, and the fastest that cuda has.
    What a device cannot do well is refused here, before any data are read.
    """
    if requested == "auto":
        if device.type != "cuda":
            return "fp32"
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if requested != "fp32" and device.type == "mps":
        raise ConfigError(f"--precision {requested} is not supported on mps; use fp32")
    if requested == "fp16" and device.type == "cpu":
        raise ConfigError("--precision fp16 is not supported on cpu; use fp32 or bf16")
    return requested


def describe(device: torch.device) -> str:
    """The device in words for a person."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads" if device.type == "cpu" else device.type


@contextmanager
def streams() -> Iterator[tuple[int, Callable[[], None]]]:
    """How many threads may encode on the CPU at once, and what each has to do first: to take its share of the cores."""
    cores = torch.get_num_threads()
    count = min(cores, MOST_STREAMS)
    try:
        yield count, partial(torch.set_num_threads, cores // count)
    finally:
        torch.set_num_threads(cores)  # torch gives threads that begin later the number that was set last


def free_memory() -> int:
    """Bytes of main memory that nothing uses; 1 GiB where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 30
