"""A folder of peft's adapters: put onto a base, and folded into its weights by peft itself."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from densecap_search.errors import ModelError
from densecap_search.model.adapters import import_peft
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.layouts import State, huggingface_to_custom
from densecap_search.model.publishing.huggingface import as_model, is_siglip
from densecap_search.model.siglip import siglip_to_custom
from densecap_search.model.weight_files import read_json, read_tensors

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_PLACE = "base_model.model."  # before every name in such a file
# What an adapter may say about itself. Of the rest, the first starts other programs or reads other data, the
# second changes more than weights; a falsy value says nothing.
_SETTINGS = ("r", "lora_alpha", "target_modules", "exclude_modules", "fan_in_fan_out", "bias", "use_rslora", "use_dora",
             "modules_to_save", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "lora_bias")
_REFUSED = ("megatron_config", "trainable_token_indices", "layer_replication", "target_parameters",
            "alora_invocation_tokens", "arrow_config", "velora_config", "use_bdlora")
_PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")  # the others change the base before training


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds what ``PeftModel.save_pretrained`` wrote."""
    return (folder / CONFIG).is_file()


def base_of(folder: Path) -> Path:
    """The folder of the model that the adapters were trained onto; ModelError where it is not on this machine."""
    name = read_json(folder / CONFIG).get("base_model_name_or_path")
    for place in (folder / str(name), Path(str(name)).expanduser()):
        if name and place.is_dir():
            return place
    raise ModelError(f"{folder} holds adapters for {name or 'a model that it does not name'}, which is no folder here; "
                     f"name that model with --model and the adapters with --pretrained {folder}")


def put_onto(encoder: DualEncoder, folder: Path) -> State:
    """The base's state dict with the adapters of a folder folded in; names and shapes stay those of the base."""
    peft = import_peft(f"{folder} needs")
    settings, tensors = _settings(folder), _tensors(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = peft.get_peft_model(as_model(encoder), peft.LoraConfig(**settings))
            put = peft.set_peft_model_state_dict(adapted, tensors)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} does not fit {encoder.name}: {' '.join(str(error).split())[:300]}") from error
    missing = [name for name in put.missing_keys if ".lora_" in name or ".modules_to_save." in name]
    wrong = [*put.unexpected_keys, *missing]
    if wrong:
        raise ModelError(f"{folder} does not fit {encoder.name}: {wrong[0]} has no counterpart")
    convert = siglip_to_custom if is_siglip(encoder) else huggingface_to_custom
    return convert(adapted.merge_and_unload().state_dict())


def _settings(folder: Path) -> dict[str, Any]:
    """Of adapter_config.json what peft is told; ModelError where it says more than this reads."""
    said: Mapping[str, Any] = read_json(folder / CONFIG)
    kind = said.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder} holds adapters of type {kind!r}; only those of type 'LORA' (with DoRA) are read")
    strange = [key for key in _REFUSED if said.get(key)]
    start = said.get("init_lora_weights")
    if start not in _PLAIN_STARTS:
        strange.append(f"init_lora_weights ({start!r})")
    if strange:
        raise ModelError(f"{folder / CONFIG} sets {', '.join(strange)}, which is not read; merge the adapters with "
                         "peft and name the merged model")
    return {key: said[key] for key in _SETTINGS if said.get(key) is not None}


def _tensors(folder: Path) -> State:
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise ModelError(f"{folder} has an {CONFIG} but no weights; it needs one of {', '.join(WEIGHTS)}")
    tensors = read_tensors(file)
    strange = next((name for name in tensors if not name.startswith(_PLACE)), None)
    if strange:
        raise ModelError(f"{file} holds {strange}, and names of adapters begin with {_PLACE}")
    return tensors
