"""immich: the folder that its machine-learning server loads in place of one of the models it knows by name.

Layout, names and types as of immich's machine-learning service in 2026: ``session.run(None, {"image": float32
[1, 3, H, W]})`` and ``{"text": int32 [1, window]}``, row 0 of the first output; ``text_cfg.context_length`` of
config.json is the window, ``pad_token`` of tokenizer_config.json fills it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from densecap_search.errors import ModelError
from densecap_search.files import write_json
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing.agreement import Array, Loaded
from densecap_search.model.publishing.onnx_towers import image_sides, write_towers
from densecap_search.model.publishing.tokenizer_file import save_tokenizer

# numbers of a vector → a model of that size that immich knows; its server takes vectors of these sizes only
STANDS_FOR = {512: "ViT-B-16__openai", 640: "RN50x4__openai", 768: "ViT-L-14__openai", 1024: "RN50__openai",
              1152: "ViT-SO400M-14-SigLIP-384__webli"}
_RESIZES = ("shortest", "squash")


def stands_for(dim: int) -> tuple[int, str]:
    """The size that immich is given, filled up with zeros, and the model whose place the folder takes."""
    for size, name in STANDS_FOR.items():
        if dim <= size:
            return size, name
    raise ModelError(f"vectors of {dim} numbers are more than immich has room for ({max(STANDS_FOR)})")


def write(encoder: DualEncoder, folder: Path, dtype: str) -> None:
    """config.json, textual/{model.onnx, tokenizer.json, tokenizer_config.json}, visual/{model.onnx, …}."""
    preprocess, sides = encoder.spec.preprocess, image_sides(encoder)
    mode = preprocess.get("resize_mode", "shortest")
    if mode not in _RESIZES or sides[0] != sides[1]:
        raise ModelError("immich crops pictures to a square or squashes them, and this model wants a border or another "
                         "shape; train with --resize crop or squash, or publish with --as onnx")
    width, name = stands_for(encoder.dim)
    write_towers(encoder, folder / "visual" / "model.onnx", folder / "textual" / "model.onnx", dtype, width)
    save_tokenizer(encoder, folder / "textual")
    write_json(folder / "visual" / "preprocess_cfg.json", {
        "size": list(sides), "mode": "RGB", "mean": list(preprocess["mean"]), "std": list(preprocess["std"]),
        "interpolation": preprocess["interpolation"], "resize_mode": mode, "fill_color": 0})
    write_json(folder / "config.json", {
        "embed_dim": width, "vision_cfg": {"image_size": sides[0]},
        "text_cfg": {"context_length": encoder.context_length}, "stands_for": name})


def load(folder: Path) -> Loaded:
    """The steps of immich's server, one input at a time, with the libraries that it uses."""
    import onnxruntime

    settings = _json(folder / "visual" / "preprocess_cfg.json")
    image, text = (onnxruntime.InferenceSession(str(folder / tower / "model.onnx")) for tower in ("visual", "textual"))
    tokenizer = _tokenizer(folder)

    def pictures(images: Sequence[Image.Image]) -> Array:
        return np.stack([image.run(None, {"image": _pixels(one, settings)})[0][0] for one in images])

    def captions(texts: Sequence[str]) -> Array:
        rows = [tokenizer.encode(" ".join(one.split())).ids for one in texts]
        return np.stack([text.run(None, {"text": np.array([ids], dtype=np.int32)})[0][0] for ids in rows])

    return Loaded(f"onnxruntime {onnxruntime.__version__} by immich's steps", pictures, captions)


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    length = _json(folder / "config.json")["text_cfg"]["context_length"]
    pad = _json(folder / "textual" / "tokenizer_config.json")["pad_token"]
    tokenizer = Tokenizer.from_file(str(folder / "textual" / "tokenizer.json"))
    tokenizer.enable_padding(length=length, pad_token=pad, pad_id=tokenizer.token_to_id(pad))
    tokenizer.enable_truncation(max_length=length)
    return tokenizer


def _pixels(image: Image.Image, settings: dict[str, Any]) -> Array:
    """An RGB picture → float32 [1, 3, H, W]: shorter side to size and the middle of it, or squashed; normalised."""
    size, how = settings["size"][0], Image.Resampling[settings["interpolation"].upper()]
    if settings["resize_mode"] == "squash":
        image = image.resize((size, size), how)
    else:
        width, height = image.size
        short = min(width, height)
        image = image.resize((int(width / short * size), int(height / short * size)), how)
        left, top = int(image.width / 2 - size / 2), int(image.height / 2 - size / 2)
        image = image.crop((left, top, left + size, top + size))
    values = np.asarray(image, dtype=np.float32) / 255
    values = (values - np.array(settings["mean"], np.float32)) / np.array(settings["std"], np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def _json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
