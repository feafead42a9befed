"""What the command line says: results as tables on stdout, talk and progress on stderr."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from densecap_search.files import csv_text, json_lines, write_text
from densecap_search.talk import SILENT, Advance, Talk, printable

if TYPE_CHECKING:
    from densecap_search.collection.records import Skipped
    from densecap_search.evaluation.compare import Comparison
    from densecap_search.evaluation.evaluate import Report
    from densecap_search.evaluation.modes import ModesReport
    from densecap_search.evaluation.outcome import EvaluationOutcome
    from densecap_search.inspection.inspect import Inspection
    from densecap_search.retrieval.explain import Explanation
    from densecap_search.retrieval.searcher import Hit
    from densecap_search.training.choice import Choice

LOG_SECONDS = 5.0  # between two lines of progress where stderr is no terminal
STARTED = "densecap.started"  # in the context of the command line: time.monotonic() when it was called
NAMED = 5  # files and pairs by name, below a finding
SHOWN_SKIPS = 10
PRINTED = ("R@1", "R@5", "R@10", "MRR")  # of the figures that a report has; the others are in its files


def first_process() -> bool:
    """Whether this is the one of torchrun's processes that speaks."""
    return os.environ.get("RANK", "0") == "0"


def tell_skipped(skipped: Sequence[Skipped]) -> None:
    if skipped:
        click.echo(f"{len(skipped)} skipped:", err=True)
        for skip in skipped[:SHOWN_SKIPS]:
            click.echo(f"  {printable(str(skip))}", err=True)
        if len(skipped) > SHOWN_SKIPS:
            click.echo(f"  … and {len(skipped) - SHOWN_SKIPS} more", err=True)


def print_reports(reports: Sequence[Report], names: Sequence[str]) -> None:
    first = reports[0]
    click.echo(f"{first.collection}, split {', '.join(first.splits)}: {first.image_to_text.queries} pictures, "
               f"{first.text_to_image.queries} captions{first.gallery_words}; {first.rule}.")
    rows = []
    for report, name in zip(reports, names, strict=True):
        for direction, label in ((report.text_to_image, "text→image"), (report.image_to_text, "image→text")):
            figures = [f"{direction.figures[metric].value:.{3 if metric == 'MRR' else 1}f}" for metric in PRINTED]
            r1 = direction.figures["R@1"]
            rows.append([name, label, str(direction.gallery), *figures, f"{direction.median_rank:g}",
                         f"{r1.low:.1f}–{r1.high:.1f}"])
    print_table(["model", "direction", "gallery", *PRINTED, "median rank", "R@1, 95 % interval"], rows)
    for report, name in zip(reports, names, strict=True):
        notes = [str(report.truncation)]
        ties = report.text_to_image.ties + report.image_to_text.ties
        if ties:
            notes.append(f"{ties} queries tie with a wrong answer (counted half)")
        if report.trained_on:
            notes.append(f"{report.trained_on} of these pictures were trained on")
        click.echo(f"{name}: {'; '.join(notes)}.")


def print_modes(report: ModesReport, mode: str = "all") -> None:
    """A row for each way to rank, and what the sum of all gains over each."""
    from densecap_search.evaluation.compare import verdict

    first = next(iter(report.modes.values()))
    click.echo(f"{report.model} on {report.collection}, split {', '.join(report.splits)}: {first.queries} queries "
               f"among {first.gallery} pictures ({report.gallery}), {report.described} of them with a caption.")
    click.echo(f"Protocol {report.protocol}: {report.rule}. Weights of fused, learned from the other queries: "
               + ", ".join(f"{name} {value:.2f}" for name, value in report.weights.items()) + ".")
    rows = []
    for name, direction in report.modes.items():
        if mode in ("all", name):
            r1, r10 = direction.figures["R@1"], direction.figures["R@10"]
            figures = [f"{direction.figures[metric].value:.{3 if metric == 'MRR' else 1}f}" for metric in PRINTED]
            intervals = [f"{each.low:.1f}–{each.high:.1f}" for each in (r1, r10)]
            rows.append([name, *figures, f"{direction.median_rank:g}", *intervals])
    print_table(["text→image by", *PRINTED, "median rank", "R@1, 95 %", "R@10, 95 %"], rows)
    for name, differences in report.differences.items():
        if mode == "all":
            click.echo(f"fused against {name}: {verdict('R@1', differences['R@1'])}; "
                       f"{verdict('R@10', differences['R@10'])}.")
    if report.trained_on:
        click.echo(f"{report.trained_on} of the pictures that are asked for were trained on.")


