"""An experiment's results as files: JSON, CSV, Markdown, and one self-contained page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densecap_search import __version__
from densecap_search.evaluation.evaluate import DIRECTIONS
from densecap_search.experiments.grid import RunOutcome
from densecap_search.experiments.plan import BEFORE, Experiment
from densecap_search.experiments.results import Mean, Row, against_setting, learning_curves
from densecap_search.files import csv_text, write_json, write_text
from densecap_search.pages.html import plot, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = ("R@1", "R@10")
CURVES_OVER = {"train.gamma": "γ", "data.fraction": "share of the training pictures", "train.batch_size": "batch size"}
MEANINGS = (
    "R@K: share of queries, percent, whose right answer is among the first K; mean ± standard deviation over seeds.",
    "Δ: R@1 less that of the baseline in the same cell; queries are averaged over seeds, and the 95 % interval and "
    "the p-value of a randomisation test are over pictures.",
    "val: R@1 on validation, mean of both directions, of the epoch that was kept. ● marks the arm that validation "
    "would have chosen; the test figure of any other was picked after the fact.",
    "epoch: the one that was kept, mean over seeds. s: logit_scale after the last epoch.",
    "solved: share of the measured training batches on which InfoNCE is below 0.001.",
)


def write_reports(experiment: Experiment, rows: Sequence[Row], outcomes: Sequence[RunOutcome], folder: Path) -> None:
    """results.json, results.csv (a line a run), results.md and results.html in the experiment's folder."""
    write_json(folder / "results.json", {"title": experiment.title, "baseline": experiment.baseline,
                                         "rows": [row.as_json() for row in rows]})
    write_text(folder / "results.csv", _csv(outcomes))
    write_text(folder / "results.md", markdown(experiment, rows))
    write_text(folder / "results.html", _page(experiment, rows, outcomes))


def header(rows: Sequence[Row]) -> list[str]:
    """The columns of :func:`cells`; those that no row can fill are left out."""
    return [name for name, present in _columns(rows).items() if present]


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """One row as text, in the columns of :func:`header`."""
    shown = {"arm": row.arm + (" ●" if row.chosen else ""), "seeds": ""}
    for direction, arrow in DIRECTIONS.items():
        figures, difference = row.figures[direction], row.difference.get(direction)
        shown["seeds"] = str(figures["R@1"].count)
        shown |= {f"{arrow} {metric}": _mean(figures[metric]) for metric in SHOWN}
        shown[f"Δ {arrow} R@1"] = "" if difference is None else (
            f"{difference.value:+.1f} ({difference.low:+.1f} to {difference.high:+.1f}), p {difference.p_value:.2g}")
    shown |= {
        "expected R@1": "" if row.expected is None else f"{row.expected[0]:g} / {row.expected[1]:g}",
        "val": "" if row.val is None else _mean(row.val),
        "epoch": "" if row.kept_epoch is None else f"{row.kept_epoch.value:.0f}",
        "s": "" if row.logit_scale is None else f"{row.logit_scale.value:.0f}",
        "solved, %": "" if row.solved is None else f"{row.solved.value:.0f}",
        "trained on": str(row.trained_on), "failed": str(row.failed),
    }
    return [shown[name] for name in header(rows)]


def _columns(rows: Sequence[Row]) -> dict[str, bool]:
    compared = any(row.difference for row in rows)
    figures = {name: present for arrow in DIRECTIONS.values() for name, present in (
        (f"{arrow} R@1", True), (f"Δ {arrow} R@1", compared), (f"{arrow} R@10", True))}
    return {
        "arm": True, "seeds": True, **figures,
        "expected R@1": any(row.expected for row in rows), "val": any(row.val for row in rows),
        "epoch": any(row.kept_epoch for row in rows), "s": any(row.logit_scale for row in rows),
        "solved, %": any(row.solved for row in rows), "trained on": any(row.trained_on for row in rows),
        "failed": any(row.failed for row in rows),
    }


def _mean(mean: Mean, digits: int = 1) -> str:
    spread = "" if math.isnan(mean.spread) else f" ± {mean.spread:.{digits}f}"
    return f"{mean.value:.{digits}f}{spread}"


