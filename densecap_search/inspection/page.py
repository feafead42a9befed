"""An inspection as one page: plots, tables with the meaning of each figure, and examples with thumbnails."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from densecap_search import __version__
from densecap_search.inspection.findings import EXAMPLES, Example, Finding
from densecap_search.inspection.geometry import NEAR_COSINE, SOLVED, Geometry, Histogram, Prediction, advise
from densecap_search.inspection.inspect import Inspection
from densecap_search.inspection.suggestions import command, cut_share
from densecap_search.pages.html import COLOURS, plot, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 700  # characters of a caption
SIZE = {"width": 5.2, "height": 3.0}  # two plots side by side
ALIKE = 0.5  # share of words in common from which on marking the others helps
Rows = list[tuple[str, str, str]]  # figure, value, what it means


def inspection_page(inspection: Inspection) -> str:
    """The whole page, self-contained; the same content as ``--json``."""
    geometry = inspection.geometry
    left_out = (*inspection.inventory.left_out, *(inspection.files.reasons if inspection.files else ()))
    return render("inspect.html", {
        "title": f"{inspection.inventory.name}, before training", "version": __version__,
        "found": inspection, "inventory": inspection.inventory, "files": inspection.files, "geometry": geometry,
        "sections": [_section(finding) for finding in inspection.findings],
        "command": command(geometry.model if geometry else None, inspection.suggestions), "fit": inspection.fit,
        "advice": None if inspection.fit is None else advise(inspection.fit.solved),
        "length_rows": length_rows(inspection), "length_plots": length_plots(inspection),
        "windows": [] if geometry is None else window_rows(geometry),
        "likeness_rows": [] if geometry is None else likeness_rows(geometry),
        "likeness_plots": [] if geometry is None else likeness_plots(geometry),
        "predictions": [] if geometry is None else prediction_rows(geometry),
        "leaks": [(leak.kind, leak.later, leak.earlier, leak.count) for leak in inspection.leaks or ()],
        "prediction_header": prediction_header(geometry),
        "reasons": [(reason.reason, reason.examples[0], reason.count) for reason in left_out], "settings": [
            (item.words, item.reason) for item in inspection.suggestions],
        "SOLVED": SOLVED, "EXAMPLES": EXAMPLES,
    })


def length_rows(inspection: Inspection) -> Rows:
    """How long captions are."""
    words = inspection.inventory.words
    rows = [("words, median", f"{words['p50']:.0f}", "half of the captions are longer"),
            ("words, 5th to 95th percentile", f"{words['p5']:.0f} to {words['p95']:.0f}", "nine of ten lie between"),
            ("words, longest", f"{words['p100']:.0f}", "the longest of all")]
    if inspection.geometry is not None:
        tokens, name = inspection.geometry.tokens, inspection.geometry.model
        rows += [(f"tokens of {name}, median", f"{tokens['p50']:.0f}", "what the window is measured in"),
                 ("tokens, 95th percentile", f"{tokens['p95']:.0f}", "a window of this size cuts one in twenty"),
                 ("tokens, longest", f"{tokens['p100']:.0f}", "a window of this size cuts none")]
    return rows


def window_rows(geometry: Geometry) -> list[tuple[str, str, str]]:
    """For each window the share of captions that are cut and of tokens that are lost."""
    cuts = {cut.context_length: cut for cut in (*geometry.windows, geometry.truncation)}
    own = geometry.truncation.context_length
    return [(f"{length} tokens{' (this model)' if length == own else ''}", f"{cut_share(cut):.1f} %",
             f"{100 * cut.lost / max(1, cut.tokens):.1f} %") for length, cut in sorted(cuts.items())]


def likeness_rows(geometry: Geometry) -> Rows:
    """How alike captions are, with what each figure means."""
    spread = geometry.similarity
    margin = 0.5 * geometry.mean, 0.5 * geometry.deviation
    return [
        ("mean of all pairs", f"{geometry.mean:.3f} ± {geometry.deviation:.3f}",
         "cosine of two different captions; raw text towers begin high, so compare with the spread"),
        ("percentiles 1, 5, 50, 95, 99", ", ".join(f"{value:.2f}" for value in spread.values()),
         "how far the pairs are spread"),
        ("the same, centred", ", ".join(f"{value:.2f}" for value in geometry.centred.values()),
         "after the part that all captions share is taken off: what is left tells them apart"),
        *((f"pairs of at least {share}", f"{value:.2f} %", "share of all pairs of different captions")
          for share, value in geometry.shares.items()),
        ("hardest companion, mean", f"{geometry.hardest_mean:.3f}",
         "the most similar other caption, which a search must keep apart"),
        ("hardest companion, median, 90th, most", ", ".join(f"{value:.3f}" for value in geometry.hardest.values()),
         "how hard the middle caption, one in ten and the hardest have it"),
        (f"hardest companion in a batch of {geometry.batch_size}", f"{geometry.hardest_in_batch:.3f}",
         "what a random batch shows of it: the difference is what training does not see"),
        ("margin at gamma 0.5", f"{margin[0]:.2f} ± {margin[1]:.2f}",
         "by how much more, in cosine, hn_clip asks a pair to win; ± is what adapts to the captions"),
        (f"groups at {NEAR_COSINE:g}", f"{len(geometry.near.groups)}", "near-duplicate captions that hang together"),
    ]


def prediction_rows(geometry: Geometry) -> list[tuple[str, ...]]:
    """Share of solved batches and median loss, a row a batch size, two columns a logit_scale."""
    sizes = sorted({cell.batch_size for cell in geometry.predictions})
    return [(str(size), *(text for cell in geometry.predictions if cell.batch_size == size for text in _cell(cell)))
            for size in sizes]


def prediction_header(geometry: Geometry | None) -> list[str]:
    """Above the columns of :func:`prediction_rows`, after the first."""
    scales = dict.fromkeys(cell.logit_scale for cell in geometry.predictions) if geometry else {}
    return [text for scale in scales for text in (f"solved at logit_scale {scale:.0f}", "loss")]


def _cell(cell: Prediction) -> tuple[str, str]:
    if cell.solved is None or cell.loss is None:
        return "–", "–"
    return f"{cell.solved:.0f} %", f"{cell.loss:.2g}"


def length_plots(inspection: Inspection) -> list[Markup]:
    """Captions by words and, with a model, by tokens with the windows marked."""
    plots = [plot(lambda axes: _bars(axes, inspection.inventory.lengths, "words in a caption"),
                  alt="histogram of caption length in words", **SIZE)]
    geometry = inspection.geometry
    if geometry is None:
        return plots

    def draw(axes: Axes) -> None:
        _bars(axes, geometry.lengths, f"tokens of {geometry.model} in a caption")
        right = axes.get_xlim()[1]
        for cut in (*geometry.windows, geometry.truncation):
            own = cut is geometry.truncation
            if cut.context_length <= 1.05 * right:
                axes.axvline(cut.context_length, color=COLOURS[1 if own else 5], ls="-" if own else ":", lw=1.2)
                axes.annotate(f" {cut.context_length}", (cut.context_length, 0.92 if own else 1.0),
                              xycoords=("data", "axes fraction"), va="top", color=COLOURS[1 if own else 5])
    return [*plots, plot(draw, alt="histogram of caption length in tokens, with text windows", **SIZE)]


def likeness_plots(geometry: Geometry) -> list[Markup]:
    """Captions by the cosine of their most similar companion; solved batches by batch size and logit_scale."""
    cells = [cell for cell in geometry.predictions if cell.solved is not None]
    plots = [plot(lambda axes: _bars(axes, geometry.companions, "cosine of the most similar other caption"),
                  alt="histogram of each caption's most similar companion", **SIZE)]
    if not cells:
        return plots

    def draw(axes: Axes) -> None:
        sizes = sorted({cell.batch_size for cell in cells})
        scales = list(dict.fromkeys(cell.logit_scale for cell in cells))
        for number, scale in enumerate(scales):
            shares = [cell.solved or 0.0 for cell in cells if cell.logit_scale == scale]
            places = [place + 0.38 * (number - (len(scales) - 1) / 2) for place in range(len(sizes))]
            bars = axes.bar(places, shares, width=0.36, label=f"logit_scale {scale:.0f}")
            axes.bar_label(bars, fmt="%.0f", padding=2)
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set(xlabel="batch size", ylabel="solved batches, %", ylim=(0, 112))
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(scales))
    return [*plots, plot(draw, alt="predicted share of batches on which InfoNCE is solved", **SIZE)]


def _bars(axes: Axes, histogram: Histogram, label: str) -> None:
    axes.stairs(histogram.counts, histogram.edges or (0.0,), fill=True)
    axes.set(xlabel=label, ylabel="captions")


def _section(finding: Finding) -> dict[str, Any]:
    what, do = (_coded(text[:1].upper() + text[1:]) for text in (finding.what, finding.do))
    return {"anchor": re.sub(r"\W+", "-", f"{finding.kind} {finding.what}"), "what": what, "do": do,
            "more": finding.count > len(finding.examples) == EXAMPLES,
            "pictures": [_shown(example) for example in finding.examples if example.images],
            "notes": [example.note for example in finding.examples if not example.images]}


def _coded(text: str) -> Markup:
    """`words` in backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _shown(example: Example) -> dict[str, Any]:
    captions: Sequence[str] = [caption[:SHOWN] + ("…" if len(caption) > SHOWN else "") for caption in example.captions]
    marked = marked_differences(*captions) if len(captions) == 2 and captions[0] != captions[1] else list(captions)
    texts = marked or [""] * len(example.images)
    return {"note": example.note, "cards": list(zip(example.images, texts, strict=True))}


def marked_differences(first: str, second: str) -> list[Markup]:
    """Two captions with the words marked that the other has not."""
    words: list[list[str]] = [re.split(r"(\s+)", text) for text in (first, second)]
    matcher = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False)
    if matcher.ratio() < ALIKE:
        return [escape(first), escape(second)]
    both = [Markup(""), Markup("")]
    for kind, a, b, c, d in matcher.get_opcodes():
        for side, text in enumerate(("".join(words[0][a:b]), "".join(words[1][c:d]))):
            plain = kind == "equal" or not text.strip()
            both[side] += escape(text) if plain else Markup("<mark>{}</mark>").format(text)
    return both
