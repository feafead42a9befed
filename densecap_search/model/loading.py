"""Where encoders come from: the starter, run folders, open_clip's names, checkpoint files people have."""

from __future__ import annotations

import copy
import difflib
import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.factory import parse_model_name
from open_clip.pretrained import get_pretrained_cfg
from torch import nn

from densecap_search.collection.images import MAX_PIXELS
from densecap_search.config import STARTER, ModelConfig
from densecap_search.errors import ModelError
from densecap_search.model.checkpoint import build_model, is_run, load_run, make_tokenizer
from densecap_search.model.device import choose_device, choose_precision
from densecap_search.model.encoder import DualEncoder, EncoderSpec, default_preprocess, with_resize
from densecap_search.model.layouts import (
    HUGGING_FACE,
    LAYOUTS,
    Config,
    Layout,
    State,
    config_from_huggingface,
    find_layout,
    preprocess_from_huggingface,
)
from densecap_search.model.peft_folder import base_of, is_adapter, put_onto
from densecap_search.model.siglip import config_from_siglip, preprocessing_of_siglip
from densecap_search.model.starter import load_starter
from densecap_search.model.untrusted import check_model_cfg, refuse_code, refuse_code_of, tokenizer_options
from densecap_search.model.weight_files import read_folder, read_json, read_state
from densecap_search.model.window import default_context_length, set_context_length

RANDOM = "random"
_MODEL_FILES = ("open_clip_config.json", "config.json")
_WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "tokenizer.model")
_INSTEAD = {"siglip2": "; this is SigLIP 2 for pictures of any shape (NaFlex), take one of a fixed resolution, such as "
                       "siglip2-base-patch16-224"}


def load_encoder(model: ModelConfig, *, device: str = "auto", precision: str = "fp32", max_pixels: int | None = None
                 ) -> DualEncoder:
    """The encoder that a user names.

    device: of DEVICES. precision: of PRECISIONS. max_pixels: larger pictures are left out; None: MAX_PIXELS.
    """
    model = model.resolved()
    name, pretrained = model.name, model.pretrained
    chosen = choose_device(device)
    torch.backends.cudnn.allow_tf32 = False  # fp32 means fp32 on GPUs too
    precision = choose_precision(precision, chosen)
    adapter = _adapter(pretrained)
    encoder = _named(name, None if adapter else pretrained, model.arch, model.prefix)
    if adapter:
        encoder = _adapted(encoder, adapter)
    length = model.context_length or encoder.context_length
    if length != encoder.model.text.context_length:
        set_context_length(encoder.model.text, length)
    preprocess = with_resize(encoder.spec.preprocess, model.resize) if model.resize else encoder.spec.preprocess
    spec = replace(encoder.spec, context_length=length, preprocess=preprocess,
                   long_text=model.long_text or encoder.spec.long_text)
    return DualEncoder(encoder.model, spec, encoder.tokenizer, device=chosen, precision=precision,
                       max_pixels=max_pixels or MAX_PIXELS)


def _named(name: str, pretrained: str | None, arch: str | None, prefix: str | None) -> DualEncoder:
    path = Path(name).expanduser()
    file = path if path.is_file() else Path(pretrained or RANDOM).expanduser()
    if prefix is not None and not file.is_file():
        raise ModelError(f"--prefix is for checkpoint files, and {name} is none")
    if name == STARTER:
        return load_starter(heads=pretrained != RANDOM)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        return _from_file(path, arch, prefix)
    if parse_model_name(name)[0]:
        return _from_schema(name)
    if _means_a_path(name):
        raise ModelError(f"there is no file or folder {name}; a model is a run folder, a checkpoint file, a folder of "
                         "Hugging Face, open_clip or peft, or a name that `densecap models` lists")
    return _from_open_clip(name, pretrained, prefix)


def _means_a_path(name: str) -> bool:
    """Whether a name that is not there can only be that of a file or folder."""
    path = Path(name).expanduser()
    return path.is_absolute() or name.startswith((".", "~")) or path.suffix in _WEIGHT_FILES \
        or (len(path.parts) > 1 and path.parent.is_dir())


def _adapter(pretrained: str | None) -> Path | None:
    """Where --pretrained names a folder of peft's adapters."""
    folder = Path(pretrained or RANDOM).expanduser()
    return folder if is_adapter(folder) else None


