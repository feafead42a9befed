"""Two reports on the same queries: paired differences, whether chance explains them, and who wins where. numpy only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from densecap_search.errors import CollectionError
from densecap_search.evaluation.intervals import (
    bootstrap_means,
    bootstrap_medians,
    flip_p_value,
    interval,
    swap_p_value,
)
from densecap_search.evaluation.metrics import LESS_IS_BETTER, MEDIANS, METRICS, PERCENT, Floats, Ints, statistic

if TYPE_CHECKING:
    from densecap_search.evaluation.evaluate import Direction, Report

LEAST_CLUSTERS = 6  # the fewest differing clusters that can show anything at 5 %: 2 · 2⁻⁵ > 0.05 ≥ 2 · 2⁻⁶
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """A figure of the first minus that of the second, on the same queries.

    low, high: 95 % interval by paired bootstrap; p_value: by randomisation, two-sided. wins, losses: queries on which
    the first is better, or worse; the others are equal.
    """

    value: float
    low: float
    high: float
    p_value: float
    wins: int
    losses: int
    queries: int = 0

    @property
    def equal(self) -> int:
        """Queries on which both do the same."""
        return self.queries - self.wins - self.losses

    @property
    def told_apart(self) -> bool:
        """Whether chance is an unlikely explanation: p below 5 %, and the interval on one side of zero."""
        return self.p_value < LEVEL and (self.low > 0 or self.high < 0)


def paired(first: Floats, second: Floats, clusters: Ints, *, seed: int = 0) -> Difference:
    """The difference of two means over the same Q queries; more counts as better. clusters [Q]: see ``intervals``."""
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    differences = first - second
    low, high = interval(bootstrap_means(differences[:, None], clusters, seed=seed)[:, 0])
    return Difference(
        float(differences.mean()), low, high, flip_p_value(differences, clusters, seed=seed),
        int((first > second).sum()), int((first < second).sum()), len(first),
    )


def compare(first: Direction, second: Direction, *, seed: int = 0) -> dict[str, Difference]:
    """Every figure of METRICS: first − second. Of ranks less is better, so there a win is a lower rank."""
    if not np.array_equal(first.clusters, second.clusters):
        raise CollectionError(f"two reports can only be compared on the same queries; these have {first.queries} and "
                              f"{second.queries} queries of other pictures: evaluate both models on one collection")
    return {name: _difference(name, first, second, seed) for name in METRICS}


@dataclass(frozen=True)
class Comparison:
    """Two reports on the same queries, by direction and metric."""

    first: str
    second: str
    differences: dict[str, dict[str, Difference]]

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        return {"model": self.second, **{
            direction: {name: {**asdict(difference), "equal": difference.equal, "smallest_visible": smallest_visible(
                difference, percent=name in PERCENT)} for name, difference in differences.items()}
            for direction, differences in self.differences.items()
        }}


def compare_reports(first: Report, second: Report) -> Comparison:
    """Both directions of two reports."""
    others = second.directions()
    return Comparison(first.model, second.model, {
        direction: compare(own, others[direction]) for direction, own in first.directions().items()})


def verdict(name: str, difference: Difference) -> str:
    """One sentence: whether this set can tell the two apart by a figure, and what it could have shown."""
    if not difference.wins + difference.losses:
        return f"{name} is the same on each of the {difference.queries} queries"
    unit = " points" if name in PERCENT else ""
    form = ".1f" if name in PERCENT else ".3g"
    amount = (f"{name} differs by {difference.value:+{form}}{unit} ({difference.low:+{form}} to "
              f"{difference.high:+{form}}, p = {difference.p_value:.2g})")
    if difference.told_apart:
        return f"{amount}: chance is an unlikely explanation"
    smallest = smallest_visible(difference, percent=name in PERCENT)
    return (f"{amount}: these {difference.queries} queries cannot tell the two apart; a difference below about "
            f"{smallest:{form}}{unit} is too small for them to show")


def smallest_visible(difference: Difference, *, percent: bool) -> float:
    """The smallest difference that this test set could show: what its paired interval reaches to either side.

    Of a share in percent at least LEAST_CLUSTERS queries, all for the same model: with fewer no result is unlikely
    enough (at 5 %) to be told from a coin.
    """
    half = (difference.high - difference.low) / 2
    return max(half, 100 * LEAST_CLUSTERS / max(1, difference.queries)) if percent else half


def _difference(name: str, first: Direction, second: Direction, seed: int) -> Difference:
    values, others = METRICS[name](first.ranks), METRICS[name](second.ranks)
    difference = _paired_medians(values, others, first.clusters, seed) if name in MEDIANS else paired(
        values, others, first.clusters, seed=seed)
    if name not in LESS_IS_BETTER:
        return difference
    return Difference(difference.value, difference.low, difference.high,
                      difference.p_value, difference.losses, difference.wins, difference.queries)


def _paired_medians(first: Floats, second: Floats, clusters: Ints, seed: int) -> Difference:
    drawn = bootstrap_medians(first, clusters, seed=seed) - bootstrap_medians(second, clusters, seed=seed)
    return Difference(
        statistic("median_rank", first) - statistic("median_rank", second), *interval(drawn),
        swap_p_value(first, second, clusters, seed=seed),
        int((first > second).sum()), int((first < second).sum()), len(first),
    )
