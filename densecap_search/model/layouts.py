"""The layouts in which people have CLIP's weights, and how each becomes open_clip's CustomTextCLIP.

Pure functions on tensors by name and on what JSON files say; where a file lies is the matter of ``loading.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from open_clip.model import convert_to_custom_text_state_dict
from torch import Tensor

from densecap_search.errors import ModelError
from densecap_search.model.siglip import siglip_to_custom
from densecap_search.model.window import KEPT_ROWS

State = dict[str, Tensor]
Config = dict[str, Any]  # open_clip's model configuration

_PREFIXES = re.compile(r"^((module|_orig_mod|_forward_module|model|clip|clip_model)\.)+")
_FSDP = "_fsdp_wrapped_module."  # anywhere in a name
_DEEPEST = 3  # parts of a prefix that is found by itself
_STRAYS = 1  # names that may be no part of the model: a counter, a queue
_OPENAI_EXTRAS = ("input_resolution", "context_length", "vocab_size")
_VOCABULARY = 49408  # words of CLIP's own tokenizer, the only one that these layouts are read with
_END_TOKEN = 49407
_OLD_END_TOKEN = 2  # wrong in Hugging Face's first configurations; there it means "the largest token number"
_HEAD_WIDTH = 64  # of every CLIP that OpenAI trained
_EPS = 1e-5
_ACTIVATIONS = {"quick_gelu": True, "gelu": False}
_INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
# What Hugging Face leaves out of a config.json where it is the default.
_TOWER_DEFAULTS: dict[str, dict[str, Any]] = {
    "text": {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "hidden_act": "quick_gelu",
             "layer_norm_eps": _EPS, "eos_token_id": _END_TOKEN},
    "vision": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": "quick_gelu",
               "layer_norm_eps": _EPS, "image_size": 224},
}


@dataclass(frozen=True)
class Layout:
    """How a program names and shapes the tensors of a CLIP model.

    keys: names, and beginnings that end with a dot, all of which must be there. convert: to the names of open_clip's
    CustomTextCLIP. configure: converted tensors → model configuration; None where they do not tell it.
    quick_gelu: what the layout tells about the activation; None where weights of both kinds are kept in it.
    """

    keys: tuple[str, ...]
    convert: Callable[[State], State]
    configure: Callable[[State], Config] | None
    quick_gelu: bool | None


def find_layout(names: Collection[str]) -> str:
    """The key of LAYOUTS whose keys are all among these names; the first one, as the later ask for less."""
    for layout, entry in LAYOUTS.items():
        if all(key in names or (key.endswith(".") and any(name.startswith(key) for name in names))
               for key in entry.keys):
            return layout
    beginnings = sorted({name.split(".")[0] for name in names})
    seen = ", ".join(beginnings[:6]) + (", …" if len(beginnings) > 6 else "")
    raise ModelError(f"has a layout that is not known: {len(names)} tensors whose names begin with {seen}; "
                     f"known layouts are {', '.join(LAYOUTS)}; of several models in a file --prefix takes one")


def strip_prefixes(state: Mapping[str, Tensor]) -> State:
    """Without what wrappers put before a name (``module.``, ``_orig_mod.``, ``model.``, ``clip.`` …), in any order."""
    stripped: State = {}
    for name, value in state.items():
        short = _PREFIXES.sub("", name.replace(_FSDP, ""))
        if short in stripped:
            raise ModelError(f"it holds two tensors {short}, one of them as {name}; save one model alone, or "
                             "name what stands before its names with --prefix")
        stripped[short] = value
    return stripped


def strip_common_prefix(state: State) -> State:
    """Without the one prefix (``net.``, ``student.``, …) that makes all names but at most one those of a layout.

    The name that does not begin with it stays as it is. A state that fits as it is, or by no prefix, is returned as is.
    """
    if _fits(state):
        return state
    counts = Counter(".".join(parts[:depth]) + "." for name in state if (parts := name.split("."))
                     for depth in range(1, min(len(parts), _DEEPEST + 1)))
    for prefix, count in counts.most_common():
        if count < len(state) - _STRAYS:
            break
        stripped = {name.removeprefix(prefix): value for name, value in state.items()}
        if len(stripped) == len(state) and _fits(stripped):
            return stripped
    return state


def _fits(names: Collection[str]) -> bool:
    try:
        find_layout(names)
    except ModelError:
        return False
    return True


def merge_long_clip(state: State) -> State:
    """Long-CLIP's two tables [248, W] as one: rows below 20 from the frozen, the others from the trained.

    Source: the released code of Zhang et al. 2024, arXiv:2403.15378.
    """
    rest = {name: value for name, value in state.items() if name != "positional_embedding_res"}
    first, second = state["positional_embedding"], state["positional_embedding_res"]
    if first.shape != second.shape:
        raise ModelError(f"the two positional tables of Long-CLIP differ in shape, {tuple(first.shape)} and "
                         f"{tuple(second.shape)}")
    return plain_to_custom({**rest, "positional_embedding": torch.cat([first[:KEPT_ROWS], second[KEPT_ROWS:]])})


def plain_to_custom(state: State) -> State:
    """open_clip's and OpenAI's CLIP: the tensors of the text tower get ``text.`` before their names."""
    kept = {name: value for name, value in state.items() if name not in _OPENAI_EXTRAS}
    converted: State = convert_to_custom_text_state_dict(kept)
    return converted


def huggingface_to_custom(state: State) -> State:
    """Hugging Face's CLIPModel: other names, q, k and v in one tensor [3W, W], projections transposed to [W, D].

    Names that are not CLIPModel's stay as they are.
    """
    converted: State = {}
    for name, value in state.items():
        if name in _HF_PROJECTIONS:
            converted[_HF_PROJECTIONS[name]] = value.T.contiguous() if value.ndim == 2 else value
        elif name == "vision_model.embeddings.class_embedding":
            converted["visual.class_embedding"] = value.reshape(-1)
        elif not name.endswith(".position_ids"):
            converted[_renamed(name)] = value
    for name in [name for name in converted if ".attn.q_proj." in name]:
        parts = [name.replace(".q_proj.", f".{part}_proj.") for part in "qkv"]
        if all(part in converted and converted[part].shape == converted[name].shape for part in parts):
            converted[name.replace("q_proj.", "in_proj_")] = torch.cat([converted.pop(part) for part in parts])
    return converted


def config_from_shapes(state: State) -> Config:
    """The configuration of a CLIP of OpenAI's kind (ViT or ResNet, heads of 64, QuickGELU), from converted tensors."""
    return _config(state)


