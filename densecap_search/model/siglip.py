"""Hugging Face's SiglipModel (SigLIP, and SigLIP 2 of a fixed resolution) and open_clip's, one into the other.

open_clip's has timm's image tower, whose attention is one matrix, and a text tower of its own. Both directions are
pure functions on tensors by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import timm
import torch
from torch import Tensor

from densecap_search.errors import ModelError
from densecap_search.model.folding import State

# width, layers, heads and inner width of an image tower → how timm calls it
TRUNKS: dict[tuple[int, int, int, int], str] = {
    (768, 12, 12, 3072): "base", (1024, 24, 16, 4096): "large", (1152, 27, 16, 4304): "so400m",
    (1536, 40, 16, 6144): "giantopt",
}
_EPS = 1e-6  # of timm's
_ACTIVATIONS: dict[str, dict[str, str]] = {"gelu_pytorch_tanh": {"approximate": "tanh"}, "gelu": {}}
# What Hugging Face leaves out of a config.json where it is the default.
_DEFAULTS: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                             "num_attention_heads": 12, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": _EPS}
_PREPROCESSING = {"do_center_crop": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_BLOCK = r"\.(?P<block>\d+)\."
# Hugging Face's name → open_clip's; {} is the number of a block
_NAMES = (
    ("text_model.embeddings.token_embedding.weight", "text.token_embedding.weight"),
    ("text_model.embeddings.position_embedding.weight", "text.positional_embedding"),
    ("text_model.final_layer_norm.*", "text.ln_final.*"),
    ("text_model.head.*", "text.text_projection.*"),
    ("text_model.encoder.layers.{}.layer_norm1.*", "text.transformer.resblocks.{}.ln_1.*"),
    ("text_model.encoder.layers.{}.layer_norm2.*", "text.transformer.resblocks.{}.ln_2.*"),
    ("text_model.encoder.layers.{}.self_attn.out_proj.*", "text.transformer.resblocks.{}.attn.out_proj.*"),
    ("text_model.encoder.layers.{}.mlp.fc1.*", "text.transformer.resblocks.{}.mlp.c_fc.*"),
    ("text_model.encoder.layers.{}.mlp.fc2.*", "text.transformer.resblocks.{}.mlp.c_proj.*"),
    ("vision_model.embeddings.patch_embedding.*", "visual.trunk.patch_embed.proj.*"),
    ("vision_model.embeddings.position_embedding.weight", "visual.trunk.pos_embed"),
    ("vision_model.post_layernorm.*", "visual.trunk.norm.*"),
    ("vision_model.encoder.layers.{}.layer_norm1.*", "visual.trunk.blocks.{}.norm1.*"),
    ("vision_model.encoder.layers.{}.layer_norm2.*", "visual.trunk.blocks.{}.norm2.*"),
    ("vision_model.encoder.layers.{}.self_attn.out_proj.*", "visual.trunk.blocks.{}.attn.proj.*"),
    ("vision_model.encoder.layers.{}.mlp.fc1.*", "visual.trunk.blocks.{}.mlp.fc1.*"),
    ("vision_model.encoder.layers.{}.mlp.fc2.*", "visual.trunk.blocks.{}.mlp.fc2.*"),
    ("vision_model.head.probe", "visual.trunk.attn_pool.latent"),
    ("vision_model.head.attention.out_proj.*", "visual.trunk.attn_pool.proj.*"),
    ("vision_model.head.layernorm.*", "visual.trunk.attn_pool.norm.*"),
    ("vision_model.head.mlp.fc1.*", "visual.trunk.attn_pool.mlp.fc1.*"),
    ("vision_model.head.mlp.fc2.*", "visual.trunk.attn_pool.mlp.fc2.*"),
)
_QKV = (  # where q, k and v are three, and where they are one
    (r"text_model\.encoder\.layers\.(\d+)\.self_attn\.q_proj\.(weight|bias)",
     r"text.transformer.resblocks.\1.attn.in_proj_\2"),
    (r"vision_model\.encoder\.layers\.(\d+)\.self_attn\.q_proj\.(weight|bias)", r"visual.trunk.blocks.\1.attn.qkv.\2"),
)
_ONE = (
    (r"text\.transformer\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)",
     r"text_model.encoder.layers.\1.self_attn.q_proj.\2"),
    (r"visual\.trunk\.blocks\.(\d+)\.attn\.qkv\.(weight|bias)", r"vision_model.encoder.layers.\1.self_attn.q_proj.\2"),
)
_POOL_THEIRS, _POOL_OURS = "vision_model.head.attention.in_proj_", "visual.trunk.attn_pool."


def siglip_to_custom(state: Mapping[str, Tensor]) -> State:
    """Tensors of a SiglipModel under open_clip's names; names that are not SiglipModel's stay as they are."""
    converted: State = {}
    for name, value in state.items():
        whole = _fused(name)
        if whole:
            parts = [name.replace(".q_proj.", f".{letter}_proj.") for letter in "qkv"]
            if all(part in state for part in parts):
                converted[whole] = torch.cat([state[part] for part in parts])
        elif name.startswith(_POOL_THEIRS):
            kind = name.removeprefix(_POOL_THEIRS)
            query, key, values = value.chunk(3)
            converted[f"{_POOL_OURS}q.{kind}"] = query
            converted[f"{_POOL_OURS}kv.{kind}"] = torch.cat([key, values])
        elif not re.search(r"\.self_attn\.[kv]_proj\.|\.position_ids$", name):
            converted[_renamed(name, theirs=0)] = value
    if "visual.trunk.pos_embed" in converted and converted["visual.trunk.pos_embed"].ndim == 2:
        converted["visual.trunk.pos_embed"] = converted["visual.trunk.pos_embed"][None]
    return converted


def custom_to_siglip(state: Mapping[str, Tensor]) -> State:
    """The way back; what SiglipModel has no name for stays as it is."""
    converted: State = {}
    for name, value in state.items():
        value = value.detach().cpu()
        query = next((re.sub(pattern, new, name) for pattern, new in _ONE if re.fullmatch(pattern, name)), None)
        if query:
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                converted[query.replace(".q_proj.", f".{letter}_proj.")] = part.contiguous()
        elif name.startswith(f"{_POOL_OURS}q."):
            kind = name.rpartition(".")[2]
            converted[f"{_POOL_THEIRS}{kind}"] = torch.cat([value, state[f"{_POOL_OURS}kv.{kind}"].detach().cpu()])
        elif name.startswith(f"{_POOL_OURS}kv."):
            continue
        elif name in ("logit_scale", "logit_bias"):
            converted[name] = value.reshape(1)
        else:
            value = value[0] if name == "visual.trunk.pos_embed" else value
            converted[_renamed(name, theirs=1)] = value.contiguous()
    return converted


def config_from_siglip(state: State, config: Mapping[str, Any]) -> dict[str, Any]:
    """open_clip's configuration of a SiglipModel, from converted tensors and its config.json."""
    text, image = ({**_DEFAULTS, **(config.get(f"{tower}_config") or {})} for tower in ("text", "vision"))
    image = {"image_size": 224, "patch_size": 16, **image}
    for tower, said in (("text", text), ("vision", image)):
        if said["hidden_act"] not in _ACTIVATIONS:
            raise ModelError(f"hidden_act of the {tower} tower is {said['hidden_act']!r}; known are "
                             f"{', '.join(_ACTIVATIONS)}")
    if image.get("vision_use_head", True) is False:
        raise ModelError("its image tower has no pooling head (vision_use_head is false), so it gives no vectors of "
                         "pictures")
    needed = ("text.token_embedding.weight", "text.positional_embedding", "visual.trunk.pos_embed")
    lacking = [name for name in needed if name not in state]
    if lacking:
        raise ModelError(f"it lacks the tensor {lacking[0]}, so it is not a whole SigLIP model")
    words, width = state["text.token_embedding.weight"].shape
    projected = text.get("projection_size") or text["hidden_size"]
    if projected != image["hidden_size"]:
        raise ModelError(f"config.json gives texts {projected} numbers and pictures {image['hidden_size']}")
    return {
        "embed_dim": projected, "init_logit_bias": -10,
        "vision_cfg": {"image_size": image["image_size"], "timm_model_name": _trunk(image), "timm_pool": "map",
                       "timm_proj": "none", "act_kwargs": _ACTIVATIONS[image["hidden_act"]]},
        "text_cfg": {"context_length": state["text.positional_embedding"].shape[0], "vocab_size": words,
                     "hf_tokenizer_name": "tokenizer", "tokenizer_kwargs": {"clean": "lower"}, "width": width,
                     "heads": text["num_attention_heads"], "layers": text["num_hidden_layers"],
                     "mlp_ratio": (text["intermediate_size"] + 0.5) / width, "no_causal_mask": True,
                     "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": text["layer_norm_eps"]},
                     "act_kwargs": _ACTIVATIONS[text["hidden_act"]]},
    }


