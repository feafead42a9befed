"""What a model from elsewhere may say about itself: sizes and settings, never which code runs.

open_clip hands a configuration on to transformers and timm as keywords, and those have keywords that fetch and run
Python. So what may be said is listed here; everything else is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from open_clip.model import CLIPTextCfg, CLIPVisionCfg

from densecap_search.errors import ModelError
from densecap_search.model.weight_files import read_json

Config = Mapping[str, Any]

LARGEST = 10_000_000  # of any number in a configuration; the largest real one is a vocabulary of 256,000
_TOP = ("embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text", "multimodal_cfg", "init_logit_scale",
        "init_logit_bias", "nonscalar_logit_scale")
_KEYWORDS: Mapping[str, Collection[str]] = {  # of the settings that are themselves keywords of something
    "tokenizer_kwargs": ("clean", "strip_sep_token", "language", "reduction_mask"),
    "act_kwargs": ("approximate",), "norm_kwargs": ("eps", "elementwise_affine", "bias"),
}
_NAMES: Mapping[str, str] = {
    "timm_model_name": r"\w+(\.\w+)?",  # one of timm's own, not of a hub or a folder
    "hf_model_name": r"[\w-][\w.-]*(/[\w-][\w.-]*)?",
    "hf_tokenizer_name": r"[\w-][\w.-]*(/[\w-][\w.-]*)?",
    "reduction_mask": "|simple|random|shuffle",  # `syntax` downloads and unpickles
}
_CODE_FILES = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_CODE_KEYS = ("auto_map", "trust_remote_code", "custom_generate", "custom_pipelines")
_KERNEL_KEYS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


def check_model_cfg(cfg: Config, where: str) -> None:
    """Refuse a configuration of open_clip's kind that says more than sizes and settings. where: its file or model."""
    if not isinstance(cfg, Mapping):
        raise ModelError(f"{where}: the model's configuration is no section with keys")
    _check_keys(cfg, _TOP, where, "")
    for section, kind in (("vision_cfg", CLIPVisionCfg), ("text_cfg", CLIPTextCfg)):
        values = cfg.get(section)
        if not isinstance(values, Mapping):
            raise ModelError(f"{where}: {section} is missing or no section with keys")
        _check_keys(values, [field.name for field in fields(kind)], where, f"{section}.")
    if not isinstance(cfg.get("embed_dim"), int):
        raise ModelError(f"{where}: embed_dim is missing or no whole number")


def tokenizer_options(text_cfg: Config) -> dict[str, Any]:
    """The keywords of a tokenizer in a checked configuration; of a Hugging Face one with the refusal of code."""
    options = dict(text_cfg.get("tokenizer_kwargs") or {})
    return {**options, "trust_remote_code": False} if text_cfg.get("hf_tokenizer_name") else options


def refuse_code(folder: Path) -> None:
    """Refuse a folder in Hugging Face's layout that brings code of its own, naming the key and the file."""
    for name in _CODE_FILES:
        if (folder / name).is_file():
            _refuse_code_in(read_json(folder / name), f"{folder / name}")


def refuse_code_of(name: str) -> None:
    """The same for a repository of Hugging Face's, or a folder, by name."""
    if Path(name).is_dir():
        refuse_code(Path(name))
        return
    from transformers import PretrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    _refuse_code_in(PretrainedConfig.get_config_dict(name)[0], f"config.json of {name}")
    _refuse_code_in(get_tokenizer_config(name), f"tokenizer_config.json of {name}")


def _refuse_code_in(said: Any, where: str) -> None:
    """At any depth: transformers reads towers' configurations within a model's."""
    if isinstance(said, list):
        for item in said:
            _refuse_code_in(item, where)
        return
    if not isinstance(said, dict):
        return
    for key, value in said.items():
        if key in _CODE_KEYS and value:
            raise ModelError(f"{where} asks for code of its own to be run ({key}), which is never done; only models "
                             "that need none can be used")
        if key in _KERNEL_KEYS and isinstance(value, str) and "/" in value:
            raise ModelError(f"{where} asks for a program from elsewhere to be run ({key}: {value}), which is never "
                             "done; take the key out")
        _refuse_code_in(value, where)


def _check_keys(values: Config, known: Collection[str], where: str, section: str) -> None:
    for key, value in values.items():
        if key not in known:
            raise ModelError(f"{where} sets {section}{key}, which no model may; settings here are "
                             f"{', '.join(sorted(known))}")
        if key in _KEYWORDS and value is not None:
            if not isinstance(value, Mapping):
                raise ModelError(f"{where}: {section}{key} is no section with keys")
            _check_keys(value, _KEYWORDS[key], where, f"{section}{key}.")
        elif key not in ("vision_cfg", "text_cfg", "multimodal_cfg"):
            _check_value(key, value, f"{where}: {section}{key}")


def _check_value(key: str, value: Any, where: str) -> None:
    items = value if isinstance(value, (list, tuple)) else [value]
    if len(items) > 4:
        raise ModelError(f"{where} holds {len(items)} values; at most 4 are known")
    for item in items:
        if isinstance(item, str):
            if not re.fullmatch(_NAMES.get(key, r"[\w./-]*"), item):
                raise ModelError(f"{where} is {item[:80]!r}, which cannot be such a name")
        elif item is not None and not (isinstance(item, (bool, int, float)) and abs(item) <= LARGEST):
            raise ModelError(f"{where} is {item!r:.80}, and must be a number up to {LARGEST:,}, true, false or a name")