def refuse_to_guess(state: State) -> Config:
    """A bare state dict of CLIPModel: with the other activation wrong by 4e-3, with other heads by 9e-2, silently."""
    raise ModelError("tensors alone do not tell which activation and how many heads such a model has; put its "
                     "config.json beside the file, or name the architecture with --arch, for example "
                     "--arch ViT-B-16-quickgelu for OpenAI's weights or ViT-B-16 for LAION's")


def refuse_eva(state: State) -> State:
    """EVA-CLIP by its authors' names: their towers are not open_clip's, which has timm's in their place."""
    raise ModelError(f"these are the names of EVA-CLIP's authors ({len(state)} tensors), which are not read; "
                     "take open_clip's weights of it, such as --model EVA02-B-16 --pretrained merged2b_s8b_b131k")


def config_from_huggingface(state: State, config: Mapping[str, Any]) -> Config:
    """The configuration of a CLIPModel, from converted tensors and its config.json."""
    text, image = _tower_config(config, "text"), _tower_config(config, "vision")
    cfg = _config(state, image["num_attention_heads"], text["num_attention_heads"])
    for tower, said in (("text", text), ("vision", image)):
        own = cfg[f"{tower}_cfg"]
        if (said["hidden_size"], said["num_hidden_layers"]) != (own["width"], own["layers"]):
            raise ModelError(f"config.json does not describe these weights: {said['num_hidden_layers']} {tower} layers "
                             f"of width {said['hidden_size']} by it, {own['layers']} of {own['width']} are there")
        if said["layer_norm_eps"] != _EPS:
            own["norm_kwargs"] = {"eps": said["layer_norm_eps"]}
    cfg["quick_gelu"] = _quick_gelu(text["hidden_act"], image["hidden_act"])
    _set_pooling(cfg["text_cfg"], text["eos_token_id"])
    size, patch = image["image_size"], cfg["vision_cfg"]["patch_size"]
    if isinstance(size, int) and size // patch == cfg["vision_cfg"]["image_size"] // patch:
        cfg["vision_cfg"]["image_size"] = size  # may be no multiple of the patch
    return cfg


