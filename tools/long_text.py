"""What a text window loses, and what segments give back: python -m tools.long_text FILE.

No pictures are needed: a sentence of a long caption is the query, and the gallery is all captions, embedded whole. It
asks whether what a sentence says has reached the caption's vectors. Whether pictures are found better too is asked
with --pictures, at windows narrower than their captions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from densecap_search.collection.captions import sentences
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection
from densecap_search.config import LONG_TEXT, ModelConfig
from densecap_search.embedding.texts import embed_queries
from densecap_search.errors import DensecapError
from densecap_search.evaluation.evaluate import evaluate
from densecap_search.evaluation.metrics import METRICS, Relevance, rank_queries
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.model.segments import Ints, Truncation

WINDOWS = (77, 128, 248, 256)


@dataclass(frozen=True)
class Loss:
    """What a window cuts off, percent of captions and of tokens, and in how many segments a longer caption is read."""

    window: int
    captions: float
    tokens: float
    segments: float


@dataclass(frozen=True)
class Recall:
    """R@1 in percent of sentences that lie within the window, and of those beyond it, by treatment of long text."""

    window: int
    treatment: str
    queries: int
    within: float
    beyond: float


def read_captions(path: Path) -> list[str]:
    """The column `caption` of a JSON Lines file, each caption once."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return list(dict.fromkeys(row["caption"] for row in rows))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DensecapError(f"{path} must hold one JSON object a line with the key caption") from error


def measure_loss(encoder: DualEncoder, captions: Sequence[str]) -> Loss:
    """What this encoder's window loses of captions."""
    cut = Truncation.of(encoder.lengths(captions), encoder.context_length)
    split = treated(encoder, "mean").segments(captions).truncation
    return Loss(encoder.context_length, 100 * cut.truncated / cut.captions, 100 * cut.lost / cut.tokens,
                split.segments / split.split if split.split else 1.0)


def measure_recall(encoder: DualEncoder, captions: Sequence[str], seed: int = 0) -> list[Recall]:
    """Of each caption longer than the window one sentence within and one beyond it look for their caption among all."""
    found = {number: pair for number, caption in enumerate(captions)
             if (pair := draw_sentences(encoder, caption, np.random.default_rng([seed, number])))}
    owners = np.array(list(found), dtype=np.int64)
    rows = []
    for treatment in LONG_TEXT if found else ():
        recalls = [_recall(treated(encoder, treatment), [pair[place] for pair in found.values()], captions, owners)
                   for place in (0, 1)]
        rows.append(Recall(encoder.context_length, treatment, len(found), *recalls))
    return rows


def draw_sentences(encoder: DualEncoder, caption: str, generator: np.random.Generator) -> tuple[str, str] | None:
    """A sentence that lies wholly within the window, and one wholly beyond it; None where there are not both."""
    whole = sentences(caption)
    around = encoder.lengths([""])[0]
    ends = np.cumsum([length - around for length in encoder.lengths(whole)])
    room = encoder.context_length - around
    within = [sentence for sentence, end in zip(whole, ends, strict=True) if end <= room]
    beyond = [sentence for sentence, start in zip(whole[1:], ends[:-1], strict=True) if start >= room]
    if not within or not beyond:
        return None
    return within[generator.integers(len(within))], beyond[generator.integers(len(beyond))]


def _recall(encoder: DualEncoder, queries: Sequence[str], captions: Sequence[str], owners: Ints) -> float:
    asked, gallery = embed_queries(encoder, queries), embed_queries(encoder, captions)
    ranks = rank_queries(asked.rows, gallery.rows, Relevance.of_labels(owners, np.arange(len(captions))), depth=1,
                         query_counts=asked.counts, gallery_counts=gallery.counts)
    return float(METRICS["R@1"](ranks).mean())


def measure_pictures(encoder: DualEncoder, collection: Collection) -> list[str]:
    """Retrieval of pictures by each treatment, as rows of a table."""
    rows = []
    for treatment in LONG_TEXT:
        report = evaluate(treated(encoder, treatment), collection.captioned, model=encoder.name,
                          collection=collection.name, splits=["all"])
        recalls = [direction.figures["R@1"].value for direction in (report.text_to_image, report.image_to_text)]
        rows.append(f"| {encoder.context_length} | {treatment} | {report.truncation.longer} of "
                    f"{report.truncation.captions} | {recalls[0]:.1f} | {recalls[1]:.1f} |")
    return rows


def treated(encoder: DualEncoder, treatment: str) -> DualEncoder:
    """The same encoder with another treatment of captions beyond its window."""
    spec = replace(encoder.spec, long_text=treatment)
    return DualEncoder(encoder.model, spec, encoder.tokenizer, device=encoder.device, precision=encoder.precision)


@click.command()
@click.argument("captions_file", metavar="CAPTIONS", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--model", default="starter", show_default=True)
@click.option("--pretrained", help="Weights for an open_clip name; random is enough for --lengths-only.")
@click.option("--window", "windows", type=click.IntRange(8), multiple=True, default=WINDOWS, show_default=True)
@click.option("--lengths-only", is_flag=True, help="Only what is lost, no retrieval.")
@click.option("--pictures", is_flag=True, help="CAPTIONS is a collection: retrieval of its pictures, all splits.")
def main(captions_file: Path, model: str, pretrained: str | None, windows: tuple[int, ...], lengths_only: bool,
         pictures: bool) -> None:
    """Print what windows lose of CAPTIONS, a JSON Lines file with the key caption, and what segments give back."""
    captions = read_captions(captions_file)
    encoders = [load_encoder(ModelConfig(model, pretrained, context_length=window)) for window in windows]
    click.echo(f"{captions_file.name}: {len(captions)} captions, {model}\n\n"
               "| window | captions cut | tokens lost | segments of a longer caption |\n|---|---|---|---|")
    for encoder in encoders:
        loss = measure_loss(encoder, captions)
        click.echo(f"| {loss.window} | {loss.captions:.1f} % | {loss.tokens:.1f} % | {loss.segments:.2f} |")
    if lengths_only:
        return
    if pictures:
        collection = read_collection(captions_file)
        click.echo("\n| window | long text | longer captions | text→image R@1 | image→text R@1 |\n"
                   "|---|---|---|---|---|")
        for encoder in encoders:
            click.echo("\n".join(measure_pictures(encoder, collection)))
        return
    click.echo("\n| window | long text | queries | R@1, sentence within the window | R@1, sentence beyond it |\n"
               "|---|---|---|---|---|")
    for encoder in encoders:
        for row in measure_recall(encoder, captions):
            click.echo(f"| {row.window} | {row.treatment} | {row.queries} | {row.within:.1f} | {row.beyond:.1f} |")


if __name__ == "__main__":
    main()
