"""Pairs a second of a fine-tuning step: ours, open_clip's own way, and the schedules of encoder passes of two peers.

ViT-B/32 with random weights, float32, window 248, captions of dense collections' lengths. open_clip's way is the body
of its training program: its model, its loss, tokens padded to the window, AdamW as it makes it. The schedules (GOAL:
two pictures and two captions a pair, each passed twice; StructXLIP, K = 2: four pictures and two captions) are loops of
our own with a plain contrastive loss: they count passes, and are not those programs.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable

import open_clip
import torch
from measure import a_second, in_turns, machine, report, times_as_fast
from open_clip.loss import ClipLoss
from torch import nn

from densecap_search.cli.memory import keep_freed_memory
from densecap_search.config import ModelConfig
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.loading import load_encoder
from densecap_search.model.parts import PASS_TOKENS, cut
from densecap_search.training.objectives import hn_clip, info_nce

WINDOW = 248
LR = 1e-6
WORDS = ("a", "red", "boat", "lies", "before", "the", "white", "lighthouse", "and", "two", "gulls", "stand", "on", "it")


def captions(count: int, seed: int = 0) -> list[str]:
    """Words; lengths in tokens as in DOCCI: mean near 140, a tail that the window cuts."""
    draw = random.Random(seed)
    lengths = [min(400, max(20, round(draw.lognormvariate(4.85, 0.42)))) for _ in range(count)]
    return [" ".join(draw.choice(WORDS) for _ in range(length)) for length in lengths]


def ours(encoder: DualEncoder, pixels: torch.Tensor, texts: list[str], loss: Callable[..., torch.Tensor]
         ) -> Callable[[], None]:
    """As training/loop.py steps, without what is measured and saved meanwhile."""
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=LR, weight_decay=0.05, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        ids = encoder.tokenize(texts).ids
        loss(encoder.encode_image(pixels), encoder.encode_text(ids), encoder.logit_scale()).backward()
        torch.nn.utils.clip_grad_norm_(encoder.model.parameters(), 1.0)
        optimizer.step()

    return step


def open_clips(encoder: DualEncoder, pixels: torch.Tensor, texts: list[str]) -> Callable[[], None]:
    """The body of open_clip_train.train.train_one_epoch without its distributed parts."""
    model, tokenizer, loss = encoder.model, open_clip.SimpleTokenizer(context_length=WINDOW), ClipLoss()
    optimizer = torch.optim.AdamW([
        {"params": [value for value in model.parameters() if value.ndim < 2], "weight_decay": 0.0},
        {"params": [value for value in model.parameters() if value.ndim >= 2], "weight_decay": 0.2},
    ], lr=LR, betas=(0.9, 0.98), eps=1e-6)

    def step() -> None:
        images = encoder.normalise(pixels)
        optimizer.zero_grad()
        image, text, scale = model(images, tokenizer(texts))[:3]
        loss(image, text, scale).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))

    return step


def schedule(encoder: DualEncoder, pixels: torch.Tensor, texts: list[str], pictures: int, captions_: int, times: int
             ) -> Callable[[], None]:
    """pictures and captions_ passes a pair, all of them `times` times, tokens padded to the window."""
    model, ids = encoder.model, open_clip.SimpleTokenizer(context_length=WINDOW)(texts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(times):
            image = [nn.functional.normalize(model.visual(encoder.normalise(pixels)), dim=-1) for _ in range(pictures)]
            text = [nn.functional.normalize(model.text(ids), dim=-1) for _ in range(captions_)]
            losses = [info_nce(a, text[number % captions_], encoder.logit_scale()) for number, a in enumerate(image)]
            torch.stack(losses).sum().backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--schedule-batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=["step", "schedules"], default=["step", "schedules"])
    options = parser.parse_args()
    keep_freed_memory()
    texts = captions(options.batch)
    pixels = torch.randint(0, 256, (options.batch, 3, 224, 224), dtype=torch.uint8)
    encoder = load_encoder(ModelConfig("ViT-B-32", pretrained="random"), device="cpu")
    encoder.model.train()
    lines: list[str] = []
    found: dict[str, object] = {}
    if "step" in options.parts:
        seconds = in_turns({"ours": ours(encoder, pixels, texts, hn_clip),
                            "info_nce": ours(encoder, pixels, texts, info_nce),
                            "open_clip": open_clips(encoder, pixels, texts)}, options.rounds)
        fast = times_as_fast(seconds)
        found["step"] = {"batch": options.batch, "times_as_fast": fast, "tokens": tokens(encoder, texts),
                         "pairs_a_second": a_second(seconds, options.batch)}
        lines.append(f"A step of {options.batch} pairs: {fast['open_clip'][1]:.2f} times as fast as open_clip's")
    if "schedules" in options.parts:
        few, short = pixels[: options.schedule_batch], texts[: options.schedule_batch]
        passes = in_turns({"ours": ours(encoder, few, short, hn_clip), "goal": schedule(encoder, few, short, 2, 2, 2),
                           "structxlip": schedule(encoder, few, short, 4, 2, 1)}, options.rounds)
        fast = times_as_fast(passes)
        found["schedules"] = {"batch": options.schedule_batch, "times_as_fast": fast,
                              "pairs_a_second": a_second(passes, options.schedule_batch)}
        lines.append(f"A step of {options.schedule_batch} pairs: {fast['goal'][1]:.2f} times GOAL's schedule, "
                     f"{fast['structxlip'][1]:.2f} times StructXLIP's")
    report("\n".join(lines), {"benchmark": "training_step", **found, "machine": machine()})


def tokens(encoder: DualEncoder, texts: list[str]) -> dict[str, int]:
    """Of the captions, those that the text tower reads, and those that it would read padded to the window."""
    lengths = sorted(min(WINDOW, length) for length in encoder.lengths(texts))
    read, at = 0, 0
    for size in cut(lengths, PASS_TOKENS["cpu"]):
        at += size
        read += size * lengths[at - 1]
    return {"of captions": sum(lengths), "read": read, "padded": WINDOW * len(lengths)}


if __name__ == "__main__":
    main()
