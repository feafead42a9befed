"""What hn_clip costs beyond info_nce, as a share of a whole training step of a ViT-B/32-sized model at batch 128."""

from __future__ import annotations

import argparse

import torch
from measure import in_turns, quartiles, report

from densecap_search.config import ModelConfig
from densecap_search.model.loading import load_encoder
from densecap_search.training.objectives import OBJECTIVES

BATCH, DIM, MICRO = 128, 512, 8


def losses(rounds: int) -> dict[str, list[float]]:
    """Seconds of loss and gradient by the embeddings."""
    torch.manual_seed(0)
    image, text = (torch.nn.functional.normalize(torch.randn(BATCH, DIM), dim=1).requires_grad_() for _ in range(2))
    scale, groups = torch.tensor(50.0), torch.arange(BATCH)

    def run(name: str) -> None:
        torch.autograd.grad(OBJECTIVES[name].loss(image, text, scale, groups=groups), (image, text))

    return in_turns({name: lambda name=name: run(name) for name in ("info_nce", "hn_clip")}, rounds)


def towers(rounds: int) -> list[float]:
    """Seconds of a forward and backward pass of both towers for BATCH pairs, from a micro-batch."""
    encoder = load_encoder(ModelConfig("ViT-B-32", "random"), device="cpu")
    pixels = torch.randint(0, 256, (MICRO, 3, 224, 224), dtype=torch.uint8)
    ids = encoder.tokenize(["a picture of two boats before a lighthouse at dawn, " * 12] * MICRO).ids

    def run() -> None:
        (encoder.encode_image(pixels).sum() + encoder.encode_text(ids).sum()).backward()
        encoder.model.zero_grad()

    return [seconds * BATCH / MICRO for seconds in in_turns({"towers": run}, rounds)["towers"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    seconds, step = losses(20 * rounds), quartiles(towers(rounds))[1]
    extra = [hn - plain for hn, plain in zip(seconds["hn_clip"], seconds["info_nce"], strict=True)]
    share = [100 * value / step for value in quartiles(extra)]
    report(f"hn_clip adds {share[1]:.3f} % to a step (quartiles {share[0]:.3f} to {share[2]:.3f}); its loss takes "
           f"{quartiles(seconds['hn_clip'])[1] / quartiles(seconds['info_nce'])[1]:.2f} times as long as info_nce's",
           {"benchmark": "objectives", "batch": BATCH, "extra_percent_of_step": share})


if __name__ == "__main__":
    main()
