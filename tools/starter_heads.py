"""How the starter's heads were made: python -m tools.starter_heads FLICKR8K [-o HEADS].

FLICKR8K is the captions.jsonl of Flickr8k with the columns caption (five captions joined), captions (the five) and
split. The recipe was chosen on val; here it is trained on train and read on val, then trained on train + val and read
on test.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection, Record
from densecap_search.collection.splits import select_splits
from densecap_search.config import ModelConfig, Reading, RunConfig, load_config
from densecap_search.evaluation.evaluate import Report, evaluate
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.model.starter import HEADS_FILE, save_heads
from densecap_search.talk import SILENT, Talk
from densecap_search.training.loop import finetune

RECIPE = (
    ("model.name", "starter"), ("model.pretrained", "random"), ("train.tune", "heads"), ("train.objective", "info_nce"),
    ("train.epochs", 40), ("train.batch_size", 512), ("train.lr", 2e-3), ("train.weight_decay", 0.05),
    ("train.warmup", 0.05), ("train.checkpoint", "last"), ("data.val_share", 0.0),
)


def read_flickr8k(path: Path) -> Collection:
    """Records whose captions are half the joined caption and half single sentences, as an epoch samples them."""
    joined = {record.image_id: record.captions[0] for record in read_collection(path).records}
    sentences = read_collection(path, Reading(caption_column=("captions",)))
    records = [
        replace(record, captions=(joined[record.image_id],) * len(record.captions) + record.captions)
        for record in sentences.records
    ]
    return replace(sentences, records=tuple(records))


def train_heads(collection: Collection, splits: Sequence[str], config: RunConfig, talk: Talk = SILENT) -> DualEncoder:
    """The starter with heads trained on the named splits."""
    records = [replace(record, split="train") for record in select_splits(collection, splits)]
    with tempfile.TemporaryDirectory() as folder:
        finetune(Collection(collection.name, tuple(records)), config, Path(folder) / "run", talk=talk)
        return load_encoder(ModelConfig(str(Path(folder) / "run")))


def measure(encoder: DualEncoder, records: Sequence[Record], split: str, talk: Talk = SILENT) -> Report:
    """Retrieval by the joined captions."""
    joined = [replace(record, captions=record.captions[:1]) for record in records]
    return evaluate(encoder, joined, model="starter", collection="flickr8k", splits=[split], talk=talk)


@click.command()
@click.argument("table", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=HEADS_FILE, show_default="in the package")
@click.option("--seed", type=int, default=0, show_default=True)
def main(table: Path, output: Path, seed: int) -> None:
    """Train the starter's heads, measure them, and write them."""
    talk = Talk(say=lambda sentence: click.echo(sentence, err=True))
    collection = read_flickr8k(table)
    config = load_config(overrides=[*RECIPE, ("train.seed", seed)])
    for train, test in ((["train"], "val"), (["train", "val"], "test")):
        encoder = train_heads(collection, train, config, talk)
        report = measure(encoder, select_splits(collection, [test]), test, talk).as_json()
        rows = {name: {metric: round(report[name][metric]["value"], 1) for metric in ("R@1", "R@5", "R@10")}
                for name in ("text_to_image", "image_to_text")}
        click.echo(json.dumps({"trained on": train, "measured on": test, **rows}))
    save_heads(encoder.model, output)
    click.echo(f"written to {output} ({output.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
