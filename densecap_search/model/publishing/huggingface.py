"""Hugging Face: a folder for ``AutoModel.from_pretrained`` and ``AutoProcessor.from_pretrained``.

Towers of CLIP become a CLIPModel, those of SigLIP (timm's ViT that pools by attention, text without a causal mask) a
SiglipModel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.timm_model import TimmModel
from open_clip.transformer import TextTransformer, VisionTransformer
from PIL import Image
from timm.layers import AttentionPoolLatent
from torch import Tensor

from densecap_search.errors import ModelError
from densecap_search.files import write_json
from densecap_search.model.adapters import merged_state
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing.agreement import Array, Loaded
from densecap_search.model.publishing.onnx_towers import image_sides
from densecap_search.model.publishing.tokenizer_file import as_tokenizers
from densecap_search.model.siglip import custom_to_siglip

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
    as_model(encoder).save_pretrained(folder)
    if is_siglip(encoder):
        _save_own_tokenizer(encoder, folder)
    else:
        _save_tokenizer(encoder, folder)
    write_json(folder / "preprocessor_config.json", _preprocessing(encoder))


def as_model(encoder: DualEncoder) -> Any:
    """The encoder as a CLIPModel or SiglipModel; ModelError where those classes are built in another way."""
    from transformers import CLIPModel, SiglipModel

    if is_siglip(encoder):
        state = custom_to_siglip(merged_state(encoder))
        model: Any = SiglipModel(_siglip_config(encoder, state))
    else:
        state = to_huggingface(merged_state(encoder))
        model = CLIPModel(_config(encoder, state))
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [name for name in (*missing, *unexpected) if not name.endswith("position_ids")]
    if wrong:
        raise ModelError(f"{encoder.name} is not built as Hugging Face's {type(model).__name__} is ({wrong[0]}); "
                         "publish it with --as open_clip, onnx or immich")
    return model.eval()


def is_siglip(encoder: DualEncoder) -> bool:
    """Whether the towers are those of SigLIP, as open_clip has them."""
    image, text = encoder.model.visual, encoder.model.text
    return (isinstance(image, TimmModel) and isinstance(getattr(image.trunk, "attn_pool", None), AttentionPoolLatent)
            and isinstance(text, TextTransformer) and text.attn_mask is None and text.pool_type == "last")


def load(folder: Path) -> Loaded:
    """As a user of transformers does it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return in_hands(f"transformers {transformers.__version__}", transformers.AutoModel.from_pretrained(folder).eval(),
                    folder)


def in_hands(library: str, model: Any, folder: Path) -> Loaded:
    """A model of transformers with the processor in a folder."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(folder)

    @torch.inference_mode()
    def pictures(images: Sequence[Image.Image]) -> Array:
        return rows_of(model.get_image_features(**processor(images=list(images), return_tensors="pt")))

    @torch.inference_mode()
    def captions(texts: Sequence[str]) -> Array:
        tokens = processor(text=list(texts), padding="max_length", truncation=True, return_tensors="pt")
        return rows_of(model.get_text_features(**tokens))

    return Loaded(library, pictures, captions)


def rows_of(features: Any) -> Array:
    """What get_image_features and get_text_features give: a tensor, or since transformers 5 an output that has it."""
    rows: Array = getattr(features, "pooler_output", features).float().cpu().numpy().astype(np.float32)
    return rows


def to_huggingface(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of open_clip's CustomTextCLIP under the names of CLIPModel, q, k and v apart, projections as [D, W]."""
    theirs: dict[str, Tensor] = {}
    for name, value in state.items():
        value = value.detach().cpu()
        if name in ("text.text_projection", "visual.proj"):
            tower = "text" if name.startswith("text") else "visual"
            theirs[f"{tower}_projection.weight"] = value.T.contiguous()
        elif ".attn.in_proj_" in name:
            kind = name.rpartition("_")[2]
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                theirs[_renamed(name.replace(f"in_proj_{kind}", f"{letter}_proj.{kind}"))] = part.contiguous()
        elif name not in ("text.attn_mask", "logit_bias"):
            theirs[_renamed(name)] = value.contiguous()
    return theirs


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
    strange = [word for word, present in (
        ("attention over all patches", image.attn_pool is not None), ("a pooled average", image.pool_type != "tok"),
        ("a text tower without a causal mask", text.attn_mask is None), ("another pooling of captions",
         text.pool_type not in ("argmax", "eos")), ("a class token after the caption", text.cls_emb is not None),
    ) if present]
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
    positions = state["text_model.embeddings.position_embedding.weight"].shape[0]
    config = CLIPConfig(
        projection_dim=encoder.dim,
        text_config={**tower(text, "text_model"), "max_position_embeddings": positions,
                     "vocab_size": words, "bos_token_id": _START, "eos_token_id": _END, "pad_token_id": _END,
                     "projection_dim": encoder.dim},
        vision_config={**tower(image, "vision_model"), "image_size": image_sides(encoder)[0],
                       "patch_size": image.patch_size[0], "projection_dim": encoder.dim})
    config.architectures = ["CLIPModel"]
    return config


