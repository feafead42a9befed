"""A tiny real encoder and pictures that take no time to draw."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from densecap_search.config import ModelConfig
from densecap_search.model.checkpoint import build_model, make_tokenizer
from densecap_search.model.encoder import DualEncoder, EncoderSpec, default_preprocess
from densecap_search.model.loading import load_encoder
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


def load(name: str, *, device: str = "auto", precision: str = "fp32", max_pixels: int | None = None, **model: Any
         ) -> DualEncoder:
    """The encoder of this name; model: more keywords of ModelConfig."""
    return load_encoder(ModelConfig(name, **model), device=device, precision=precision, max_pixels=max_pixels)


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


def free_port() -> int:
    """A port that nobody listens on, of those that the system hands out; tests run in several processes at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run_in_fork(words: list[str], log: Path, after: float | None = None) -> int:
    """A command in a fork, which costs no start-up: its exit code, or −9 where it was killed after some seconds.

    log: what it says. Call torch.set_num_threads(1) before: threads do not survive a fork.
    """
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr = log.open("w")
        torch.set_num_threads(1)
        from densecap_search.cli import main

        code = 70
        try:
            main(words, standalone_mode=True)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_dng(path: Path, width: int, height: int) -> None:
    """Sensor data as a camera writes them, red on the left and blue on the right, behind a preview of 16 pixels.

    A minimal DNG 1.4: IFD 0 is the preview, its SubIFD a mosaic of 16-bit R G / G B values.
    """
    mosaic = np.full((height, width), 4000, np.uint16)  # of green everywhere, little
    mosaic[0::2, 0:width // 2:2] = 40000
    mosaic[1::2, width // 2 + 1::2] = 40000
    preview, data = bytes(16 * 16 * 3), mosaic.tobytes()
    ratios = [(9, 10), (0, 1), (0, 1), (0, 1), (1, 1), (0, 1), (0, 1), (0, 1), (9, 10)]  # a colour matrix near sRGB's

    def ifd(start: int, tags: list[tuple[int, int, list[int] | bytes]]) -> bytes:
        """tag, type, values; what does not fit into four bytes stands behind the table."""
        table, behind = struct.pack("<H", len(tags)), b""
        after = start + 2 + 12 * len(tags) + 4
        for tag, kind, values in sorted(tags):
            raw = values if isinstance(values, bytes) else struct.pack("<" + {1: "B", 3: "H", 4: "I", 5: "I", 10: "i"}[kind] * len(values), *values)
            count = len(raw) // {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 10: 8}[kind]
            place = raw.ljust(4, b"\0") if len(raw) <= 4 else struct.pack("<I", after + len(behind))
            behind += raw if len(raw) > 4 else b""
            table += struct.pack("<HHI", tag, kind, count) + place
        return table + struct.pack("<I", 0) + behind

    at_preview, at_data = 8, 8 + len(preview)
    at_sub = at_data + len(data)
    sub = ifd(at_sub, [(254, 4, [0]), (256, 4, [width]), (257, 4, [height]), (258, 3, [16]), (259, 3, [1]), (262, 3, [32803]),
                       (273, 4, [at_data]), (277, 3, [1]), (278, 4, [height]), (279, 4, [len(data)]), (33421, 3, [2, 2]),
                       (33422, 1, [0, 1, 1, 2]), (50714, 4, [0]), (50717, 4, [65535])])
    at_main = at_sub + len(sub)
    main = ifd(at_main, [(254, 4, [1]), (256, 4, [16]), (257, 4, [16]), (258, 3, [8, 8, 8]), (259, 3, [1]), (262, 3, [2]),
                         (271, 2, b"Test\0"), (272, 2, b"Camera\0"), (273, 4, [at_preview]), (274, 3, [1]), (277, 3, [3]),
                         (278, 4, [16]), (279, 4, [len(preview)]), (330, 4, [at_sub]), (50706, 1, [1, 4, 0, 0]),
                         (50708, 2, b"Test Camera\0"), (50721, 10, [part for ratio in ratios for part in ratio]),
                         (50728, 5, [1, 1, 1, 1, 1, 1]), (50778, 3, [21])])
    path.write_bytes(b"II*\0" + struct.pack("<I", at_main) + preview + data + sub + main)


def one_bit_png(path: Path, width: int, height: int) -> None:
    """A valid white PNG of a bit a pixel, written without holding it."""
    _write_png(path, width, height, b"\xff" * (width // 8), bits=1, kind=0, level=9)


def plain_png(path: Path, side: int, colour: tuple[int, int, int]) -> None:
    """A valid square PNG of one colour, written without holding it."""
    _write_png(path, side, side, bytes(colour) * side, bits=8, kind=2, level=1)


def _write_png(path: Path, width: int, height: int, line: bytes, *, bits: int, kind: int, level: int) -> None:
    row = b"\0" + line
    packer = zlib.compressobj(level)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b""))
