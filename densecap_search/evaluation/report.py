"""An EvaluationOutcome as sections of tables, plots and pictures; these as one self-contained page or as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from densecap_search import __version__
from densecap_search.evaluation import charts
from densecap_search.evaluation.compare import Comparison, Difference, verdict
from densecap_search.evaluation.confusions import Confusion, image_confusions, text_confusions
from densecap_search.evaluation.evaluate import DIRECTIONS, RANKING, Direction, Report
from densecap_search.evaluation.metrics import MEANINGS, METRICS, PERCENT, Figure
from densecap_search.evaluation.outcome import EvaluationOutcome, Retention
from densecap_search.evaluation.slices import Slice
from densecap_search.files import write_text
from densecap_search.pages.html import render

CONFUSED = {"text_to_image": 12, "image_to_text": 6}  # shown of each direction


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it. words: the first columns of the table, which are no numbers."""

    title: str
    paragraphs: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    words: int = 1
    plots: tuple[Markup, ...] = ()
    confusions: tuple[Confusion, ...] = ()


def write_report(path: Path, outcome: EvaluationOutcome) -> None:
    """A page where the name ends in .html; else the same tables in Markdown, without plots and pictures."""
    if path.suffix.lower() == ".html":
        write_text(path, as_html(outcome))
    else:
        write_text(path, as_markdown(outcome))


def as_html(outcome: EvaluationOutcome) -> str:
    """One self-contained page."""
    first = outcome.reports[0]
    tiles = [(str(first.text_to_image.queries), "captions"), (str(first.image_to_text.queries), "pictures"),
             *((f"{measured.figures['R@1'].value:.1f} %", f"R@1 {DIRECTIONS[name]}")
               for name, measured in first.directions().items())]
    return render("evaluate.html", {"title": _title(outcome), "version": __version__, "tiles": tiles,
                                    "sections": list(sections(outcome))})