def print_outcome(outcome: EvaluationOutcome, sliced: Sequence[str] = ()) -> None:
    """Reports, then what was asked for beside them."""
    from densecap_search.evaluation.compare import verdict
    from densecap_search.evaluation.evaluate import DIRECTIONS

    print_reports(outcome.reports, [report.model for report in outcome.reports])

    def tell(comparison: Comparison) -> None:
        click.echo(f"\n{comparison.first} against {comparison.second}:")
        for direction, label in DIRECTIONS.items():
            click.echo(f"  {label}: {verdict('R@1', comparison.differences[direction]['R@1'])}.")

    for comparison in outcome.comparisons:
        tell(comparison)
    if outcome.retention:
        now, before = outcome.retention.now, outcome.retention.before
        click.echo("\nWhat was retained, with the model and the one before it:")
        print_reports([now, before], [now.model, before.model])
        tell(outcome.retention.comparison)
    if outcome.index:
        recall = outcome.index
        click.echo(f"\n{recall.index} ({recall.index_type}, {recall.gallery} pictures): text→image R@1/10/50 "
                   + " / ".join(f"{recall.found[f'R@{k}']:.1f}" for k in (1, 10, 50)) + "; by exact search "
                   + " / ".join(f"{recall.exact[f'R@{k}']:.1f}" for k in (1, 10, 50))
                   + f"; {recall.neighbours:.1f} % of the exact first ten are found.")
    parts = [part for part in outcome.reports[0].slices if part.by in sliced]
    if parts:
        click.echo("")
        rows = [[part.by, part.label, label, str(part.queries[direction]),
                 *(f"{part.figures[direction][name].value:.{3 if name == 'MRR' else 1}f}" for name in PRINTED)]
                for part in parts for direction, label in DIRECTIONS.items() if part.queries[direction]]
        print_table(["slice", "queries that are", "direction", "queries", *PRINTED], rows)
def print_inspection(inspection: Inspection, collection: Path) -> None:
    """What a collection holds, a line for each thing to mend, and a command to paste with the reason for each word."""
    from densecap_search.inspection.geometry import advise
    from densecap_search.inspection.suggestions import command

    inventory, geometry, fit = inspection.inventory, inspection.geometry, inspection.fit
    words = inventory.words
    splits = ", ".join(f"{name} {count}" for name, count in inventory.splits.items()) or "none"
    click.echo(f"{inventory.name}: {inventory.pictures} pictures, {inventory.captions} captions; splits: {splits}")
    if inventory.captions:
        click.echo(f"words in a caption: median {words['p50']:.0f}, 5 % have at most {words['p5']:.0f}, 5 % at least "
                   f"{words['p95']:.0f}, longest {words['p100']:.0f}")
    broken = f", {inspection.files.broken} cannot be opened" if inspection.files else ""
    click.echo(f"{inventory.without_caption} pictures have no caption{broken}, {inventory.skipped} rows were skipped, "
               f"{inventory.sharing_a_caption} share a caption or group with another")
    click.echo(f"read as {inventory.format}: {inventory.format_reason}")
    if geometry is not None:
        click.echo(f"\nby {geometry.model}: {geometry.truncation}")
        hardest = geometry.hardest["p50"]
        click.echo(f"similarity of different captions: mean {geometry.mean:.2f} ± {geometry.deviation:.2f}; the most "
                   f"similar companion has {hardest:.2f} (median), {geometry.hardest_in_batch:.2f} in a batch")
        click.echo(f"were pictures where their captions are, the most that training can reach, InfoNCE would be solved "
                   f"on {geometry.solved:.0f} % of batches of {geometry.batch_size} at logit_scale "
                   f"{geometry.logit_scale:.0f}")
    if fit is not None:
        click.echo(f"as they are now, it is solved on {fit.solved:.0f} %: {advise(fit.solved)}")
        if not math.isnan(fit.told_apart):
            click.echo(f"a caption fits its own picture better than a random one in {100 * fit.told_apart:.0f} % of "
                       "cases")
    mend = [finding for finding in inspection.findings if finding.do]
    click.echo("\nto mend:" if mend else "\nnothing was found that needs repair")
    for finding in mend:
        click.echo(f"  {finding.what}: {finding.do}")
        for example in finding.examples[:NAMED] if finding.kind in ("broken", "pairs that do not fit") else ():
            click.echo(f"    {example.note}")
    if inventory.captions:
        model = geometry.model if geometry else None
        click.echo(f"\nsuggested:\n  {command(model, inspection.suggestions, str(collection))}")
        for suggestion in inspection.suggestions:
            click.echo(f"  {suggestion.words}: {suggestion.reason}")


def print_epochs(rows: Sequence[tuple[str, Any]]) -> None:
    metrics = list(rows[0][1]["text_to_image"])
    print_table(["validation", *(f"{arrow} {metric}" for arrow in ("t→i", "i→t") for metric in metrics)],
                [[name, *(f"{figures[direction][metric]:.3g}" for direction in ("text_to_image", "image_to_text")
                          for metric in metrics)] for name, figures in rows])