def preprocessing_of_siglip(settings: Mapping[str, Any], image_size: int) -> dict[str, Any]:
    """A preprocessor_config.json with what SiglipImageProcessor takes where it says nothing."""
    return {"size": {"height": image_size, "width": image_size}, **_PREPROCESSING, **settings}


def _trunk(image: Mapping[str, Any]) -> str:
    """timm's name of an image tower, which also says the size of pictures."""
    kind = TRUNKS.get((image["hidden_size"], image["num_hidden_layers"], image["num_attention_heads"],
                       image["intermediate_size"]))
    name = f"vit_{kind}_patch{image['patch_size']}_siglip_{image['image_size']}"
    exact = kind == "giantopt" and image["hidden_act"] == "gelu"  # timm's has the other activation built in
    if kind is None or exact or image["layer_norm_eps"] != _EPS or not timm.is_model(name):
        raise ModelError(f"timm has no image tower like it: {image['num_hidden_layers']} layers of width "
                         f"{image['hidden_size']}, patches of {image['patch_size']}, pictures of "
                         f"{image['image_size']} pixels; those of Google's SigLIP and SigLIP 2 are known")
    return name


def _fused(name: str) -> str | None:
    return next((re.sub(pattern, new, name) for pattern, new in _QKV if re.fullmatch(pattern, name)), None)


def _renamed(name: str, theirs: int) -> str:
    """theirs: which of the two columns of _NAMES a name is in."""
    number = re.search(_BLOCK, name)
    general = name if number is None else name.replace(number[0], ".{}.", 1)
    stem, _, last = general.rpartition(".")
    for row in _NAMES:
        if row[theirs] == general or row[theirs] == f"{stem}.*":
            theirs_name = row[1 - theirs].replace(".*", f".{last}")
            return theirs_name if number is None else theirs_name.replace("{}", number["block"])
    return name
