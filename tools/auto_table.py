"""Does --objective auto choose what the better of the objectives would have given? Prints docs/results.md's table.

For each collection and seed: the choice, on train and val; then every candidate trained and read on test. auto is
the chosen candidate. Differences are to the candidate that is best on test (the mean of R@1 over both directions),
paired by query and averaged over seeds; p after Holm over all rows of the table.

    python tools/auto_table.py --ids-ade captions.jsonl --flickr8k captions.jsonl --seeds 3
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from densecap_search.collection.readers import read_collection
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

SHARP = [("train.logit_scale", "frozen"), ("train.init_logit_scale", 100), ("train.batch_size", 16),
         ("train.epochs", 5)]
SCRATCH = [("model.pretrained", "random"), ("train.lr", 2e-3), ("train.epochs", 15)]


def measure(table: Path, config: RunConfig) -> tuple[choice.Choice, dict, np.ndarray]:
    """The choice; candidate → direction → R@1 of each test query; and the picture of each query, by direction."""
    encoder = load_encoder(config.model, device="cpu", precision=config.train.precision)
    train = with_tune_defaults(config.train, "heads")
    trained = tuning.select_parameters(encoder, "heads", learn_logit_scale=train.logit_scale == "learned")
    data = prepare(read_collection(table), config, train, encoder, False, ALONE, SILENT)
    found = choice.by_validation(config, train, data, encoder, heads_trainer(encoder, trained, Path()), SILENT)
    rows, read = pair_rows(encoder, data.splits.test), []
    trainer = heads_trainer(encoder, trained, Path(), look=lambda: read.append(rows.pairs(encoder)))
    scores, clusters = {}, {}
    for candidate in choice.CANDIDATES:
        trainer(choice.with_objective(train, *candidate), data)
        pairs = read[-1]
        scores[candidate] = {"text→image": METRICS["R@1"](pairs.text_to_image(1)),
                             "image→text": METRICS["R@1"](pairs.image_to_text(1))}
        clusters = {"text→image": pairs.picture[pairs.owner], "image→text": pairs.picture}
    return found, scores, clusters


def holm(p_values: list[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given."""
    order, worst, made = np.argsort(p_values), 0.0, [0.0] * len(p_values)
    for rank, row in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[row]))
        made[row] = worst
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids-ade", type=Path)
    parser.add_argument("--flickr8k", type=Path)
    parser.add_argument("--bursts", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cells = {}
        if given.ids_ade:
            cells["ids-ade"] = (given.ids_ade, [])
        if given.bursts:
            scenes = make_scenes(Path(scratch), bursts=given.bursts, seed=7)
            cells |= {"scenes, s learned": (scenes, [("train.epochs", 15)]), "scenes, B 16, s 100": (scenes, SHARP)}
        if given.flickr8k:
            cells["Flickr8k, heads from scratch"] = (given.flickr8k, SCRATCH)
        report(cells, given.seeds)


def report(cells: dict, seeds: int) -> None:
    names = [choice.spelled(*candidate) for candidate in choice.CANDIDATES]
    lines, p_values = [], []
    for cell, (table, settings) in cells.items():
        made = []
        for seed in range(seeds):
            config = load_config(overrides=[("model.name", "starter"), ("train.tune", "heads"), ("data.split_seed", 0),
                                            *settings, ("train.seed", seed)])
            made.append(measure(table, config))
            print(f"# {cell}, seed {seed}: {made[-1][0].reason}", flush=True)
        chosen = [(found.objective, found.gamma) for found, _, _ in made]
        best = max(choice.CANDIDATES, key=lambda one: np.mean([part.mean() for _, scores, _ in made
                                                               for part in scores[one].values()]))
        for direction in ("text→image", "image→text"):
            arms = [np.mean([scores[one][direction] for _, scores, _ in made], axis=0) for one in choice.CANDIDATES]
            auto = np.mean([scores[own][direction] for own, (_, scores, _) in zip(chosen, made, strict=True)], axis=0)
            better = arms[choice.CANDIDATES.index(best)]
            found = paired(auto, better, made[0][2][direction])
            p_values.append(found.p_value)
            lines.append([cell, direction, *(f"{arm.mean():.1f}" for arm in arms), f"{auto.mean():.1f}",
                          ", ".join(choice.spelled(*one) for one in dict.fromkeys(chosen)), choice.spelled(*best),
                          f"{found.value:+.1f} ({found.low:+.1f} to {found.high:+.1f})"])
            print(f"# {' | '.join(lines[-1])} | p {found.p_value:.2g}", flush=True)
    header = ["collection", "direction", *names, "auto", "it chose", "best on test", "auto less the best", "p, Holm"]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
    for line, p_value in zip(lines, holm(p_values), strict=True):
        print("| " + " | ".join([*line, f"{p_value:.2g}"]) + " |")


if __name__ == "__main__":
    main()
