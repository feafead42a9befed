"""The outcomes of an experiment → one row for each arm in each cell: means, spreads over seeds, paired differences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from densecap_search.config import RunConfig
from densecap_search.evaluation.compare import Difference, paired
from densecap_search.evaluation.evaluate import DIRECTIONS
from densecap_search.evaluation.metrics import METRICS, Ranks
from densecap_search.evaluation.pairs import mean_recall_at_1
from densecap_search.experiments.grid import RunOutcome
from densecap_search.experiments.plan import BEFORE

COMPARED = "R@1"


@dataclass(frozen=True)
class Mean:
    """Over seeds: mean, standard deviation (nan for a single seed) and how many."""

    value: float
    spread: float
    count: int


@dataclass(frozen=True)
class Row:
    """One arm in one cell on one test set. val: mean R@1 of both directions of the kept epoch, percent.

    difference: direction → R@1 of this arm less that of the baseline in the same cell, each query averaged over the
    seeds that both have; interval and p-value are over pictures, the spread over seeds stands beside the means.
    """

    test: str
    cell: str
    values: Mapping[str, str]
    arm: str
    queries: int
    gallery: int
    figures: Mapping[str, Mapping[str, Mean]]  # direction → metric
    difference: Mapping[str, Difference]
    val: Mean | None
    kept_epoch: Mean | None
    solved: Mean | None  # percent of the measured batches
    logit_scale: Mean | None
    trained_on: int
    failed: int
    chosen: bool = False  # the best of its cell on validation
    expected: tuple[float, float] | None = None

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts read."""
        return asdict(self)


def summarise(outcomes: Sequence[RunOutcome], baseline: str,
              expect: Mapping[str, Mapping[str, tuple[float, float]]]) -> list[Row]:
    """Rows in the order of the experiment: test set by test set, cell by cell; the model before training first."""
    rows: list[Row] = []
    for test in dict.fromkeys(name for outcome in outcomes for name in outcome.tests):
        cells: dict[str, dict[str, list[RunOutcome]]] = {}
        for outcome in outcomes:
            if test in outcome.tests or outcome.failed:
                cells.setdefault(outcome.cell, {}).setdefault(outcome.arm, []).append(outcome)
        for cell, arms in cells.items():
            made = [_row(test, cell, arm, own, arms.get(baseline, []) if arm != baseline else [],
                         expect.get(arm, {}).get(test))
                    for arm, own in arms.items() if any(test in outcome.tests for outcome in own)]
            rows.extend(_mark_chosen(made))
    return rows


def _row(test: str, cell: str, arm: str, outcomes: Sequence[RunOutcome], baseline: Sequence[RunOutcome],
         expected: tuple[float, float] | None) -> Row:
    good = [outcome for outcome in outcomes if test in outcome.tests]
    first = good[0].tests[test]["text_to_image"]
    figures = {
        direction: {metric: _mean([outcome.tests[test][direction].figures[metric] for outcome in good])
                    for metric in first.figures} for direction in DIRECTIONS
    }
    last = [outcome.epochs[-1] for outcome in good if outcome.epochs]
    return Row(
        test, cell, good[0].values, arm, len(first.ranks), first.gallery, figures,
        {direction: difference for direction in DIRECTIONS
         if (difference := _difference(test, direction, good, baseline)) is not None and arm != BEFORE},
        val=_some([_val(outcome) for outcome in good]),
        kept_epoch=_some([outcome.kept_epoch for outcome in good]),
        solved=_some([None if outcome.saturated is None else 100 * outcome.saturated for outcome in good]),
        logit_scale=_some([row["logit_scale"] for row in last]),
        trained_on=max((outcome.trained_on.get(test, 0) for outcome in good), default=0),
        failed=len(outcomes) - len(good), expected=expected,
    )


