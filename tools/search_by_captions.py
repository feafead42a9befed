"""The tables of docs/results.md on search by captions.

python -m tools.search_by_captions IDS_ADE FLICKR8K --tuned RUN

IDS_ADE and FLICKR8K are the captions.jsonl of these collections; RUN is a run folder of heads that were fine-tuned on
the split train of IDS_ADE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click
import numpy as np

from densecap_search.collection.questions import PROTOCOLS
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Record
from densecap_search.config import ModelConfig, Reading
from densecap_search.embedding.content import read_contents
from densecap_search.embedding.towers import embed_images
from densecap_search.evaluation.modes import MODES, measure_modes
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.retrieval.calibration import measure_strengths
from densecap_search.retrieval.caption_space import CaptionSpace, unit
from densecap_search.retrieval.captioned import Captioned, Texts, read_texts
from densecap_search.retrieval.fuse import choose_weights, recall
from densecap_search.retrieval.strength import LEVELS

SHRINKS = (0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True)
class Trial:
    """Records that ask, among all records of a gallery."""

    title: str
    encoder: DualEncoder
    asked: Sequence[Record]
    gallery: Sequence[Record]
    protocol: str

    @cached_property
    def texts(self) -> tuple[dict[str, np.ndarray], Texts, Texts, np.ndarray]:
        """What asks and what is stored, of those of the gallery that can ask."""
        questions = [found for record in self.asked if (found := PROTOCOLS[self.protocol](record))]
        able = {question.image_id for question in questions}
        records, _ = read_contents([record for record in self.asked if record.image_id in able])
        pictures, _ = embed_images(self.encoder, records)
        stored = read_texts(self.encoder, [question.stored for question in questions])
        asks = read_texts(self.encoder, [[question.asks] for question in questions])
        captioned = Captioned.of(stored, pictures.vectors)
        return captioned.signals(asks, pictures.vectors), stored, asks, np.arange(len(questions))


def by_several(path: Path) -> list[Record]:
    """ids-ade with one caption a person: two stand-alone captions, and five sentences by another one."""
    columns = [read_collection(path, Reading(caption_column=(name,))).records for name in ("summary", "sequence")]
    found: dict[str, Record] = {}
    for records in columns:
        for record in records:
            before = found.get(record.image_id, replace(record, captions=()))
            own = (" ".join(record.captions),) if record.captions else ()
            found[record.image_id] = replace(before, captions=(*before.captions, *own))
    return list(found.values())


def print_header(*names: str) -> None:
    """Of a table in Markdown."""
    click.echo(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}")


def print_modes(trial: Trial) -> None:
    """R@1 and R@10 of every mode."""
    report = measure_modes(trial.encoder, trial.asked, trial.gallery, protocol=trial.protocol, model=trial.title,
                           collection=trial.title, splits=["all"])
    first = report.modes["image"]
    cells = []
    for mode in MODES:
        figures = report.modes[mode].figures
        cells.append(f"{figures['R@1'].value:.1f} / {figures['R@10'].value:.1f}")
    weights = ", ".join(f"{value:.2f}" for value in report.weights.values())
    click.echo(f"| {trial.title} | {first.queries} of {first.gallery} | {' | '.join(cells)} | {weights} |")


def print_spaces(trial: Trial) -> None:
    """The ranking ``text`` with less and more of the covariance taken off."""
    _, stored, asks, own = trial.texts
    spaces = [CaptionSpace.of(stored.rows, shrink) for shrink in SHRINKS]
    found = [recall(space.vectors(asks.rows) @ space.vectors(stored.rows).T, own) for space in spaces]
    found.append(recall(unit(asks.rows) @ unit(stored.rows).T, own))
    click.echo(f"| {trial.title} | " + " | ".join(f"{each['R@1']:.1f} / {each['R@10']:.1f}" for each in found) + " |")


def print_strengths(trial: Trial) -> None:
    """What share of best hits is called what."""
    signals, _, asks, own = trial.texts
    found = measure_strengths(signals, own, asks, choose_weights(signals, own, ""))
    for kind, said in (("foreign", "its picture was taken out"), ("right", "its picture comes first")):
        click.echo(f"| {trial.title}: {said} | " + " | ".join(f"{found[kind][name]:.0f}" for name in LEVELS) + " |")


@click.command()
@click.argument("ids_ade", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("flickr8k", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--tuned", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
def main(ids_ade: Path, flickr8k: Path, tuned: Path) -> None:
    """Print the tables."""
    starter, run = load_encoder(ModelConfig("starter").resolved()), load_encoder(ModelConfig(str(tuned)).resolved())
    rooms = read_collection(ids_ade).records
    held = [record for record in rooms if record.split != "train"]
    persons = by_several(ids_ade)
    street = [record for record in read_collection(flickr8k, Reading(caption_column=("captions",))).records
              if record.split == "test"]
    trials = [
        Trial("ids-ade, halves, starter", starter, rooms, rooms, "halves"),
        Trial("ids-ade, halves, fine-tuned heads, val and test", run, held, rooms, "halves"),
        Trial("ids-ade, another person asks, starter", starter, [r for r in persons if len(r.captions) > 1], persons,
              "captions"),
        Trial("Flickr8k test, captions, starter", starter, street, street, "captions"),
    ]
    print_header("text→image R@1 / R@10", "queries", *MODES, "weights")
    for trial in trials:
        print_modes(trial)
    print_header("`text`, SHRINK", *map(str, SHRINKS), "nothing taken off")
    for trial in (trials[0], *trials[2:]):
        print_spaces(trial)
    print_header("best hit called, %", *LEVELS)
    for trial in (trials[0], trials[3]):
        print_strengths(trial)


if __name__ == "__main__":
    main()