def preprocess_from_huggingface(settings: Mapping[str, Any], image_size: int) -> dict[str, Any]:
    """open_clip's preprocessing settings from a preprocessor_config.json; image_size is the image tower's, in pixels.

    What open_clip's preprocessing cannot do is refused: other pixels would give other vectors.
    """
    crops = settings.get("do_center_crop", True)
    squash, resized = _edge(settings.get("size", image_size))
    cropped = _edge(settings.get("crop_size", image_size))[1] if crops else resized
    usual = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255}
    strange = [f"{key} is {settings[key]}" for key, value in usual.items() if settings.get(key, value) != value]
    if not (resized == cropped == image_size):
        strange.append(f"pictures are resized to {resized} and cropped to {cropped}, and the image tower takes "
                       f"{image_size} pixels")
    if not squash and not crops:
        strange.append("pictures are not cropped to a square")
    interpolation = _INTERPOLATIONS.get(settings.get("resample", 3))
    if interpolation is None:
        strange.append(f"resample {settings['resample']} is neither 2 (bilinear) nor 3 (bicubic)")
    if strange:
        raise ModelError(f"the preprocessing cannot be followed: {'; '.join(strange)}")
    changes: dict[str, Any] = {"size": image_size, "interpolation": interpolation,
                               "resize_mode": "squash" if squash else "shortest"}
    if not settings.get("do_normalize", True):
        return {**changes, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    given = {name: settings.get(f"image_{name}") for name in ("mean", "std")}
    return {**changes, **{name: tuple(values) for name, values in given.items() if values is not None}}


LAYOUTS: dict[str, Layout] = {  # the more demanding first
    "Long-CLIP": Layout(("positional_embedding_res", "positional_embedding", "text_projection", "visual."),
                        merge_long_clip, config_from_shapes, True),
    "OpenAI CLIP": Layout((*_OPENAI_EXTRAS, "positional_embedding", "text_projection", "visual."),
                          plain_to_custom, config_from_shapes, True),
    "Hugging Face CLIPModel": Layout(("text_model.", "vision_model.", "text_projection.weight",
                                      "visual_projection.weight"),
                                     huggingface_to_custom, refuse_to_guess, None),
    "Hugging Face SiglipModel": Layout(("text_model.", "vision_model.", "text_model.head.weight"),
                                       siglip_to_custom, refuse_to_guess, False),
    "EVA-CLIP": Layout(("visual.blocks.", "visual.patch_embed.", "text."), refuse_eva, None, None),
    "open_clip CLIP": Layout(("positional_embedding", "text_projection", "visual."), plain_to_custom, None, None),
    "open_clip CustomTextCLIP": Layout(("text.", "visual."), dict, None, None),
}
HUGGING_FACE = {"Hugging Face CLIPModel": "clip", "Hugging Face SiglipModel": "siglip"}  # layout → model_type

_HF_PROJECTIONS = {"text_projection.weight": "text.text_projection", "visual_projection.weight": "visual.proj"}
_HF_NAMES = tuple((re.compile(pattern), new) for pattern, new in (
    (r"^text_model\.embeddings\.position_embedding\.weight$", "text.positional_embedding"),
    (r"^vision_model\.embeddings\.position_embedding\.weight$", "visual.positional_embedding"),
    (r"^vision_model\.embeddings\.patch_embedding\.", "visual.conv1."),
    (r"^text_model\.embeddings\.", "text."),
    (r"^text_model\.final_layer_norm\.", "text.ln_final."),
    (r"^vision_model\.pre_(layrnorm|layernorm)\.", "visual.ln_pre."),  # Hugging Face writes the first
    (r"^vision_model\.post_layernorm\.", "visual.ln_post."),
    (r"^text_model\.encoder\.layers\.", "text.transformer.resblocks."),
    (r"^vision_model\.encoder\.layers\.", "visual.transformer.resblocks."),
    (r"\.layer_norm([12])\.", r".ln_\1."),
    (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    (r"\.mlp\.fc2\.", ".mlp.c_proj."),
    (r"\.self_attn\.", ".attn."),
))


def _renamed(name: str) -> str:
    if name.startswith(("text_model.", "vision_model.")):
        for pattern, new in _HF_NAMES:
            name = pattern.sub(new, name)
    return name


def _config(state: State, image_heads: int | None = None, text_heads: int | None = None) -> Config:
    """From converted tensors; where nobody says how many heads there are, they are as wide as OpenAI's."""
    text_width = _shape(state, "text.ln_final.weight", 1)[0]
    words = _shape(state, "text.token_embedding.weight", 2)[0]
    if words < _VOCABULARY:
        raise ModelError(f"its text tower knows {words} tokens, and CLIP's own tokenizer has {_VOCABULARY}; "
                         "other tokenizers are not supported for such weights")
    return {
        "embed_dim": _shape(state, "text.text_projection", 2)[1],
        "quick_gelu": True,
        "vision_cfg": _image_config(state, image_heads),
        "text_cfg": {"context_length": _shape(state, "text.positional_embedding", 2)[0], "vocab_size": words,
                     "width": text_width, "heads": _heads("text", text_width, text_heads),
                     "layers": _layers(state, "text"), **_mlp_ratio(state, "text", text_width)},
    }


def _image_config(state: State, heads: int | None) -> Config:
    if "visual.layer1.0.conv1.weight" in state:  # OpenAI's ResNets
        rows = _shape(state, "visual.attnpool.positional_embedding", 2)[0]
        blocks = [len({name.split(".")[2] for name in state if name.startswith(f"visual.layer{stage}.")})
                  for stage in (1, 2, 3, 4)]
        return {"image_size": 32 * round((rows - 1) ** 0.5), "layers": blocks, "patch_size": None,
                "width": _shape(state, "visual.layer1.0.conv1.weight", 4)[0]}
    width, _, patch, _ = _shape(state, "visual.conv1.weight", 4)
    grid = round((_shape(state, "visual.positional_embedding", 2)[0] - 1) ** 0.5)
    head_width = width // _heads("image", width, heads)
    return {"image_size": patch * grid, "layers": _layers(state, "visual"), "width": width, "patch_size": patch,
            **({} if head_width == _HEAD_WIDTH else {"head_width": head_width}), **_mlp_ratio(state, "visual", width)}


def _heads(tower: str, width: int, heads: int | None) -> int:
    heads = max(1, width // _HEAD_WIDTH) if heads is None else heads
    if heads < 1 or width % heads:
        raise ModelError(f"its {tower} tower of width {width} cannot have {heads} heads")
    return heads


def _mlp_ratio(state: State, tower: str, width: int) -> Config:
    inner = _shape(state, f"{tower}.transformer.resblocks.0.mlp.c_fc.weight", 2)[0]
    # open_clip rounds width × ratio down
    return {} if inner == 4 * width else {"mlp_ratio": (inner + 0.5) / width}


def _layers(state: State, tower: str) -> int:
    block = re.compile(rf"{tower}\.transformer\.resblocks\.\d+\.ln_1\.weight")
    return sum(1 for name in state if block.fullmatch(name))


def _shape(state: State, name: str, dimensions: int) -> tuple[int, ...]:
    if name not in state:
        raise ModelError(f"it lacks the tensor {name}, so it is not a whole CLIP model")
    shape = tuple(state[name].shape)
    if len(shape) != dimensions:
        raise ModelError(f"its tensor {name} is {shape}, which CLIP's is not")
    return shape


def _tower_config(config: Mapping[str, Any], tower: str) -> dict[str, Any]:
    """As transformers reads it: text_config_dict, which the oldest files have, wins, and so do its defaults."""
    defaults = _TOWER_DEFAULTS[tower]
    old = config.get(f"{tower}_config_dict")
    newer = {**defaults, **(config.get(f"{tower}_config") or {})}
    return newer if old is None else {**newer, **defaults, **old}


def _quick_gelu(text: str, image: str) -> bool:
    if text != image or text not in _ACTIVATIONS:
        raise ModelError(f"hidden_act is {text!r} in the text tower and {image!r} in the image tower; "
                         f"both must be the same one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[text]


def _set_pooling(text_cfg: Config, end_token: Any) -> None:
    if end_token == _OLD_END_TOKEN:
        return  # open_clip's default: the place of the largest token number
    if end_token != _END_TOKEN:
        raise ModelError(f"eos_token_id is {end_token}, and CLIP's own tokenizer ends captions with {_END_TOKEN}")
    text_cfg.update(pool_type="eos", eos_id=_END_TOKEN)


def _edge(size: Any) -> tuple[bool, Any]:
    """Whether both sides are forced, and the length in pixels; None where it is not one number."""
    if isinstance(size, Mapping):
        if "shortest_edge" in size:
            return False, size["shortest_edge"]
        sides = {size.get("height"), size.get("width")}
        return True, sides.pop() if len(sides) == 1 else None
    return False, size if isinstance(size, int) else None