def _difference(test: str, direction: str, outcomes: Sequence[RunOutcome], baseline: Sequence[RunOutcome]
                ) -> Difference | None:
    """Paired by query; seeds that both have are averaged first."""
    own, other = ({outcome.seed: outcome.tests[test][direction] for outcome in group if test in outcome.tests}
                  for group in (outcomes, baseline))
    seeds = sorted(set(own) & set(other))
    if not seeds:
        return None
    score = METRICS[COMPARED]
    first, second = (np.mean([score(Ranks.of(side[seed].ranks)) for seed in seeds], axis=0) for side in (own, other))
    return paired(first, second, np.array(own[seeds[0]].clusters))


def _val(outcome: RunOutcome) -> float | None:
    row = next((row for row in outcome.epochs if row["epoch"] == outcome.kept_epoch), None)
    if row is None or not row["val"]:
        return None
    return mean_recall_at_1(row["val"])


def _mark_chosen(rows: list[Row]) -> Iterator[Row]:
    """The arm that validation would have chosen: the only one whose test figure was not picked among several."""
    best = max((row.val.value for row in rows if row.val), default=None)
    taken = False
    for row in rows:
        chosen = len(rows) > 1 and not taken and row.val is not None and row.val.value == best
        taken |= chosen
        yield replace(row, chosen=chosen)


def _mean(values: Sequence[float]) -> Mean:
    return Mean(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan, len(values))


def _some(values: Sequence[float | None]) -> Mean | None:
    known = [value for value in values if value is not None]
    return _mean(known) if known else None


def learning_curves(outcomes: Sequence[RunOutcome]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """cell → arm → (epoch, mean over seeds of val R@1, both directions)."""
    curves: dict[str, dict[str, dict[int, list[float]]]] = {}
    for outcome in outcomes:
        for row in outcome.epochs:
            if row["val"]:
                curve = curves.setdefault(outcome.cell, {}).setdefault(outcome.arm, {})
                curve.setdefault(row["epoch"], []).append(mean_recall_at_1(row["val"]))
    return {cell: {arm: [(epoch, float(np.mean(values))) for epoch, values in sorted(curve.items())]
                   for arm, curve in arms.items()} for cell, arms in curves.items()}


def against_setting(rows: Sequence[Row], outcomes: Sequence[RunOutcome], key: str
                    ) -> dict[str, list[tuple[float, float, float]]]:
    """R@1, mean of both directions, by a number among the settings: line → (setting, mean, spread over seeds).

    key: a dotted setting such as train.gamma or data.fraction. On a line all other settings are the same, and what
    they are called is its name; InfoNCE is hn_clip at γ = 0.
    """
    configs = {(outcome.cell, outcome.arm): outcome.config for outcome in outcomes if outcome.arm != BEFORE}
    lines: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        if (row.cell, row.arm) in configs:
            value, others = _take_out(configs[row.cell, row.arm], key)
            if value is not None:
                lines.setdefault(f"{row.test} {others}", []).append((float(value), row))
    settings = {}
    for points in lines.values():
        if len({value for value, _ in points}) > 1:
            name = _common_name([row for _, row in points])
            settings[name] = sorted((value, *_mean_recall(row)) for value, row in points)
    return settings


def _take_out(config: RunConfig, key: str) -> tuple[Any, str]:
    """The setting, and all others but the seed."""
    tree = asdict(config)
    if key == "train.gamma" and tree["train"]["objective"] == "info_nce":
        tree["train"] |= {"objective": "hn_clip", "gamma": 0.0}
    section, name = key.split(".")
    value = tree[section].pop(name)
    tree["train"].pop("seed")
    return value, json.dumps(tree, sort_keys=True)


def _common_name(rows: Sequence[Row]) -> str:
    first = rows[0]
    words = [value for axis, value in first.values.items() if all(row.values[axis] == value for row in rows)]
    return ", ".join([first.test, *words, *([first.arm] if len({row.arm for row in rows}) == 1 else [])])


def _mean_recall(row: Row) -> tuple[float, float]:
    both = [row.figures[direction][COMPARED] for direction in DIRECTIONS]
    return float(np.mean([mean.value for mean in both])), math.hypot(*(mean.spread for mean in both)) / 2
