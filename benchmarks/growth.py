"""How costs grow: a step with its batch, a caption with its length, an index with its pictures.

Every figure is the median of a few runs in turns, and what it is of one pair, caption or picture stands beside it.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch
from index_speed import SIZES, make_pictures
from index_speed import ours as index
from measure import in_turns, machine, quartiles, report
from training_step import captions
from training_step import ours as step

from densecap_search.cli.memory import keep_freed_memory
from densecap_search.config import ModelConfig
from densecap_search.embedding.texts import embed_texts
from densecap_search.model.loading import load_encoder
from densecap_search.training.objectives import hn_clip

STARTER, RANDOM = ModelConfig("starter"), ModelConfig("ViT-B-32", pretrained="random")


def steps(batches: list[int], rounds: int) -> dict[int, float]:
    """Pairs in a batch → seconds of a step."""
    encoder = load_encoder(RANDOM, device="cpu")
    encoder.model.train()
    pixels = torch.randint(0, 256, (max(batches), 3, 224, 224), dtype=torch.uint8)
    texts = captions(max(batches))
    runs = {str(size): step(encoder, pixels[:size], texts[:size], hn_clip) for size in batches}
    return {int(name): quartiles(seconds)[1] for name, seconds in in_turns(runs, rounds).items()}


def lengths(words: list[int], rounds: int) -> dict[int, float]:
    """Words of a caption (each a token) → seconds of 32 such captions through the starter's text tower."""
    encoder = load_encoder(STARTER, device="cpu")
    texts = {count: [" ".join(["boat"] * (count - 1) + [f"{number}"]) for number in range(32)] for count in words}
    runs = {str(count): partial(embed_texts, encoder, texts[count], cached=False) for count in words}
    return {int(name): quartiles(seconds)[1] for name, seconds in in_turns(runs, rounds).items()}


def indexes(counts: list[int], rounds: int) -> dict[int, float]:
    """Pictures of 500 pixels → seconds of an index of them with the starter, the model loaded."""
    encoder, found = load_encoder(STARTER, device="cpu"), {}
    for count in counts:
        with tempfile.TemporaryDirectory() as work:
            make_pictures(Path(work) / "pictures", SIZES["500 px"], count)
            run = index(encoder, STARTER, Path(work) / "pictures", Path(work))
            found[count] = quartiles(in_turns({"index": run}, rounds)["index"])[1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--words", type=int, nargs="+", default=[16, 64, 128, 240])
    parser.add_argument("--pictures", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    keep_freed_memory()
    found = {"a step, by pairs": steps(options.batches, options.rounds),
             "32 captions, by words": lengths(options.words, options.rounds),
             "an index, by pictures": indexes(options.pictures, options.rounds)}
    report("\n".join(f"{name}: " + ", ".join(f"{size} {seconds:.2f} s ({1000 * seconds / size:.1f} ms each)"
                                             for size, seconds in rows.items()) for name, rows in found.items()),
           {"benchmark": "growth", "seconds": found, "machine": machine()})


if __name__ == "__main__":
    main()