def tables(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Title → rows: one table for each test set and cell, with the model before training at its head."""
    titled: dict[str, list[Row]] = {}
    for row in rows:
        if row.arm != BEFORE:
            before = [other for other in rows if other.arm == BEFORE and other.test == row.test]
            titled.setdefault(_title(row), before).append(row)
    return titled


def _title(row: Row) -> str:
    what = f"{row.test}: {row.queries} captions, {row.gallery} pictures"
    return f"{what}; {row.cell}" if row.cell else what


def warning_of(rows: Sequence[Row]) -> str:
    """That some of the test pictures were trained on; "" where none were."""
    most = max(row.trained_on for row in rows)
    if not most:
        return ""
    return f"{most} of these {rows[0].gallery} pictures were trained on: this is no test of unseen ones."


def markdown(experiment: Experiment, rows: Sequence[Row]) -> str:
    """The tables, for a document."""
    parts = [f"# {experiment.title}", *([experiment.notes] if experiment.notes else [])]
    for title, own in tables(rows).items():
        lines = [header(own), ["---"] * len(header(own)), *(cells(row, own) for row in own)]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        parts += [f"## {title}", *([f"**{warning_of(own)}**"] if warning_of(own) else []), table]
    parts += [f"Δ is against {experiment.baseline}.", "\n".join(f"* {meaning}" for meaning in MEANINGS)]
    return "\n\n".join(parts) + "\n"


def _csv(outcomes: Sequence[RunOutcome]) -> str:
    """A line for each run, test set and direction."""
    metrics = next((tuple(tested.figures) for outcome in outcomes for tests in outcome.tests.values()
                    for tested in tests.values()), ())
    header = ["arm", "cell", "seed", "run", "test", "direction", "queries", "gallery", *metrics, "kept_epoch", "solved",
              "failed"]
    lines: list[list[Any]] = []
    for outcome in outcomes:
        start = [outcome.arm, outcome.cell, outcome.seed, outcome.folder]
        for test, directions in outcome.tests.items():
            for direction, tested in directions.items():
                lines.append([*start, test, direction, len(tested.ranks), tested.gallery,
                              *(tested.figures[metric] for metric in metrics), outcome.kept_epoch, outcome.saturated,
                              ""])
        if outcome.failed:
            lines.append([*start, *[""] * (4 + len(metrics)), "", "", outcome.failed])
    return csv_text(header, lines)


def _page(experiment: Experiment, rows: Sequence[Row], outcomes: Sequence[RunOutcome]) -> str:
    made = [{"title": title, "warning": warning_of(own), "header": header(own),
             "rows": [cells(row, own) for row in own]}
            for title, own in tables(rows).items()]
    plots = []
    for key, label in CURVES_OVER.items():
        lines = against_setting(rows, outcomes, key)
        if lines:
            plots.append({"title": f"R@1 on test by {label}",
                          "meaning": "Mean of both directions; bars are the standard deviation over seeds.",
                          "image": plot(partial(_draw_lines, lines=lines, label=label),
                                        alt=f"R@1 by {label}", width=8, height=4)})
    for cell, curves in learning_curves(outcomes).items():
        title = "R@1 on validation by epoch" + (f" ({cell})" if cell else "")
        plots.append({"title": title, "meaning": "Mean of both directions and of seeds; epoch 0 is before training.",
                      "image": plot(partial(_draw_curves, curves=curves), alt=title)})
    return render("experiment.html", {
        "title": experiment.title, "version": __version__, "notes": experiment.notes, "baseline": experiment.baseline,
        "meanings": MEANINGS, "tables": made, "plots": plots, "runs": len([o for o in outcomes if o.epochs]),
        "seeds": len(experiment.seeds)})


def _draw_lines(axes: Axes, lines: Mapping[str, Sequence[tuple[float, float, float]]], label: str) -> None:
    for name, points in lines.items():
        values, means, spreads = zip(*points, strict=True)
        axes.errorbar(values, means, yerr=[0 if math.isnan(spread) else spread for spread in spreads], marker="o",
                      markersize=4, capsize=3, label=name)
    axes.set(xlabel=label, ylabel="R@1, percent")
    axes.legend(fontsize=7)


def _draw_curves(axes: Axes, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name)
    axes.set(xlabel="epoch", ylabel="R@1, percent")
    axes.legend(fontsize=7)

