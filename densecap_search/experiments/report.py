"""An experiment's results as files: JSON, CSV, Markdown, and one self-contained page."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from densecap_search import __version__
from densecap_search.evaluation.html import plot, render
from densecap_search.experiments.grid import Outcome
from densecap_search.experiments.plan import Experiment
from densecap_search.experiments.results import DIRECTIONS, SHOWN, Mean, Row, against_setting, learning_curves
from densecap_search.files import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES_OVER = {"train.gamma": "γ", "data.fraction": "share of the training pictures", "train.batch_size": "batch size"}
MEANINGS = (
    "R@K: share of queries, percent, whose right answer is among the first K; mean ± standard deviation over seeds.",
    "Δ: R@1 less that of the baseline in the same cell; queries are averaged over seeds, and the 95 % interval and "
    "the p-value of a randomisation test are over pictures.",
    "val: R@1 on validation, mean of both directions, of the epoch that was kept. ● marks the arm that validation "
    "would have chosen; the test figure of any other was picked after the fact.",
    "solved: share of the measured training batches on which InfoNCE is below 0.001.",
)


def write_reports(experiment: Experiment, rows: Sequence[Row], outcomes: Sequence[Outcome], folder: Path) -> None:
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
    both = [row.figures[direction] for direction in DIRECTIONS]
    differences = [row.difference.get(direction) for direction in DIRECTIONS]
    found = {
        "setting": row.cell, "arm": row.arm + (" ●" if row.chosen else ""), "seeds": str(both[0]["R@1"].count),
        **{f"{arrow} {metric}": _mean(figures[metric], 3 if metric == "MRR" else 1)
           for arrow, figures in zip(DIRECTIONS.values(), both, strict=True) for metric in SHOWN},
        **{f"Δ {arrow}": "" if difference is None else
           f"{difference.value:+.1f} ({difference.low:+.1f} to {difference.high:+.1f}; p {difference.p_value:.2g})"
           for arrow, difference in zip(DIRECTIONS.values(), differences, strict=True)},
        "expected R@1": "" if row.expected is None else f"{row.expected[0]:g} / {row.expected[1]:g}",
        "val": "" if row.val is None else _mean(row.val),
        "epoch": "" if row.kept_epoch is None else _mean(row.kept_epoch, 0),
        "s at the end": "" if row.logit_scale is None else f"{row.logit_scale.value:.0f}",
        "solved, %": "" if row.solved is None else f"{row.solved.value:.0f}",
        "trained on": str(row.trained_on), "failed": str(row.failed),
    }
    return [found[name] for name in header(rows)]


def _columns(rows: Sequence[Row]) -> dict[str, bool]:
    return {
        "setting": any(row.cell for row in rows), "arm": True, "seeds": True,
        **{f"{arrow} {metric}": True for arrow in DIRECTIONS.values() for metric in SHOWN},
        **{f"Δ {arrow}": any(row.difference for row in rows) for arrow in DIRECTIONS.values()},
        "expected R@1": any(row.expected for row in rows), "val": any(row.val for row in rows),
        "epoch": any(row.kept_epoch for row in rows), "s at the end": any(row.logit_scale for row in rows),
        "solved, %": any(row.solved for row in rows), "trained on": any(row.trained_on for row in rows),
        "failed": any(row.failed for row in rows),
    }


def _mean(mean: Mean, digits: int = 1) -> str:
    spread = "" if math.isnan(mean.spread) else f" ± {mean.spread:.{digits}f}"
    return f"{mean.value:.{digits}f}{spread}"


def by_test(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Test set → its rows."""
    return {name: [row for row in rows if row.test == name] for name in dict.fromkeys(row.test for row in rows)}


def title_of(test: str, rows: Sequence[Row]) -> str:
    """What a table of results is about."""
    first = rows[0]
    return f"{test}: {first.queries} captions, {first.gallery} pictures"


def warning_of(rows: Sequence[Row]) -> str:
    """That some of the test pictures were trained on; "" where none were."""
    most = max(row.trained_on for row in rows)
    if not most:
        return ""
    return f"{most} of these {rows[0].gallery} pictures were trained on: this is no test of unseen ones."


def markdown(experiment: Experiment, rows: Sequence[Row]) -> str:
    """The tables, for a document."""
    parts = [f"# {experiment.title}", *([experiment.notes] if experiment.notes else [])]
    for test, own in by_test(rows).items():
        lines = [header(own), ["---"] * len(header(own)), *(cells(row, own) for row in own)]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        parts += [f"## {title_of(test, own)}", *([f"**{warning_of(own)}**"] if warning_of(own) else []), table]
    parts += [f"Δ is against {experiment.baseline}.", "\n".join(f"* {meaning}" for meaning in MEANINGS)]
    return "\n\n".join(parts) + "\n"


def _csv(outcomes: Sequence[Outcome]) -> str:
    """A line for each run, test set and direction."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    metrics = next((tuple(tested.figures) for outcome in outcomes for tests in outcome.tests.values()
                    for tested in tests.values()), ())
    writer.writerow(["arm", "cell", "seed", "run", "test", "direction", "queries", "gallery", *metrics, "kept_epoch",
                     "solved", "failed"])
    for outcome in outcomes:
        start = [outcome.arm, outcome.cell, outcome.seed, outcome.folder]
        for test, directions in outcome.tests.items():
            for direction, tested in directions.items():
                writer.writerow([*start, test, direction, len(tested.ranks), tested.gallery,
                                 *(tested.figures[metric] for metric in metrics), outcome.kept_epoch,
                                 outcome.saturated, ""])
        if outcome.failed:
            writer.writerow([*start, *[""] * (4 + len(metrics)), "", "", outcome.failed])
    return text.getvalue()


def _page(experiment: Experiment, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> str:
    tables = [{"title": title_of(test, own), "warning": warning_of(own), "header": header(own),
               "words": header(own).index("seeds"), "rows": [cells(row, own) for row in own]}
              for test, own in by_test(rows).items()]
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
        "meanings": MEANINGS, "tables": tables, "plots": plots, "runs": len([o for o in outcomes if o.epochs]),
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