def _siglip_config(encoder: DualEncoder, state: dict[str, Tensor]) -> Any:
    from transformers import SiglipConfig

    trunk, text = encoder.model.visual.trunk, encoder.model.text

    def tower(blocks: Any, norm: Any, heads: int, inner: int, act: Any) -> dict[str, Any]:
        tanh = getattr(act, "approximate", "tanh") == "tanh"  # nn.GELU, or timm's module of this one kind
        return {"hidden_size": norm.weight.shape[0], "num_hidden_layers": len(blocks), "num_attention_heads": heads,
                "intermediate_size": inner, "layer_norm_eps": norm.eps,
                "hidden_act": "gelu_pytorch_tanh" if tanh else "gelu"}

    read, seen = text.transformer.resblocks, trunk.blocks
    tokenizer = getattr(encoder.tokenizer, "tokenizer", None)
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    positions, words = state["text_model.embeddings.position_embedding.weight"], text.token_embedding.weight
    config = SiglipConfig(
        text_config={**tower(read, text.ln_final, read[0].attn.num_heads, read[0].mlp.c_fc.weight.shape[0],
                             read[0].mlp.gelu), **special, "max_position_embeddings": positions.shape[0],
                     "vocab_size": words.shape[0], "projection_size": encoder.dim},
        vision_config={**tower(seen, trunk.norm, seen[0].attn.num_heads, seen[0].mlp.fc1.weight.shape[0],
                               seen[0].mlp.act), "image_size": image_sides(encoder)[0],
                       "patch_size": trunk.patch_embed.patch_size[0]})
    config.architectures = ["SiglipModel"]
    return config


def _save_own_tokenizer(encoder: DualEncoder, folder: Path) -> None:
    """As it is, without a mask, for SigLIP reads its padding; a fast one with open_clip's cleaning of texts."""
    own = encoder.tokenizer.tokenizer
    own.save_pretrained(folder)
    said = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    said |= {"model_input_names": ["input_ids"], "model_max_length": encoder.context_length}
    if getattr(own, "backend_tokenizer", None) is not None:
        made, _ = as_tokenizers(encoder)
        made.no_padding()
        made.no_truncation()
        made.save(str(folder / "tokenizer.json"))
        said["tokenizer_class"] = "PreTrainedTokenizerFast"  # other classes make their own of its vocabulary
    write_json(folder / "tokenizer_config.json", said)


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
        raise ModelError("Hugging Face's processors crop pictures to a square or squash them, and this model "
                         "wants a border or another shape; train with --resize crop or squash, or publish with "
                         "--as open_clip")
    kind = "Siglip" if is_siglip(encoder) else "CLIP"
    return {
        "image_processor_type": f"{kind}ImageProcessor", "processor_class": f"{kind}Processor",
        "do_resize": True, "do_center_crop": mode == "shortest",
        "size": {"shortest_edge": height} if mode == "shortest" else {"height": height, "width": width},
        "crop_size": {"height": height, "width": width}, "resample": _RESAMPLE[settings["interpolation"]],
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_convert_rgb": True,
        "image_mean": list(settings["mean"]), "image_std": list(settings["std"]),
    }

