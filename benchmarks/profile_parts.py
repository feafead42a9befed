"""Where the time of a fine-tuning step and of a pass over pictures goes: shares of the operators' own CPU time."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from measure import machine, report
from torch.profiler import ProfilerActivity, profile
from training_step import captions, ours

from densecap_search.cli.memory import keep_freed_memory
from densecap_search.config import ModelConfig
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


def image_pass(encoder: DualEncoder, pixels: torch.Tensor) -> None:
    outputs_of = encoder.image_pass()
    for part in pixels.split(encoder.image_batch):
        outputs_of(part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16, help="Pairs of the step.")
    parser.add_argument("--pictures", type=int, default=16)
    options = parser.parse_args()
    keep_freed_memory()
    pixels = torch.randint(0, 256, (max(options.pictures, options.batch), 3, 224, 224), dtype=torch.uint8)
    found = {}
    for name, pretrained in (("starter", None), ("ViT-B-32", "random")):
        encoder = load_encoder(ModelConfig(name, pretrained=pretrained), device="cpu")
        found[f"pictures, {name}"] = shares(partial(image_pass, encoder, pixels[: options.pictures]))
    encoder.model.train()
    step = ours(encoder, pixels[: options.batch], captions(options.batch), hn_clip)
    found[f"a step of {options.batch} pairs, ViT-B-32"] = shares(step)
    report("\n".join(f"{name}: " + ", ".join(f"{key} {100 * value:.0f} %" for key, value in rows.items())
                     for name, rows in found.items()), {"benchmark": "profile", "shares": found, "machine": machine()})


if __name__ == "__main__":
    main()
