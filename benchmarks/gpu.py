"""What a GPU makes of a fine-tuning step: each setting alone, all of them, and gradient caching at batch 1,024.

Fits in ten minutes on one GPU. Pairs a second, peak memory, and the largest share of a step that a setting saves; the
baseline is float32 with plain AdamW and pageable copies. Prints nothing but a message where there is no GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from measure import quartiles, report
from training_step import captions

from densecap_search.config import ModelConfig
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.training.gradient_cache import backward_in_chunks
from densecap_search.training.objectives import hn_clip

SETTINGS: dict[str, dict[str, bool]] = {
    "fp32": {}, "fused AdamW": {"fused": True}, "pinned, asynchronous copies": {"pinned": True},
    "bf16": {"bf16": True}, "bf16, compiled": {"bf16": True, "compiled": True},
    "bf16, fused, pinned": {"bf16": True, "fused": True, "pinned": True},
}


def load(model: str, *, bf16: bool, compiled: bool) -> DualEncoder:
    encoder = load_encoder(ModelConfig(model, pretrained="random"), device="cuda", precision="bf16" if bf16 else "fp32")
    if compiled:
        for tower in (encoder.model.visual, encoder.model.text):
            tower.compile(dynamic=True)
    encoder.model.train()
    return encoder


def make_step(encoder: DualEncoder, batch: int, micro: int, *, fused: bool, pinned: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=1e-6, fused=fused)
    pixels = torch.randint(0, 256, (batch, 3, encoder.image_size, encoder.image_size), dtype=torch.uint8)
    ids = encoder.tokenize(captions(batch)).ids
    if pinned:
        pixels, ids = pixels.pin_memory(), ids.pin_memory()
    chunks = list(zip(pixels.split(micro), ids.split(micro), strict=True))

    def embed(chunk: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        images = chunk[0].to("cuda", non_blocking=pinned)
        return encoder.encode_image(images), encoder.encode_text(chunk[1])

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        backward_in_chunks(chunks, embed, lambda image, text: hn_clip(image, text, encoder.logit_scale()),
                           lambda loss: loss.backward(), torch.device("cuda"))
        optimizer.step()

    return step


def measure(step: Callable[[], None], batch: int, seconds: float) -> dict[str, object]:
    """Pairs a second, quartiles over steps for about so many seconds after three that do not count; peak GiB."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    rates, began = [], time.perf_counter()
    while len(rates) < 5 or time.perf_counter() - began < seconds:
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        rates.append(batch / (time.perf_counter() - started))
    return {"pairs_a_second": quartiles(rates), "peak_gib": torch.cuda.max_memory_allocated() / 2**30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-B-16")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=15, help="For each setting.")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here: nothing was measured")
        return
    found = {}
    for name, wanted in SETTINGS.items():
        encoder = load(options.model, bf16="bf16" in wanted, compiled="compiled" in wanted)
        step = make_step(encoder, options.batch, options.batch, fused="fused" in wanted, pinned="pinned" in wanted)
        found[name] = measure(step, options.batch, options.seconds)
        del encoder, step
        torch.cuda.empty_cache()
    encoder = load(options.model, bf16=True, compiled=False)
    found["bf16, 1,024 pairs in micro-batches"] = measure(
        make_step(encoder, 1024, options.batch, fused=True, pinned=True), 1024, options.seconds)
    report("\n".join(f"{name}: {row['pairs_a_second'][1]:.0f} pairs/s, {row['peak_gib']:.1f} GiB"  # type: ignore[index]
                     for name, row in found.items()),
           {"benchmark": "gpu", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "runs": found})


if __name__ == "__main__":
    main()
