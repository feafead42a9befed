"""Does --objective auto choose what the better of the objectives would have given? Prints docs/results.md's table.

For each collection and test split: the choice, on train and val; then every candidate trained and read on test. auto is
the chosen candidate. Of a small collection several of FOLDS parts are test, one after the other, the next one is val,
and the others are train. Flickr8k keeps its own splits, and is trained with several seeds. Differences are to the
candidate that is best on test (the mean of R@1 over both directions), paired by query; p after Holm over all rows.

    python tools/auto_table.py --ids-ade captions.jsonl --flickr8k captions.jsonl
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Collection
from densecap_search.collection.splits import folds
from densecap_search.config import RunConfig, load_config, with_tune_defaults
from densecap_search.evaluation.compare import paired
from densecap_search.evaluation.metrics import METRICS
from densecap_search.evaluation.pairs import pair_rows
from densecap_search.model import tuning
from densecap_search.model.loading import load_encoder
from densecap_search.scenes.archive import make_scenes
from densecap_search.talk import SILENT
from densecap_search.training import choice
from densecap_search.training.data import prepare
from densecap_search.training.distributed import ALONE
from densecap_search.training.loop import heads_trainer

FOLDS = 5
SHARP = [("train.logit_scale", "frozen"), ("train.init_logit_scale", 100), ("train.batch_size", 16),
         ("train.epochs", 5)]
SCRATCH = [("model.pretrained", "random"), ("train.lr", 2e-3), ("train.epochs", 15)]


def measure(collection: Collection, config: RunConfig) -> tuple[choice.Choice, dict, dict]:
    """The choice; candidate → direction → R@1 of each test query; and the picture of each query, by direction."""
    encoder = load_encoder(config.model, device="cpu", precision=config.train.precision)
    train = with_tune_defaults(config.train, "heads")
    trained = tuning.select_parameters(encoder, "heads", learn_logit_scale=train.logit_scale == "learned")
    data = prepare(collection, config, train, encoder, False, ALONE, SILENT)
    found = choice.by_validation(config, train, data, encoder, heads_trainer(encoder, trained, Path()), SILENT)
    rows, read = pair_rows(encoder, data.splits.test), []
    trainer = heads_trainer(encoder, trained, Path(), look=lambda: read.append(rows.pairs(encoder)))
    scores, clusters = {}, {}
    for candidate in choice.CANDIDATES:
        trainer(choice.with_objective(train, *candidate), data)
        pairs = read[-1]
        scores[candidate] = {"text→image": METRICS["R@1"](pairs.text_to_image(1)),
                             "image→text": METRICS["R@1"](pairs.image_to_text(1))}
        names = np.array([record.image_id for record in pairs.records])[pairs.picture]
        clusters = {"text→image": names[pairs.owner], "image→text": names}
    return found, scores, clusters


def holm(p_values: list[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given."""
    order, worst, made = np.argsort(p_values), 0.0, [0.0] * len(p_values)
    for rank, row in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[row]))
        made[row] = worst
    return made


def rotated(collection: Collection, count: int) -> list[Collection]:
    """The collection once for each of the first parts of FOLDS, which is its test split."""
    parts = folds(collection.captioned, FOLDS, seed=0)
    made = []
    for number in range(count):
        named = {record.image_id: {0: "test", 1: "val"}.get((part - number) % FOLDS, "train")
                 for part, records in enumerate(parts) for record in records}
        made.append(replace(collection, records=tuple(replace(record, split=named[record.image_id])
                                                      for record in collection.captioned)))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids-ade", type=Path)
    parser.add_argument("--flickr8k", type=Path)
    parser.add_argument("--bursts", type=int, default=120)
    parser.add_argument("--parts", type=int, default=3, help=f"of {FOLDS} that are test, of the others")
    parser.add_argument("--seeds", type=int, default=2, help="on Flickr8k")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cells: dict = {}
        if given.flickr8k:
            cells["Flickr8k, heads from scratch"] = (read_collection(given.flickr8k), given.seeds, SCRATCH)
        if given.bursts:
            scenes = read_collection(make_scenes(Path(scratch), bursts=given.bursts, seed=7))
            cells |= {"scenes, s learned": (scenes, None, [("train.epochs", 15)]),
                      "scenes, B 16, s 100": (scenes, None, SHARP)}
        if given.ids_ade:
            cells["ids-ade"] = (read_collection(given.ids_ade), None, [])
        report({name: measured(name, given.parts, *cell) for name, cell in cells.items()})


def measured(name: str, parts: int, collection: Collection, seeds: int | None, settings: list) -> list:
    """What :func:`measure` gives of each test split, or of each seed."""
    runs = [(collection, seed) for seed in range(seeds)] if seeds \
        else [(part, 0) for part in rotated(collection, parts)]
    made = []
    for part, seed in runs:
        made.append(measure(part, load_config(overrides=[
            ("model.name", "starter"), ("train.tune", "heads"), ("data.split_seed", 0), *settings,
            ("train.seed", seed)])))
        print(f"# {name}, {len(made)} of {len(runs)}: {choice.spelled(made[-1][0].objective, made[-1][0].gamma)}; "
              f"{made[-1][0].reason}", flush=True)
    return made


def report(cells: dict) -> None:
    names = [choice.spelled(*candidate) for candidate in choice.CANDIDATES]
    lines, p_values = [], []
    for cell, made in cells.items():
        chosen = [(found.objective, found.gamma) for found, _, _ in made]
        best = max(choice.CANDIDATES, key=lambda one: np.concatenate(
            [part for _, scores, _ in made for part in scores[one].values()]).mean())
        counted = ", ".join(f"{choice.spelled(*one)} ({chosen.count(one)} of {len(made)})"
                            for one in dict.fromkeys(chosen))
        for direction in ("text→image", "image→text"):
            arms = {one: np.concatenate([scores[one][direction] for _, scores, _ in made]) for one in choice.CANDIDATES}
            auto = np.concatenate([scores[own][direction] for own, (_, scores, _) in zip(chosen, made, strict=True)])
            pictures = np.unique(np.concatenate([by[direction] for _, _, by in made]), return_inverse=True)[1]
            found = paired(auto, arms[best], pictures)
            p_values.append(found.p_value)
            lines.append([cell, direction, *(f"{arm.mean():.1f}" for arm in arms.values()), f"{auto.mean():.1f}",
                          counted, choice.spelled(*best),
                          f"{found.value:+.1f} ({found.low:+.1f} to {found.high:+.1f})"])
    header = ["collection", "direction", *names, "auto", "it chose", "best on test", "auto less the best", "p, Holm"]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
    for line, p_value in zip(lines, holm(p_values), strict=True):
        print("| " + " | ".join([*line, f"{p_value:.2g}"]) + " |")


if __name__ == "__main__":
    main()