def _adapted(encoder: DualEncoder, folder: Path) -> DualEncoder:
    """A base with a folder of peft's adapters folded in."""
    _load_exactly(encoder.model, put_onto(encoder, folder), folder, "name the base that they were trained onto")
    return DualEncoder(encoder.model, replace(encoder.spec, source=f"{encoder.name} with {folder.name}"),
                       encoder.tokenizer)


def open_clip_name(name: str) -> str:
    """open_clip's spelling of an architecture: ``vit-b/16`` → ``ViT-B-16``; an unknown one is an error."""
    wanted = name.strip().replace("/", "-").lower()
    known = {model.lower(): model for model in open_clip.list_models()}
    if wanted in known:
        return str(known[wanted])
    close = [known[match] for match in difflib.get_close_matches(wanted, known, n=3)]
    hint = f"did you mean {', '.join(close)}?" if close else "`densecap models` lists the names"
    raise ModelError(f"no model is called {name!r} and no file or folder is there; {hint}")


def _from_folder(path: Path) -> DualEncoder:
    if is_run(path):
        return load_run(path)
    if is_adapter(path):
        return _adapted(_from_folder(base_of(path)), path)
    path = _model_within(path)
    refuse_code(path)
    if (path / "open_clip_config.json").is_file():
        return _from_schema(f"local-dir:{path}")
    if (path / "config.json").is_file():
        kind = read_json(path / "config.json").get("model_type")
        if kind not in HUGGING_FACE.values():
            raise ModelError(f"{path} is a Hugging Face model of type {kind!r}; only those of type "
                             f"{' and '.join(map(repr, HUGGING_FACE.values()))} can be read"
                             + _INSTEAD.get(str(kind), ""))
        return _from_weights(read_folder(path), path, None)
    raise ModelError(f"{path} is neither a run folder (no model.json), nor an open_clip folder (no "
                     "open_clip_config.json), nor a Hugging Face folder (no config.json), nor one of peft (no "
                     "adapter_config.json)")


def _model_within(folder: Path) -> Path:
    """The folder itself, or the one model below it: ``0_CLIPModel``, or a snapshot in a cache of Hugging Face's hub."""
    if any((folder / name).is_file() for name in _MODEL_FILES):
        revision = folder / "0_CLIPModel"  # of sentence-transformers before 5.4, whose config.json is of the whole
        return revision if (revision / "config.json").is_file() else folder
    within = folder / "snapshots" if (folder / "snapshots").is_dir() else folder
    main = folder / "refs" / "main"
    if main.is_file() and (named := within / main.read_text(encoding="utf-8").strip()).is_dir():
        return named
    folders = sorted(part for part in within.iterdir() if part.is_dir()
                     and any((part / name).is_file() for name in _MODEL_FILES))
    if len(folders) > 1:
        raise ModelError(f"{folder} holds several models; name one: {', '.join(part.name for part in folders[:5])}")
    return folders[0] if folders else folder


def _from_schema(name: str) -> DualEncoder:
    """hf-hub: and local-dir: folders, read by open_clip itself once nothing in them asks for code to be run."""
    cfg = _quietly(name, lambda: _checked_schema(name))
    options = tokenizer_options(cfg["text_cfg"])
    model, preprocess, tokenizer = _quietly(name, lambda: (
        *_model_and_preprocess(open_clip.create_model(name, force_custom_text=True)),
        open_clip.get_tokenizer(name, **options),
    ))
    spec = EncoderSpec(name, cfg, preprocess, 0)
    return _at_default_window(model, spec, tokenizer)


def _checked_schema(name: str) -> dict[str, Any]:
    """The model configuration of an hf-hub: or local-dir: folder, and no code beside it."""
    schema, place = parse_model_name(name)
    cfg: dict[str, Any] = open_clip.get_model_config(name)
    check_model_cfg(cfg, name)
    if schema == "local-dir":
        refuse_code(Path(place))
    for key in ("hf_model_name", "hf_tokenizer_name"):
        if cfg["text_cfg"].get(key) and not (schema == "local-dir" and key == "hf_tokenizer_name"):
            refuse_code_of(cfg["text_cfg"][key])
    return cfg


