"""Captions a second through the text tower: ours, which never pads to the window, against batches as they come."""

from __future__ import annotations

import argparse

import torch
from measure import a_second, in_turns, machine, report, times_as_fast
from training_step import captions

from densecap_search.cli.memory import keep_freed_memory
from densecap_search.config import ModelConfig
from densecap_search.embedding.texts import embed_texts
from densecap_search.model.loading import load_encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--pretrained")
    parser.add_argument("--captions", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    keep_freed_memory()
    encoder = load_encoder(ModelConfig(options.model, pretrained=options.pretrained), device="cpu")
    texts = captions(options.captions)

    @torch.no_grad()
    def as_they_come() -> None:
        for at in range(0, len(texts), 64):
            block = texts[at:at + 64]
            encoder.model.text(encoder.tokenizer(block, context_length=encoder.context_length))

    seconds = in_turns({"ours": lambda: embed_texts(encoder, texts, cached=False), "padded": as_they_come},
                       options.rounds)
    fast = times_as_fast(seconds)
    report(f"{len(texts)} captions through {encoder.name}: {fast['padded'][1]:.2f} times as fast as padded to "
           f"{encoder.context_length}",
           {"benchmark": "captions", "model": encoder.name, "times_as_fast": fast,
            "captions_a_second": a_second(seconds, len(texts)), "machine": machine()})


if __name__ == "__main__":
    main()
