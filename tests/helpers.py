"""A tiny real encoder and pictures that take no time to draw."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw

from densecap_search.model.checkpoint import build_model, make_tokenizer
from densecap_search.model.encoder import DualEncoder, EncoderSpec, default_preprocess
from densecap_search.model.window import set_context_length

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
BERT = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (30, 60, 220), "yellow": (240, 220, 40)}
PLACES = {"left": 0, "middle": 10, "right": 20}
SHAPES = ("ball", "box")


def make_tiny(context_length: int = 248, seed: int = 0) -> DualEncoder:
    """A real open_clip model of 1.6 million random parameters."""
    spec = EncoderSpec("tiny", TINY, default_preprocess(size=32), context_length)
    torch.manual_seed(seed)
    model = build_model(spec)
    set_context_length(model.text, context_length)
    return DualEncoder(model, spec, make_tokenizer(spec, None))


def make_mixed(folder: Path, trunk: str = "test_efficientnet") -> DualEncoder:
    """timm's smallest convolutional network (or ViT) and a BERT of three layers, with random weights."""
    from transformers import BertConfig

    BertConfig(**BERT).save_pretrained(folder)
    cfg = {"embed_dim": 16, "vision_cfg": {"timm_model_name": trunk, "timm_proj": "linear", "image_size": 64,
                                           "timm_pool": "token" if "vit" in trunk else "avg"},
           "text_cfg": {"hf_model_name": "x", "hf_proj_type": "linear", "hf_pooler_type": "mean_pooler"}}
    torch.manual_seed(0)
    spec = EncoderSpec("mixed", cfg, default_preprocess(size=64), 32)
    return DualEncoder(build_model(spec, folder), spec, None)


def draw_photo(path: Path, colour: str, place: str, shape: str) -> str:
    """A 32-pixel picture of one thing, and its caption."""
    image = Image.new("RGB", (32, 32), "white")
    box = (PLACES[place], 10, PLACES[place] + 11, 21)
    draw = ImageDraw.Draw(image)
    (draw.ellipse if shape == "ball" else draw.rectangle)(box, fill=COLOURS[colour])
    image.save(path)
    return f"A {colour} {shape} lies on the {place} of a white table, and nothing else can be seen."


def make_photos(folder: Path) -> Path:
    """24 pictures with side files."""
    folder.mkdir(parents=True, exist_ok=True)
    for colour in COLOURS:
        for place in PLACES:
            for shape in SHAPES:
                path = folder / f"{colour}-{place}-{shape}.png"
                path.with_suffix(".txt").write_text(draw_photo(path, colour, place, shape), encoding="utf-8")
    return folder
