"""How the C library treats memory that tensors give back, set by the command line before torch takes any."""

from __future__ import annotations

import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt's parameters in glibc's malloc.h
_LARGEST = 2**31 - 1  # bytes; mallopt takes an int
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Let glibc keep the memory of freed tensors for the next ones; returns whether it was told so.

    By default everything above 32 MiB, which the activations of a batch are, is given back to the system at once and
    asked for again page by page. Nothing is done where the C library is another one, or where the environment already
    says what malloc should do. A program that uses the library decides for itself: nothing is set on import.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False  # musl has a mallopt too, which does nothing
    return bool(library.mallopt(_MMAP_THRESHOLD, _LARGEST) and library.mallopt(_TRIM_THRESHOLD, _LARGEST))
