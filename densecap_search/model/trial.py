"""How a pass over pictures is quickest on this machine: asked by trying it, and remembered.

Whether bfloat16 is twice as fast as float32 or half as fast is the CPU's, and nothing that it says of itself tells.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from densecap_search.files import cache_folder, hash_text, write_json
from densecap_search.model.device import HALVED
from densecap_search.model.encoder import DualEncoder

SHARE, MOST = 0.05, 10.0  # of the job, and in seconds: what a trial may take
GAIN = 1.1  # below it, float32 wins
MEAN_COSINE, LEAST_COSINE = 0.999, 0.995  # to float32, of the pictures that are tried
PICTURES = 8
ROUNDS = 2
PASSES = 10  # that a trial takes at most, counted in those of float32


@dataclass(frozen=True)
class Tried:
    """How many times as fast as float32 the other way is, the cosines to it, and which of the two is taken."""

    times_as_fast: float
    mean: float
    least: float

    @property
    def precision(self) -> str:
        """fp32, or HALVED where that is quicker by GAIN and its vectors are near enough."""
        near = self.mean >= MEAN_COSINE and self.least >= LEAST_COSINE
        return HALVED if near and self.times_as_fast >= GAIN else "fp32"

    def __str__(self) -> str:
        return (f"pictures go through the tower in {self.precision}: bf16 weights are {self.times_as_fast:.2f} times "
                f"as fast here, with a cosine of {self.mean:.4f} to fp32 on average and {self.least:.4f} at least")


def try_precisions(encoder: DualEncoder, pixels: Tensor, count: int) -> Tried | None:
    """Compare on some pictures, uint8 [P, 3, H, W] with P up to PICTURES, of a job of count pictures.

    None where there is nothing to choose (another device than the CPU, another precision asked for), or the job is too
    small for a trial. What was found before for this machine and tower is not tried again.
    """
    if encoder.device.type != "cpu" or encoder.image_precision != "fp32" or not len(pixels):
        return None
    place = _place(encoder)
    known = _known(place)
    if known is not None:
        return known
    whole = encoder.image_pass()
    second = _seconds(lambda: whole(pixels))  # the first run pays for memory, so it is rather too long
    if PASSES * second > min(MOST, SHARE * count * second / len(pixels)):
        return None
    encoder.halved = True
    try:
        half = encoder.image_pass()
    finally:
        encoder.halved = False
    cosines = torch.nn.functional.cosine_similarity(whole(pixels), half(pixels)).numpy()
    rounds = [(_seconds(lambda: whole(pixels)), _seconds(lambda: half(pixels))) for _ in range(ROUNDS)]
    tried = Tried(float(np.median([a / b for a, b in rounds])), float(cosines.mean()), float(cosines.min()))
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, {"times_as_fast": tried.times_as_fast, "mean": tried.mean, "least": tried.least})
    return tried


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _place(encoder: DualEncoder) -> Path:
    """Of this machine, torch and tower."""
    cpu = next((line for line in _cpu() if line.startswith("model name")), "")
    key = hash_text(cpu, torch.__version__, torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads()),
                    encoder.tower_fingerprint("image"))
    return cache_folder() / "trials" / f"{key}.json"


def _cpu() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _known(place: Path) -> Tried | None:
    try:
        said = json.loads(place.read_bytes())
        return Tried(float(said["times_as_fast"]), float(said["mean"]), float(said["least"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
