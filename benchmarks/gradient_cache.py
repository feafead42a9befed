"""A batch in micro-batches against the same batch at once: memory and time of one step, as ratios."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from measure import report

BATCH, MICRO = 64, 8


def one_step(batch: int, micro: int) -> dict[str, float]:
    """Peak memory above the model's own (MiB) and seconds of the second of two steps."""
    from densecap_search.config import ModelConfig
    from densecap_search.model.loading import load_encoder
    from densecap_search.training.gradient_cache import backward_in_chunks
    from densecap_search.training.objectives import hn_clip

    encoder = load_encoder(ModelConfig("ViT-B-32", "random"), device="cpu")
    pixels = torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8)
    ids = encoder.tokenize(["a picture of two boats before a lighthouse at dawn, " * 5] * batch).ids
    chunks = list(zip(pixels.split(micro), ids.split(micro), strict=True))
    for parameter in encoder.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        started = time.perf_counter()
        backward_in_chunks(
            chunks, lambda chunk: (encoder.encode_image(chunk[0]), encoder.encode_text(chunk[1])),
            lambda image, text: hn_clip(image, text, encoder.logit_scale()), lambda loss: loss.backward(),
            torch.device("cpu"),
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"mib": (peak - before) / 1024, "seconds": time.perf_counter() - started}


def measured(batch: int, micro: int) -> dict[str, float]:
    """In a process of its own, whose peak is this step's."""
    done = subprocess.run([sys.executable, __file__, "--step", str(batch), str(micro)], capture_output=True, text=True,
                          check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", nargs=2, type=int, metavar=("BATCH", "MICRO"), help=argparse.SUPPRESS)
    step = parser.parse_args().step
    if step:
        print(json.dumps(one_step(*step)))
        return
    whole, parts, small = measured(BATCH, BATCH), measured(BATCH, MICRO), measured(MICRO, MICRO)
    ratios = {
        "memory_to_whole": parts["mib"] / whole["mib"], "memory_to_micro": parts["mib"] / small["mib"],
        "time_to_whole": parts["seconds"] / whole["seconds"],
    }
    report(f"{BATCH} pairs in micro-batches of {MICRO}, against the batch at once: "
           f"{ratios['memory_to_whole']:.2f} times the memory, {ratios['time_to_whole']:.2f} times the time; "
           f"against a batch of {MICRO}: {ratios['memory_to_micro']:.2f} times the memory",
           {"benchmark": "gradient_cache", **ratios})


if __name__ == "__main__":
    main()