def print_trials(choice: Choice) -> None:
    """The candidates of ``auto`` on validation."""
    from densecap_search.training.choice import spelled

    first = choice.trials[0]
    rows = [[("● " if (trial.objective, trial.gamma) == (choice.objective, choice.gamma) else "  ")
             + spelled(trial.objective, trial.gamma), f"{trial.mrr:.3f} ± {trial.spread:.3f}",
             "" if trial is first else f"{trial.difference:+.3f} ({trial.low:+.3f} to {trial.high:+.3f})"]
            for trial in choice.trials]
    print_table(["objective", "MRR on validation", f"difference to {first.objective}, 95 % interval"], rows)


def print_hits(query: str, hits: Sequence[Hit], titled: bool, explanation: Explanation | None = None) -> None:
    if titled:
        click.echo(f"\n{printable(query[:100])}{'…' if len(query) > 100 else ''}")
    if not hits:
        click.echo("nothing was found")
    elif hits[0].strength == "none":
        click.echo("nothing here fits well; the nearest:")
    for place, hit in enumerate(hits):
        score = "     " if hit.score is None else f"{hit.score:.3f}"
        sure = "" if hit.match is None else f"  {hit.match:5.2f} {hit.strength or '':<6}"
        more = f"  (+{len(hit.under)})" if hit.under else ""
        click.echo(f"{hit.rank:>3}  {score}{sure}  {printable(hit.image)}{more}")
        if hit.caption.strip():
            click.echo(f"            {_shortened(hit.caption)}")
        for part in explanation.of(place) if explanation else ():
            share = "  –" if part["percentile"] is None else f"{part['percentile']:3.0f}"
            click.echo(f"            {share} %  {_shortened(part['text'], 100)}")


def _shortened(caption: str, length: int = 120) -> str:
    line = printable(" ".join(caption.split()))
    return line if len(line) <= length else line[: length - 1] + "…"


def hit_rows(results: Sequence[tuple[str, Sequence[Hit]]], first: int = 1) -> Iterator[dict[str, Any]]:
    """A mapping a hit, as JSON lines and tables have it. first: the number of the first query."""
    for number, (query, hits) in enumerate(results, start=first):
        for hit in hits:
            yield {"query_number": number, "query": query, **hit.told()}


def write_hits(path: Path, results: Sequence[tuple[str, Sequence[Hit]]], *, inert: bool = False) -> None:
    """A .jsonl or .csv; inert: as in :func:`csv_text`."""
    from densecap_search.retrieval.hits import COLUMNS, MATCH_COLUMNS

    rows = list(hit_rows(results))
    if path.suffix.lower() == ".jsonl":
        write_text(path, json_lines(rows))
        return
    header = ["query_number", "query", *COLUMNS, *(MATCH_COLUMNS if any("match" in row for row in rows) else ())]
    write_text(path, csv_text(header, ([row.get(name) for name in header] for row in rows), inert=inert))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    width = None if sys.stdout.isatty() else 200
    Console(width=width).print(table)


def terminal_talk() -> Talk:
    """Sentences and progress on stderr: bars on a terminal, a line every few seconds in a log."""
    if not first_process():
        return SILENT
    return Talk(say=lambda sentence: click.echo(printable(sentence), err=True),
                progress=_bar if sys.stderr.isatty() else _lines)


_shown: list[Any] = []  # the bars on the terminal; rich has one display at a time, so others join it


@contextmanager
def _bar(what: str, total: int, unit: str) -> Iterator[Advance]:
    """A bar that goes when its work is done; below those of the work that it is a part of."""
    if _shown:
        task = _shown[0].add_task(what, total=total, unit=unit)
        try:
            yield lambda steps: _shown[0].advance(task, steps)
        finally:
            _shown[0].remove_task(task)
        return
    with _bars() as progress:
        _shown.append(progress)
        try:
            task = progress.add_task(what, total=total, unit=unit)
            yield lambda steps: progress.advance(task, steps)
        finally:
            _shown.clear()


def _bars() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Any:
            return rate(task.speed or 0.0, str(task.fields["unit"]))

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def _lines(what: str, total: int, unit: str) -> Iterator[Advance]:
    started = said = time.monotonic()
    done = 0

    def advance(steps: int) -> None:
        nonlocal done, said
        done += steps
        now = time.monotonic()
        if now - said < LOG_SECONDS or not done:
            return
        said = now
        speed = done / (now - started)
        click.echo(f"{what}: {done} of {total} {unit}, {rate(speed, unit)}, {(total - done) / speed:.0f} s left",
                   err=True)

    yield advance


def rate(per_second: float, unit: str) -> str:
    """How fast, in words that say something of slow work too; nothing where nothing was done yet."""
    if per_second >= 1:
        return f"{per_second:.1f} {unit}/s"
    return f"{1 / per_second:.1f} s each" if per_second > 0 else ""


def seconds_so_far() -> float:
    """Since the command was called."""
    return time.monotonic() - float(click.get_current_context().find_root().meta[STARTED])
