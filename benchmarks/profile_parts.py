"""Where the time goes: shares of the operators' own CPU time in a fine-tuning step and in a pass over pictures, and
milliseconds of one core that a picture of an index costs: reading and hashing, decoding, the tower.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from index_speed import SIZES, make_pictures
from measure import in_turns, machine, quartiles, report
from torch.profiler import ProfilerActivity, profile
from training_step import captions, ours

from densecap_search.cli.memory import keep_freed_memory
from densecap_search.config import ModelConfig
from densecap_search.embedding.towers import read_pixels
from densecap_search.files import hash_file
from densecap_search.model.device import streams
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.training.objectives import hn_clip

SHOWN = 8  # operators


def shares(run: Callable[[], object]) -> dict[str, float]:
    """Operator → share of the CPU time that it spends itself, largest first; the first run does not count."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run()
    rows = profiled.key_averages()
    whole = sum(row.self_cpu_time_total for row in rows)
    found = {row.key: round(row.self_cpu_time_total / whole, 3) for row in rows}
    return dict(sorted(found.items(), key=lambda pair: -pair[1])[:SHOWN])


def image_pass(encoder: DualEncoder, pixels: torch.Tensor) -> Callable[[], object]:
    outputs_of, parts = encoder.image_pass(), pixels.split(encoder.image_batch)
    return lambda: [outputs_of(part) for part in parts]


def of_a_picture(encoder: DualEncoder, run: Callable[[], object], pictures: int) -> dict[str, dict[str, float]]:
    """Size of pictures → what → milliseconds of one core a picture. run: a pass of the tower over so many."""
    found = {}
    with tempfile.TemporaryDirectory() as work:
        for name, size in SIZES.items():
            paths = make_pictures(Path(work) / name, size, 8)
            parts: dict[str, Callable[[], object]] = {
                "read and hash": lambda paths=paths: [hash_file(path) for path in paths],  # type: ignore[misc]
                "decode and resize": lambda paths=paths: [read_pixels(encoder, path) for path in paths]}  # type: ignore[misc]
            seconds = in_turns(parts, 3)
            found[name] = {part: round(1000 * quartiles(times)[1] / len(paths), 2) for part, times in seconds.items()}
            found[name]["tower"] = round(1000 * quartiles(in_turns({"tower": run}, 3)["tower"])[1] / pictures, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16, help="Pairs of the step.")
    parser.add_argument("--pictures", type=int, default=16)
    options = parser.parse_args()
    keep_freed_memory()
    pixels = torch.randint(0, 256, (max(options.pictures, options.batch), 3, 224, 224), dtype=torch.uint8)
    found: dict[str, dict[str, float]] = {}
    costs: dict[str, dict[str, dict[str, float]]] = {}
    for name, pretrained in (("starter", None), ("ViT-B-32", "random")):
        encoder = load_encoder(ModelConfig(name, pretrained=pretrained), device="cpu")
        with streams() as (_, begin):  # as each of the threads that encode
            begin()
            run = image_pass(encoder, pixels[: options.pictures])
            found[f"pictures, {name}"] = shares(run)
            costs[name] = of_a_picture(encoder, run, options.pictures)
    encoder.model.train()
    step = ours(encoder, pixels[: options.batch], captions(options.batch), hn_clip)
    found[f"a step of {options.batch} pairs, ViT-B-32"] = shares(step)
    report("\n".join(f"{name}: " + ", ".join(f"{key} {100 * value:.0f} %" for key, value in rows.items())
                     for name, rows in found.items()),
           {"benchmark": "profile", "shares": found, "milliseconds_a_picture": costs, "machine": machine()})


if __name__ == "__main__":
    main()