def as_markdown(outcome: EvaluationOutcome) -> str:
    """Headings, paragraphs and tables."""
    parts = [f"# {_title(outcome)}"]
    for section in sections(outcome, drawn=False):
        parts += [f"## {section.title}", *section.paragraphs]
        rows = list(section.rows)
        header = section.header
        if section.confusions:
            header = ("query", "wanted", "came first", "caption wanted", "caption that came first", "their cosine")
            rows = [(str(each.query), each.wanted, each.found, each.wanted_caption, each.found_caption,
                     "–" if each.caption_cosine is None else f"{each.caption_cosine:.3f}")
                    for each in section.confusions]
        if rows:
            lines = [header, tuple("---" if column < section.words else "---:" for column in range(len(header))), *rows]
            parts.append("\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines))
    return "\n\n".join(parts) + "\n"


def sections(outcome: EvaluationOutcome, *, drawn: bool = True) -> Iterator[Section]:
    """What a report consists of, in order. drawn: with plots."""
    names = model_labels(outcome.reports)
    yield _measured(outcome, names)
    for direction, label in DIRECTIONS.items():
        directions = {name: report.directions()[direction] for name, report in zip(names, outcome.reports, strict=True)}
        plots = (charts.recall_curves(directions, label), charts.rank_histogram(directions, label)) if drawn else ()
        yield _figures(f"Figures, {label}", directions, plots)
    for comparison, name in zip(outcome.comparisons, names[1:], strict=True):
        yield _difference(comparison, names[0], name, drawn)
    yield from _slices(outcome.reports, names, drawn)
    if outcome.index:
        yield _index(outcome)
    if outcome.retention:
        yield from _retention(outcome.retention, outcome.reports[0], drawn)
    yield from _confusions(outcome.reports[0])
    yield Section("How ranks are counted", (RANKING,))


def model_labels(reports: Sequence[Report]) -> list[str]:
    """Short names of models: the last part of a path, and more of it where that is not enough."""
    names = [report.model for report in reports]
    for parts in (1, 2, 3):
        short = ["/".join(Path(name).parts[-parts:]) if Path(name).is_absolute() else name for name in names]
        if len(set(short)) == len(short):
            return short
    return [f"{number}: {name}" for number, name in enumerate(names, start=1)]


def _title(outcome: EvaluationOutcome) -> str:
    first = outcome.reports[0]
    against = f" against {' and '.join(model_labels(outcome.reports)[1:])}" if outcome.comparisons else ""
    return f"{model_labels(outcome.reports)[0]}{against} on {first.collection}, split {', '.join(first.splits)}"


def _measured(outcome: EvaluationOutcome, names: Sequence[str]) -> Section:
    first = outcome.reports[0]
    rows = [(name, f"{report.fingerprint[:12]}, {report.precision}", str(report.truncation), str(report.trained_on),
             f"{report.text_to_image.ties} / {report.image_to_text.ties}", str(len(report.skipped)))
            for name, report in zip(names, outcome.reports, strict=True)]
    text = (f"{first.collection}, split {', '.join(first.splits)}: {first.text_to_image.queries} captions search "
            f"{first.text_to_image.gallery} pictures (text→image), and {first.image_to_text.queries} pictures search "
            f"{first.image_to_text.gallery} captions (image→text){first.gallery_words}. Rule: {first.rule}.")
    return Section("What was measured", (text,), ("model", "encoder", "truncation", "trained on", "ties t→i / i→t",
                                                  "skipped"), tuple(rows), words=3)


def _figures(title: str, directions: Mapping[str, Direction], plots: tuple[Markup, ...] = ()) -> Section:
    rows = [(name, MEANINGS[name], *(shown(name, direction.figures[name]) for direction in directions.values()))
            for name in METRICS]
    counts = next(iter(directions.values()))
    text = f"{counts.queries} queries, a gallery of {counts.gallery}; in brackets the 95 % interval."
    return Section(title, (text,), ("figure", "meaning", *directions), tuple(rows), 2, plots)


def _difference(comparison: Comparison, first: str, second: str, drawn: bool) -> Section:
    sentences = [f"{label}: {verdict('R@1', comparison.differences[direction]['R@1'])}."
                 for direction, label in DIRECTIONS.items()]
    rows = [(f"{name} {label}", *_paired_cells(name, comparison.differences[direction][name]))
            for direction, label in DIRECTIONS.items() for name in METRICS]
    text = (f"{first} minus {second}, on the same queries. Interval: paired bootstrap over pictures; p: how often "
            "chance alone, flipping the sign of every picture's differences, makes a difference this large; won and "
            "lost: queries on which the first model is better or worse (of ranks, less is better).")
    return Section(f"{first} against {second}", (text, *sentences),
                   ("figure", "difference", "95 % interval", "p", "won", "lost", "equal"), tuple(rows),
                   plots=(charts.difference_bars(comparison),) if drawn else ())


def _slices(reports: Sequence[Report], names: Sequence[str], drawn: bool) -> Iterator[Section]:
    if not reports[0].slices:
        return
    parts: list[Mapping[str, Slice]] = [dict(zip(names, row, strict=True))
                                        for row in zip(*(report.slices for report in reports), strict=True)
                                        if any(row[0].queries.values())]
    for direction, label in DIRECTIONS.items():
        rows = []
        for part in parts:
            for name, each in part.items():
                figures = each.figures[direction]
                cells = [shown(metric, figures[metric]) if figures else "–" for metric in ("R@1", "R@10", "MRR")]
                rows.append((each.by, each.label, name, str(each.queries[direction]), *cells))
        text = ("Queries taken apart; each is ranked in the whole gallery. words: length of the caption; truncated: "
                "whether it is longer than the window; hardness: cosine, under the first model, with the most similar "
                "caption of another picture. The 95 % intervals in brackets overlap widely where a slice is small.")
        plots = (charts.slice_bars(parts, direction, label),) if drawn else ()
        yield Section(f"Slices, {label}", (text,), ("slice", "queries that are", "model", "queries", "R@1", "R@10",
                                                    "MRR"), tuple(rows), 3, plots)


def _index(outcome: EvaluationOutcome) -> Section:
    recall = outcome.index
    assert recall is not None
    text = (f"{recall.queries} captions search the {recall.gallery} pictures of {recall.index} ({recall.index_type}); "
            f"the pictures of {recall.missing} captions are not in it. {recall.neighbours:.1f} % of the exact first "
            "ten are among the index's first ten.")
    rows = tuple((name, f"{recall.found[name]:.1f}", f"{recall.exact[name]:.1f}") for name in recall.exact)
    return Section("Through the index, text→image", (text,), ("figure", "the index's own search", "exact"), rows)


def _retention(retention: Retention, target: Report, drawn: bool) -> Iterator[Section]:
    now, before = model_labels([retention.now, retention.before])
    sentences = [f"{label}: {verdict('R@1', retention.comparison.differences[direction]['R@1'])}."
                 for direction, label in DIRECTIONS.items()]
    rows = []
    for direction, label in DIRECTIONS.items():
        pair = [report.directions()[direction] for report in (retention.now, retention.before)]
        rows += [(f"{name} {label}", *(shown(name, each.figures[name]) for each in pair),
                  f"{retention.comparison.differences[direction][name].value:+.{_digits(name)}f}") for name in METRICS]
    text = (f"{retention.now.collection}, split {', '.join(retention.now.splits)}: "
            f"{retention.now.text_to_image.queries} captions, {retention.now.text_to_image.gallery} pictures, which "
            "fine-tuning was not about. A negative difference of R@K is what was forgotten.")
    yield Section(f"What was retained of {retention.now.collection}", (text, *sentences),
                  ("figure", now, before, "difference"), tuple(rows))
    if (mixtures := retention.mixtures) is None:
        return
    curve = tuple((f"{alpha:g}", f"{a:.1f}", f"{b:.1f}") for alpha, a, b in
                  zip(mixtures.alphas, mixtures.target, mixtures.retained, strict=True))
    plots = (charts.mixture_curves(mixtures, target.collection, retention.now.collection),) if drawn else ()
    yield Section("Between the model before and after", (
        "Weights α·after + (1 − α)·before; R@1 in percent, the mean of both directions. densecap finetune "
        "--interpolate keeps such a mixture.",
    ), ("α", target.collection, f"{retention.now.collection} (retained)"), curve, plots=plots)


def _confusions(report: Report) -> Iterator[Section]:
    if report.pairs is None:
        return
    finders = {"text_to_image": text_confusions, "image_to_text": image_confusions}
    for direction, label in DIRECTIONS.items():
        ranks = report.directions()[direction].ranks
        confusions = tuple(finders[direction](report.pairs, ranks, CONFUSED[direction]))
        wrong = int((ranks.rank > 1).sum())
        if confusions:
            yield Section(f"What came first instead, {label}", (
                f"{wrong} of {len(ranks.rank)} queries of {model_labels([report])[0]} found something wrong first; "
                f"the {len(confusions)} with the worst ranks. The cosine is that of the two captions under the model: "
                "the nearer to 1, the less its text tower tells them apart.",), words=5, confusions=confusions)


def shown(name: str, figure: Figure) -> str:
    """A figure with its interval."""
    digits = _digits(name)
    return f"{figure.value:.{digits}f} ({figure.low:.{digits}f}–{figure.high:.{digits}f})"


def _digits(name: str) -> int:
    return 1 if name in PERCENT or name.endswith("_rank") else 3


def _paired_cells(name: str, difference: Difference) -> tuple[str, ...]:
    digits = _digits(name)
    return (f"{difference.value:+.{digits}f}", f"{difference.low:+.{digits}f} to {difference.high:+.{digits}f}",
            f"{difference.p_value:.4f}", str(difference.wins), str(difference.losses), str(difference.equal))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
