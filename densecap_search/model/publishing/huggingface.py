"""Hugging Face: a folder for ``CLIPModel.from_pretrained`` and ``CLIPProcessor.from_pretrained``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.transformer import TextTransformer, VisionTransformer
from PIL import Image
from torch import Tensor

from densecap_search.errors import ModelError
from densecap_search.files import write_json
from densecap_search.model.adapters import merged_state
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing.agreement import Array, Loaded
from densecap_search.model.publishing.onnx_towers import image_sides
from densecap_search.model.publishing.tokenizer_file import as_tokenizers

_END, _START = 49407, 49406
_RESAMPLE = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers
_NAMES = tuple((re.compile(pattern), new) for pattern, new in (
    (r"^text\.positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^text\.token_embedding\.", "text_model.embeddings.token_embedding."),
    (r"^text\.ln_final\.", "text_model.final_layer_norm."),
    (r"^visual\.positional_embedding$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.class_embedding$", "vision_model.embeddings.class_embedding"),
    (r"^visual\.conv1\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual\.ln_pre\.", "vision_model.pre_layrnorm."),  # so Hugging Face spells it
    (r"^visual\.ln_post\.", "vision_model.post_layernorm."),
    (r"^text\.transformer\.resblocks\.", "text_model.encoder.layers."),
    (r"^visual\.transformer\.resblocks\.", "vision_model.encoder.layers."),
    (r"\.ln_([12])\.", r".layer_norm\1."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"\.attn\.", ".self_attn."),
))


def write(encoder: DualEncoder, folder: Path, dtype: str) -> None:
    """config.json, weights, tokenizer and preprocessing, by transformers itself."""
    from transformers import CLIPModel

    state = to_huggingface(merged_state(encoder))
    model = CLIPModel(_config(encoder, state))
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [name for name in (*missing, *unexpected) if not name.endswith("position_ids")]
    if wrong:
        raise ModelError(f"{encoder.name} is not built as Hugging Face's CLIPModel is ({wrong[0]}); publish it with "
                         "--as open_clip, onnx or immich")
    model.save_pretrained(folder)
    _save_tokenizer(encoder, folder)
    write_json(folder / "preprocessor_config.json", _preprocessing(encoder))


def load(folder: Path) -> Loaded:
    """As a user of transformers does it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    processor = transformers.CLIPProcessor.from_pretrained(folder)

    @torch.inference_mode()
    def pictures(images: Sequence[Image.Image]) -> Array:
        return rows_of(model.get_image_features(**processor(images=list(images), return_tensors="pt")))

    @torch.inference_mode()
    def captions(texts: Sequence[str]) -> Array:
        return rows_of(model.get_text_features(**processor(text=list(texts), padding=True, truncation=True,
                                                           return_tensors="pt")))

    return Loaded(f"transformers {transformers.__version__}", pictures, captions)


def rows_of(features: Any) -> Array:
    """What get_image_features and get_text_features give: a tensor, or since transformers 5 an output that has it."""
    rows: Array = getattr(features, "pooler_output", features).float().cpu().numpy().astype(np.float32)
    return rows


def to_huggingface(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of open_clip's CustomTextCLIP under the names of CLIPModel, q, k and v apart, projections as [D, W]."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        value = value.detach().cpu()
        if name in ("text.text_projection", "visual.proj"):
            tower = "text" if name.startswith("text") else "visual"
            found[f"{tower}_projection.weight"] = value.T.contiguous()
        elif ".attn.in_proj_" in name:
            kind = name.rpartition("_")[2]
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                found[_renamed(name.replace(f"in_proj_{kind}", f"{letter}_proj.{kind}"))] = part.contiguous()
        elif name not in ("text.attn_mask", "logit_bias"):
            found[_renamed(name)] = value.contiguous()
    return found


def _renamed(name: str) -> str:
    for pattern, new in _NAMES:
        name = pattern.sub(new, name)
    return name


def _config(encoder: DualEncoder, state: dict[str, Tensor]) -> Any:
    """CLIPConfig from the modules; ModelError where CLIPModel has no word for what they do."""
    from transformers import CLIPConfig

    image, text = encoder.model.visual, encoder.model.text
    if not isinstance(image, VisionTransformer) or not isinstance(text, TextTransformer):
        raise ModelError(f"the towers of {encoder.name} ({type(image).__name__}, {type(text).__name__}) are not those "
                         "of Hugging Face's CLIPModel; publish it with --as onnx or immich")
    strange = [word for word, found in (
        ("attention over all patches", image.attn_pool is not None), ("a pooled average", image.pool_type != "tok"),
        ("a text tower without a causal mask", text.attn_mask is None), ("another pooling of captions",
         text.pool_type not in ("argmax", "eos")), ("a class token after the caption", text.cls_emb is not None),
    ) if found]
    if strange:
        raise ModelError(f"{encoder.name} has {' and '.join(strange)}, which Hugging Face's CLIPModel has not; publish "
                         "it with --as open_clip, onnx or immich")
    activation = "quick_gelu" if encoder.spec.model_cfg.get("quick_gelu") else "gelu"

    def tower(module: Any, prefix: str) -> dict[str, Any]:
        block = module.transformer.resblocks[0]
        heads = getattr(block.attn, "num_heads", None)
        return {"hidden_size": block.ln_1.weight.shape[0], "num_hidden_layers": len(module.transformer.resblocks),
                "num_attention_heads": heads, "hidden_act": activation, "layer_norm_eps": block.ln_1.eps,
                "intermediate_size": state[f"{prefix}.encoder.layers.0.mlp.fc1.weight"].shape[0]}

    words = state["text_model.embeddings.token_embedding.weight"].shape[0]
    config = CLIPConfig(
        projection_dim=encoder.dim,
        text_config={**tower(text, "text_model"), "max_position_embeddings": encoder.context_length,
                     "vocab_size": words, "bos_token_id": _START, "eos_token_id": _END, "pad_token_id": _END,
                     "projection_dim": encoder.dim},
        vision_config={**tower(image, "vision_model"), "image_size": image_sides(encoder)[0],
                       "patch_size": image.patch_size[0], "projection_dim": encoder.dim})
    config.architectures = ["CLIPModel"]
    return config


def _save_tokenizer(encoder: DualEncoder, folder: Path) -> None:
    made, _ = as_tokenizers(encoder)
    made.no_padding()
    made.no_truncation()  # transformers cuts and pads by its own settings
    made.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
             "pad_token": "<|endoftext|>"}
    write_json(folder / "special_tokens_map.json", names)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", "do_lower_case": True,
                                                  "model_max_length": encoder.context_length, **names})


def _preprocessing(encoder: DualEncoder) -> dict[str, Any]:
    settings, (height, width) = encoder.spec.preprocess, image_sides(encoder)
    mode = settings.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash") or height != width:
        raise ModelError("Hugging Face's CLIPProcessor crops pictures to a square or squashes them, and this model "
                         "wants a border or another shape; train with --resize crop or squash, or publish with "
                         "--as open_clip")
    return {
        "image_processor_type": "CLIPImageProcessor", "do_resize": True, "do_center_crop": mode == "shortest",
        "size": {"shortest_edge": height} if mode == "shortest" else {"height": height, "width": width},
        "crop_size": {"height": height, "width": width}, "resample": _RESAMPLE[settings["interpolation"]],
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_convert_rgb": True,
        "image_mean": list(settings["mean"]), "image_std": list(settings["std"]),
    }

