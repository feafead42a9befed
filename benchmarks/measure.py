"""What the benchmarks share: runs in turns, quartiles, one JSON line at the end."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
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
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def report(what: str, figures: Mapping[str, Any]) -> None:
    """A line for people, and the last line for programs."""
    print(what)
    print(json.dumps(figures))
