"""What can be named with --model, and which weights are on this machine."""

from __future__ import annotations

from dataclasses import dataclass

import open_clip
from huggingface_hub import try_to_load_from_cache
from open_clip.pretrained import get_pretrained_cfg

from densecap_search.model import starter


@dataclass(frozen=True)
class Named:
    """A model, the weights that open_clip knows for it, and those of them that need no download."""

    name: str
    pretrained: tuple[str, ...]
    present: tuple[str, ...]


def list_models() -> list[Named]:
    """The starter, then open_clip's dual encoders."""
    rows = [Named("starter", (), ("towers and heads",) if starter.weights_present() else ())]
    for name in open_clip.list_models():
        if "multimodal_cfg" in open_clip.get_model_config(name):
            continue  # captioning models are not dual encoders
        tags = tuple(open_clip.list_pretrained_tags_by_model(name))
        rows.append(Named(name, tags, tuple(tag for tag in tags if _present(name, tag))))
    return rows


def _present(name: str, tag: str) -> bool:
    parts = get_pretrained_cfg(name, tag).get("hf_hub", "").strip("/").split("/")
    if len(parts) < 2:
        return False
    files = ["/".join(parts[2:])] if len(parts) > 2 else _USUAL_FILES
    return any(isinstance(try_to_load_from_cache("/".join(parts[:2]), file), str) for file in files)


_USUAL_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")
