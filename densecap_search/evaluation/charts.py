"""The plots of an evaluation's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from densecap_search.evaluation.compare import Comparison
from densecap_search.evaluation.evaluate import DIRECTIONS, Direction
from densecap_search.evaluation.metrics import PERCENT
from densecap_search.evaluation.outcome import Mixtures
from densecap_search.evaluation.slices import Slice
from densecap_search.pages.html import COLOURS, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEEPEST = 50  # the last K of the curve
RANK_BINS = ((1, 1), (2, 5), (6, 10), (11, 25), (26, 50), (51, np.inf))
HALF = 5.2  # inches: two plots stand beside each other


def recall_curves(directions: Mapping[str, Direction], label: str) -> Markup:
    """R@K of each model over K."""
    return plot(partial(_draw_recall, directions=directions, label=label), alt=f"R@K by K, {label}", width=HALF)


def rank_histogram(directions: Mapping[str, Direction], label: str) -> Markup:
    """Share of queries by rank, of each model."""
    return plot(partial(_draw_ranks, directions=directions, label=label), alt=f"ranks, {label}", width=HALF)


def difference_bars(comparison: Comparison) -> Markup:
    """Paired differences of R@K with their intervals, in both directions."""
    height = 0.6 + 0.24 * len(DIRECTIONS) * len(PERCENT)
    return plot(partial(_draw_differences, comparison=comparison), alt="differences of R@K", width=7, height=height)


def slice_bars(slices: Sequence[Mapping[str, Slice]], direction: str, label: str) -> Markup:
    """R@1 of each model in each part, with intervals. slices: of each part, model → slice."""
    height = 0.9 + (0.14 + 0.17 * len(slices[0])) * len(slices)
    return plot(partial(_draw_slices, slices=slices, direction=direction, label=label), alt=f"R@1 by slice, {label}",
                width=7, height=height)


def mixture_curves(mixtures: Mixtures, target: str, retained: str) -> Markup:
    """R@1 on both collections over α."""
    return plot(partial(_draw_mixtures, mixtures=mixtures, target=target, retained=retained), alt="R@1 over α")


def _draw_recall(axes: Axes, directions: Mapping[str, Direction], label: str) -> None:
    deepest = max(2, min(DEEPEST, *(direction.gallery for direction in directions.values())))
    ks = np.arange(1, deepest + 1)
    for name, direction in directions.items():
        axes.plot(ks, [100 * float(np.mean(direction.ranks.rank <= k)) for k in ks], label=name, drawstyle="steps-post")
    axes.set(xlabel="K", ylabel="R@K, percent", title=label, xscale="log", xlim=(1, deepest), ylim=(0, 101))
    ticks = [k for k in (1, 2, 5, 10, 25, 50) if k <= deepest]
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)


def _draw_ranks(axes: Axes, directions: Mapping[str, Direction], label: str) -> None:
    width = 0.8 / len(directions)
    for number, (name, direction) in enumerate(directions.items()):
        rank = direction.ranks.rank
        shares = [100 * float(np.mean((rank > low - 1) & (rank <= high))) for low, high in RANK_BINS]
        places = np.arange(len(shares)) + (number - (len(directions) - 1) / 2) * width
        axes.bar(places, shares, width * 0.95, label=name)
    words = ["1", *(f"{low}–{high:g}" for low, high in RANK_BINS[1:-1]), "later"]
    axes.set_xticks(range(len(RANK_BINS)), words)
    axes.set(xlabel="rank of the right answer", ylabel="queries, percent", title=label)
    axes.legend(frameon=False)


def _draw_differences(axes: Axes, comparison: Comparison) -> None:
    rows: list[str] = []
    for number, (direction, label) in enumerate(DIRECTIONS.items()):
        names = [name for name in comparison.differences[direction] if name in PERCENT]
        differences = [comparison.differences[direction][name] for name in names]
        places = np.arange(len(rows), len(rows) + len(names))
        values = np.array([each.value for each in differences])
        sides = np.abs(np.array([[each.low, each.high] for each in differences]).T - values)
        axes.errorbar(values, places, xerr=sides, fmt="o", capsize=3, color=COLOURS[number], label=label)
        rows += [f"{name} {label}" for name in names]
    axes.axvline(0, color="#999999", linewidth=1)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set(xlabel="difference in points, with its 95 % interval: right of the line the first model is better")


def _draw_slices(axes: Axes, slices: Sequence[Mapping[str, Slice]], direction: str, label: str) -> None:
    names = list(slices[0])
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        figures: list[tuple[float, Any]] = [
            (place + (number - (len(names) - 1) / 2) * width, part[name].figures[direction]["R@1"])
            for place, part in enumerate(slices) if part[name].queries[direction]]
        values = np.array([figure.value for _, figure in figures])
        bounds = np.abs(np.array([[figure.low, figure.high] for _, figure in figures]).T - values)
        axes.barh([place for place, _ in figures], values, width * 0.9, xerr=bounds, label=name,
                  error_kw={"elinewidth": 0.8, "ecolor": "#333333"})
    rows = [next(iter(part.values())) for part in slices]
    axes.set_yticks(range(len(rows)), [f"{row.by}: {row.label}" for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="R@1, percent", title=label, xlim=(0, 100))
    axes.legend(frameon=False, loc="lower right")


def _draw_mixtures(axes: Axes, mixtures: Mixtures, target: str, retained: str) -> None:
    axes.plot(mixtures.alphas, mixtures.target, marker="o", label=target)
    axes.plot(mixtures.alphas, mixtures.retained, marker="s", label=f"{retained} (retained)")
    axes.set(xlabel="α: 0 is the model before, 1 the fine-tuned one", ylabel="R@1, percent, mean of both directions")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