def _from_open_clip(name: str, pretrained: str | None, prefix: str | None) -> DualEncoder:
    arch = open_clip_name(name)
    if pretrained is None:
        tags = open_clip.list_pretrained_tags_by_model(arch)
        raise ModelError(f"{arch} needs weights: --pretrained with one of {', '.join(tags) or 'no known tags'}, "
                         "a checkpoint file, or random")
    if pretrained != RANDOM and not get_pretrained_cfg(arch, pretrained):
        file = Path(pretrained).expanduser()
        if not file.is_file():
            tags = open_clip.list_pretrained_tags_by_model(arch)
            raise ModelError(f"--pretrained {pretrained} is neither a file nor a tag of {arch}; "
                             f"tags: {', '.join(tags) or 'none'}")
        return _from_file(file, arch, prefix)
    cfg = open_clip.get_model_config(arch)
    if pretrained == RANDOM:
        return _random(arch, cfg)
    cfg["quick_gelu"] = get_pretrained_cfg(arch, pretrained).get("quick_gelu", False) or cfg.get("quick_gelu", False)
    model, preprocess, tokenizer = _quietly(f"{arch} ({pretrained})", lambda: (
        *_model_and_preprocess(open_clip.create_model(
            arch, pretrained, force_custom_text=True, force_quick_gelu=cfg["quick_gelu"], pretrained_text=False)),
        open_clip.get_tokenizer(arch),
    ))
    return _at_default_window(model, EncoderSpec(f"{arch} ({pretrained})", cfg, preprocess, 0), tokenizer)


