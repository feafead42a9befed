"""A run's folder: an encoder saved and loaded again, offline, anywhere."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.hf_model import HFTextEncoder
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from densecap_search.errors import ModelError, RunError
from densecap_search.files import atomic_path, write_json
from densecap_search.model.adapters import adapter_state, is_adapted, merged_state
from densecap_search.model.encoder import DualEncoder, EncoderSpec
from densecap_search.model.heads import SkipHead, head_slot
from densecap_search.model.untrusted import check_model_cfg, refuse_code, tokenizer_options
from densecap_search.model.window import set_context_length

FORMAT = 1
WEIGHTS, ADAPTER, MODEL, PREPROCESS, TOKENIZER, STATE = (
    "weights.safetensors", "adapter.safetensors", "model.json", "preprocess.json", "tokenizer", "state.pt",
)


def build_model(spec: EncoderSpec, text_folder: Path | None = None) -> Any:
    """The encoder's network with random weights, at its own window.

    text_folder: the folder of a Hugging Face text tower's configuration, for encoders that have one.
    """
    check_model_cfg(spec.model_cfg, spec.source)
    cfg = copy.deepcopy(spec.model_cfg)
    if text_folder is not None:
        refuse_code(text_folder)
    if cfg["text_cfg"].get("hf_model_name"):
        cfg["text_cfg"].update(hf_model_name=str(text_folder), hf_model_pretrained=False)
    if cfg["vision_cfg"].get("timm_model_name"):
        cfg["vision_cfg"]["timm_model_pretrained"] = False
    if "multimodal_cfg" in cfg:
        raise ModelError(f"{spec.source} is a captioning model (CoCa); only plain dual encoders are supported")
    cfg.pop("custom_text", None)
    model = open_clip.CustomTextCLIP(**cfg)
    if cfg["vision_cfg"].get("timm_model_name") and cfg["vision_cfg"].get("act_kwargs"):
        _set_activation(model.visual, cfg["vision_cfg"]["act_kwargs"])
    if spec.starter_heads is not None:
        _put_starter_heads(model, spec)
    return model


def _set_activation(tower: nn.Module, settings: Mapping[str, Any]) -> None:
    """act_kwargs of an image tower of timm's, which open_clip does not hand on."""
    for module in tower.modules():
        if isinstance(module, nn.GELU):
            module.approximate = settings.get("approximate", "none")


def _put_starter_heads(model: Any, spec: EncoderSpec) -> None:
    """starter_heads: tower → arguments of :class:`SkipHead` beside the widths."""
    widths = {"image": model.visual.trunk.num_features, "text": model.text.config.hidden_size}
    for name, options in (spec.starter_heads or {}).items():
        slot = head_slot(model.visual if name == "image" else model.text)
        assert slot is not None  # the starter's configuration asks open_clip for a head
        setattr(slot.tower, slot.attribute, SkipHead(widths[name], dim=spec.model_cfg["embed_dim"], **options))


def make_tokenizer(spec: EncoderSpec, folder: Path | None) -> Any:
    """The tokenizer of a model configuration; folder holds its files where it is a Hugging Face one."""
    check_model_cfg(spec.model_cfg, spec.source)
    text_cfg = spec.model_cfg["text_cfg"]
    options = tokenizer_options(text_cfg)
    if not text_cfg.get("hf_tokenizer_name"):
        return SimpleTokenizer(context_length=spec.context_length, **options)
    assert folder is not None
    refuse_code(folder)
    return HFTokenizer(
        str(folder), context_length=spec.context_length, tokenizer_mode=text_cfg.get("tokenizer_mode"), **options
    )


def save_encoder(encoder: DualEncoder, folder: Path) -> None:
    """Write all that is needed to encode: weights, model, preprocessing, tokenizer. Weights come last."""
    spec = encoder.spec
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(encoder.tokenizer, HFTokenizer) and not (folder / TOKENIZER / "config.json").exists():
        encoder.tokenizer.save_pretrained(str(folder / TOKENIZER))
    if isinstance(encoder.model.text, HFTextEncoder):
        encoder.model.text.config.save_pretrained(str(folder / TOKENIZER))
    model = {
        "format": FORMAT, "source": spec.source, "context_length": spec.context_length,
        "starter_heads": spec.starter_heads, "long_text": spec.long_text, "model_cfg": _portable(spec.model_cfg),
    }
    write_json(folder / MODEL, model)
    write_json(folder / PREPROCESS, spec.preprocess)
    save_weights(encoder, folder)


def save_weights(encoder: DualEncoder, folder: Path, changed: Mapping[str, Tensor] | None = None) -> None:
    """Write an encoder's weights with adapters folded in, and beside them the adapters, where there are any.

    changed: values of parameters, by name, that stand in for the encoder's own.
    """
    if is_adapted(encoder):
        _save_tensors(adapter_state(encoder, changed), folder / ADAPTER)
    _save_tensors(merged_state(encoder, changed), folder / WEIGHTS)


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary)


def is_run(folder: Path) -> bool:
    """Whether a folder holds an encoder that :func:`save_encoder` wrote."""
    return (folder / MODEL).is_file()


def load_run(folder: Path, *, device: torch.device | str = "cpu", precision: str = "fp32") -> DualEncoder:
    """The encoder of a run folder; needs no network and nothing outside the folder."""
    model_json, preprocess = _read_json(folder / MODEL), _read_json(folder / PREPROCESS)
    if model_json.get("format", 0) > FORMAT:
        raise RunError(f"{folder} was written by a newer version (format {model_json['format']}, this reads {FORMAT})")
    spec = EncoderSpec(
        model_json["source"], model_json["model_cfg"], preprocess, model_json["context_length"],
        model_json["starter_heads"], model_json.get("long_text", "cut"),
    )
    model = build_model(spec, folder / TOKENIZER)
    set_context_length(model.text, spec.context_length)
    load_weights(model, folder / WEIGHTS)
    return DualEncoder(model, spec, make_tokenizer(spec, folder / TOKENIZER), device=device, precision=precision)


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model from a safetensors file that has exactly its tensors."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot read the weights {path}: {error}; restore the file or train again") from error
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(f"the weights {path} do not fit their model.json: {' '.join(str(error).split())}") from error


def save_state(state: dict[str, Any], path: Path) -> None:
    """What training needs to continue: tensors, numbers and texts, nothing that needs unpickling of code."""
    with atomic_path(path) as temporary:
        torch.save(state, temporary)


def load_state(path: Path) -> dict[str, Any]:
    """Read what :func:`save_state` wrote."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing: there is nothing to resume; train without --resume") from error
    except Exception as error:  # torch raises many kinds on damaged files, all of them meaning just that
        raise RunError(f"{path} is damaged ({type(error).__name__}); train again without --resume") from error
    return state


def _portable(model_cfg: dict[str, Any]) -> dict[str, Any]:
    """The configuration without folders of this machine."""
    cfg = copy.deepcopy(model_cfg)
    for key in ("hf_model_name", "hf_tokenizer_name"):
        if cfg["text_cfg"].get(key):
            cfg["text_cfg"][key] = TOKENIZER
    cfg["text_cfg"].pop("hf_model_pretrained", None)
    cfg["vision_cfg"].pop("timm_model_pretrained", None)
    return cfg


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise RunError(f"{path.parent} is not a whole run folder: cannot read {path.name} ({error})") from error
