"""open_clip: a folder for ``create_model_and_transforms("local-dir:DIR")``, or for a repository on the hub."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from open_clip.hf_model import HFTextEncoder
from open_clip.tokenizer import HFTokenizer
from PIL import Image
from safetensors.torch import save_file

from densecap_search.errors import ModelError
from densecap_search.files import atomic_path, write_json
from densecap_search.model.adapters import merged_state
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.heads import SkipHead, head_slot
from densecap_search.model.publishing.agreement import Array, Loaded

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"


def write(encoder: DualEncoder, folder: Path, dtype: str) -> None:
    """The configuration says the window and the activation, so that no flag is needed to load it."""
    if isinstance(encoder.model.text, HFTextEncoder):
        raise ModelError(f"{encoder.name} has a Hugging Face text tower, whose configuration open_clip looks up on "
                         "the hub by name and not in the folder; publish it with --as sentence-transformers, onnx or "
                         "immich")
    if any(isinstance(slot.head, SkipHead) for tower in (encoder.model.visual, encoder.model.text)
           if (slot := head_slot(tower))):
        raise ModelError(f"the heads of {encoder.name} are not of a kind that open_clip has; publish it with "
                         "--as onnx or immich")
    model_cfg = copy.deepcopy(encoder.spec.model_cfg)
    model_cfg["custom_text"] = True  # the towers are modules of their own, and so named in the weights
    model_cfg["text_cfg"]["context_length"] = encoder.context_length
    model_cfg["vision_cfg"].pop("timm_model_pretrained", None)
    write_json(folder / CONFIG, {"model_cfg": model_cfg, "preprocess_cfg": encoder.spec.preprocess})
    if isinstance(encoder.tokenizer, HFTokenizer):  # for local-dir: open_clip looks for it in the folder
        encoder.tokenizer.save_pretrained(str(folder))
    state = {name: value.detach().cpu().contiguous().clone() for name, value in merged_state(encoder).items()}
    with atomic_path(folder / WEIGHTS) as temporary:
        save_file(state, temporary)


def load(folder: Path) -> Loaded:
    """As a user of open_clip does it."""
    name = f"local-dir:{folder}"
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    tokenizer = open_clip.get_tokenizer(name)
    model.eval()

    @torch.inference_mode()
    def pictures(images: Sequence[Image.Image]) -> Array:
        return _rows(model.encode_image(torch.stack([preprocess(image) for image in images])))

    @torch.inference_mode()
    def captions(texts: Sequence[str]) -> Array:
        return _rows(model.encode_text(tokenizer(list(texts))))

    return Loaded(f"open_clip {open_clip.__version__}", pictures, captions)


def _rows(embeddings: Any) -> Array:
    rows: Array = embeddings.float().cpu().numpy().astype(np.float32)
    return rows