def _random(arch: str, cfg: dict[str, Any]) -> DualEncoder:
    """Weights from seed 0, the same on every machine, so that an index made with them can be searched."""
    _refuse_hf_tower(arch, cfg, "random weights")
    spec = EncoderSpec(f"{arch} (random)", cfg, default_preprocess(size=cfg["vision_cfg"]["image_size"]), 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(spec)
    tokenizer = _quietly(arch, lambda: open_clip.get_tokenizer(arch))
    return _at_default_window(model, spec, tokenizer)


def _refuse_hf_tower(arch: str, cfg: dict[str, Any], what: str) -> None:
    if cfg["text_cfg"].get("hf_model_name"):
        raise ModelError(f"{arch} has a Hugging Face text tower, whose configuration must be downloaded; "
                         f"{what} are for models that open_clip describes itself")


def _from_file(path: Path, arch: str | None, prefix: str | None) -> DualEncoder:
    return _from_weights(read_state(path, prefix), path, arch)


def _from_weights(state: State, path: Path, arch: str | None) -> DualEncoder:
    """A checkpoint file, or a Hugging Face folder, in a layout that its keys tell.

    arch decides what the keys do not; what Hugging Face's JSON files beside the weights say is taken without it.
    """
    try:
        name = find_layout(state)
    except ModelError as error:
        raise ModelError(f"{path} {error}") from error
    folder = path if path.is_dir() else path.parent
    config = _described(folder, HUGGING_FACE[name]) if name in HUGGING_FACE and arch is None else None
    try:
        state = LAYOUTS[name].convert(state)
        cfg, changes = _said_by(config, state, folder) if config else _by_tensors(LAYOUTS[name], state, arch)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    activation = "QuickGELU" if cfg.get("quick_gelu") else "GELU"
    spec = EncoderSpec(f"{path.name} ({arch or name}, {activation})", cfg, default_preprocess(**changes), 0)
    model = build_model(spec)
    stray = _load_exactly(model, state, path, "check --arch" if arch else f"it is not a whole {name} checkpoint")
    if stray:
        spec = replace(spec, source=f"{spec.source}, without its tensor {stray}")
    tokenizer = _own_tokenizer(replace(spec, context_length=model.text.context_length), folder) if arch is None \
        else _quietly(arch, lambda: open_clip.get_tokenizer(open_clip_name(arch)))
    return _at_default_window(model, spec, tokenizer)


def _own_tokenizer(spec: EncoderSpec, folder: Path) -> Any:
    """CLIP's, or the one that lies in the folder of a model that has its own."""
    if spec.model_cfg["text_cfg"].get("hf_tokenizer_name") and not any(
            (folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{folder} holds no tokenizer; bring {' or '.join(_TOKENIZER_FILES)} of the model")
    try:
        return make_tokenizer(spec, folder)
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise ModelError(f"cannot read the tokenizer in {folder}: {' '.join(str(error).split())[:300]}; "
                         "pip install 'densecap-search[siglip]' brings what SigLIP's needs") from error


def _said_by(config: dict[str, Any], state: State, folder: Path) -> tuple[Config, dict[str, Any]]:
    """Configuration and preprocessing of a Hugging Face model, from its JSON files."""
    if config["model_type"] == "siglip":
        cfg = config_from_siglip(state, config)
        size = cfg["vision_cfg"]["image_size"]
        return cfg, preprocess_from_huggingface(preprocessing_of_siglip(_processor(folder), size), size)
    cfg = config_from_huggingface(state, config)
    return cfg, preprocess_from_huggingface(_processor(folder), cfg["vision_cfg"]["image_size"])


def _by_tensors(layout: Layout, state: State, arch: str | None) -> tuple[Config, dict[str, Any]]:
    cfg = _configure(layout, state, arch)
    return cfg, {"size": cfg["vision_cfg"]["image_size"]}


def _configure(layout: Layout, state: State, arch: str | None) -> Config:
    """The model configuration from --arch, or from the tensors where they tell it."""
    if arch is None and layout.configure is None:
        raise ModelError("the keys do not tell the architecture; name it with --arch, for example "
                         "--arch ViT-B-16 (or ViT-B-16-quickgelu for weights that come from OpenAI's)")
    if arch is None:
        assert layout.configure is not None
        return layout.configure(state)
    cfg: Config = open_clip.get_model_config(open_clip_name(arch))
    _refuse_hf_tower(arch, cfg, "checkpoint files")
    if layout.quick_gelu is not None:
        cfg["quick_gelu"] = layout.quick_gelu
    if "text.positional_embedding" in state:
        cfg["text_cfg"]["context_length"] = state["text.positional_embedding"].shape[0]
    return cfg


def _described(folder: Path, kind: str) -> dict[str, Any] | None:
    """The config.json of a model of this kind; others that happen to lie beside a checkpoint say nothing about it."""
    file = folder / "config.json"
    config = read_json(file) if file.is_file() else {}
    return config if config.get("model_type") == kind else None


def _processor(folder: Path) -> dict[str, Any]:
    """What a Hugging Face folder says about preprocessing; {} where it says nothing, and OpenAI's is taken."""
    if (folder / "preprocessor_config.json").is_file():
        return read_json(folder / "preprocessor_config.json")
    if (folder / "processor_config.json").is_file():  # where transformers 5 writes it
        inner = read_json(folder / "processor_config.json").get("image_processor")
        return inner if isinstance(inner, dict) else {}
    return {}


def _load_exactly(model: nn.Module, state: State, path: Path, hint: str) -> str | None:
    """Load a whole state; returns the name of the one tensor, if any, that the model has no place for."""
    own = model.state_dict()
    state = {name: value for name, value in state.items() if name not in ("text.attn_mask", "attn_mask")}
    for name in {"logit_scale", "logit_bias"} & set(state) & set(own):
        state[name] = state[name].reshape(own[name].shape)
    extra = sorted(set(state) - set(own))
    stray = extra[0] if len(extra) == 1 and not set(own) - set(state) else None
    if stray:
        del state[stray]
    wrong = sorted(set(own) ^ set(state))
    if wrong:
        raise ModelError(f"{path} does not fit this architecture: {len(set(own) - set(state))} tensors are missing and "
                         f"{len(set(state) - set(own))} are not known, such as {wrong[0]}; {hint}")
    sizes = [name for name in own if own[name].shape != state[name].shape]
    if sizes:
        name = sizes[0]
        raise ModelError(f"{path} does not fit this architecture: {name} is {tuple(state[name].shape)}, "
                         f"not {tuple(own[name].shape)}; {hint}")
    model.load_state_dict(state)
    return stray


def _at_default_window(model: Any, spec: EncoderSpec, tokenizer: Any) -> DualEncoder:
    """The window is only noted: load_encoder stretches once, from the weights' own length to the one asked for."""
    return DualEncoder(model, replace(spec, context_length=default_context_length(model.text)), tokenizer)


def _model_and_preprocess(model: Any) -> tuple[Any, dict[str, Any]]:
    return model, copy.deepcopy(model.visual.preprocess_cfg)


def _quietly(what: str, build: Any) -> Any:
    """Run open_clip's own loading without its log lines; what fails there is mostly a missing network."""
    loggers = [logging.getLogger(name) for name in (None, "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return build()
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"cannot load {what}: {reason}; if this machine has no network, bring the weights as a file "
                         "(--pretrained FILE) or use --model starter") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
