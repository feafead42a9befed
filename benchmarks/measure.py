"""What the benchmarks share: runs in turns, quartiles, one JSON line at the end."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def in_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run, one after the other in every round, so that what disturbs one disturbs all."""
    for run in runs.values():
        run()  # the first time pays for allocation and caches
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return low, middle, high


def times_as_fast(seconds: Mapping[str, list[float]], ours: str = "ours") -> dict[str, list[float]]:
    """Quartiles of how many times as fast ours was as each other, from the rounds' own ratios."""
    return {name: [round(value, 3) for value in quartiles([b / a for a, b in zip(seconds[ours], values, strict=True)])]
            for name, values in seconds.items() if name != ours}


def a_second(seconds: Mapping[str, list[float]], items: int) -> dict[str, list[float]]:
    """Quartiles of items a second of each run."""
    return {name: [round(value, 2) for value in quartiles([items / value for value in values])]
            for name, values in seconds.items()}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.processor())
    return {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability()}


def report(what: str, figures: Mapping[str, Any]) -> None:
    """A line for people, and the last line for programs."""
    print(what)
    print(json.dumps(figures))
