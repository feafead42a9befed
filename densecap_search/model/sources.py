"""Where encoders come from: the starter, run folders, open_clip's names, checkpoint files people have."""

from __future__ import annotations

import copy
import difflib
import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.factory import parse_model_name
from open_clip.model import convert_to_custom_text_state_dict
from open_clip.pretrained import get_pretrained_cfg
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from densecap_search.errors import ModelError
from densecap_search.model.checkpoint import build_model, is_run, load_run, make_tokenizer
from densecap_search.model.device import choose_device, choose_precision
from densecap_search.model.encoder import DualEncoder, EncoderSpec, default_preprocess
from densecap_search.model.starter import load_starter
from densecap_search.model.window import KEPT_ROWS, default_context_length, set_context_length

RANDOM = "random"
State = dict[str, Tensor]


def load_encoder(
    name: str, *, pretrained: str | None = None, arch: str | None = None, context_length: int | None = None,
    device: str = "auto", precision: str = "fp32",
) -> DualEncoder:
    """The encoder that a user names.

    name: ``starter``, a run folder, an open_clip name (also ``hf-hub:…`` and ``local-dir:…``), or a checkpoint
    file. pretrained: for open_clip names an open_clip tag, a checkpoint file, or ``random`` (weights from seed 0).
    arch: the open_clip name of a checkpoint file whose keys do not tell. context_length: another text window.
    """
    name = name.strip()
    chosen = choose_device(device)
    precision = choose_precision(precision, chosen)
    path = Path(name).expanduser()
    if name == "starter":
        encoder = load_starter(heads=pretrained != RANDOM)
    elif path.is_dir():
        encoder = _from_folder(path)
    elif path.is_file():
        encoder = _from_file(path, arch)
    elif parse_model_name(name)[0]:
        encoder = _from_schema(name)
    else:
        encoder = _from_open_clip(name, pretrained)
    length = context_length or encoder.context_length
    if length != encoder.context_length or length != encoder.model.text.context_length:
        set_context_length(encoder.model.text, length)
    spec = replace(encoder.spec, context_length=length)
    return DualEncoder(encoder.model, spec, encoder.tokenizer, device=chosen, precision=precision)


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
    if (path / "open_clip_config.json").is_file():
        return _from_schema(f"local-dir:{path}")
    raise ModelError(f"{path} is neither a run folder (no model.json) nor an open_clip folder "
                     "(no open_clip_config.json)")


def _from_schema(name: str) -> DualEncoder:
    """hf-hub: and local-dir: folders, read by open_clip itself."""
    model, preprocess, tokenizer = _quietly(name, lambda: (
        *_model_and_preprocess(open_clip.create_model(name, force_custom_text=True)),
        open_clip.get_tokenizer(name),
    ))
    cfg = open_clip.get_model_config(name)
    spec = EncoderSpec(name, cfg, preprocess, 0)
    return _at_default_window(model, spec, tokenizer)


def _from_open_clip(name: str, pretrained: str | None) -> DualEncoder:
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
        return _from_file(file, arch)
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
    if cfg["text_cfg"].get("hf_model_name"):
        raise ModelError(f"{arch} has a Hugging Face text tower, whose configuration must be downloaded; "
                         "random weights are for models that open_clip describes itself")
    spec = EncoderSpec(f"{arch} (random)", cfg, default_preprocess(size=cfg["vision_cfg"]["image_size"]), 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(spec)
    tokenizer = _quietly(arch, lambda: open_clip.get_tokenizer(arch))
    return _at_default_window(model, spec, tokenizer)


def _from_file(path: Path, arch: str | None) -> DualEncoder:
    """A checkpoint in open_clip's or Long-CLIP's layout, recognised by its keys."""
    state = read_state(path)
    state, long_clip = _merge_long_clip(state)
    if "positional_embedding" in state:
        state = convert_to_custom_text_state_dict(state)
    if not {"visual.conv1.weight", "text.positional_embedding"} <= set(state) and arch is None:
        raise ModelError(f"{path} has a layout that is not known (its keys begin with {_some(state)}); "
                         "name its architecture with --arch NAME")
    if long_clip:
        cfg = _config_from_shapes(state)
    elif arch is None:
        raise ModelError(f"the keys of {path} do not tell its architecture; name it with --arch, for example "
                         "--arch ViT-B-16 (or ViT-B-16-quickgelu for weights that come from OpenAI's)")
    else:
        cfg = open_clip.get_model_config(open_clip_name(arch))
    positions = state.get("text.positional_embedding")
    if positions is not None:
        cfg["text_cfg"]["context_length"] = positions.shape[0]
    size = cfg["vision_cfg"]["image_size"]
    spec = EncoderSpec(f"{path.name}", cfg, default_preprocess(size=size), 0)
    model = build_model(spec)
    _load_exactly(model, state, path)
    return _at_default_window(model, spec, make_tokenizer(replace(spec, context_length=77), None))


def read_state(path: Path) -> State:
    """The tensors of a .safetensors, .pt, .pth or .bin file, by name; nothing in it is executed."""
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ModelError(f"{path} is not a whole safetensors file: {error}") from error
    except Exception as error:  # torch raises many kinds; each means that the file holds more than tensors, or less
        raise ModelError(f"{path} cannot be read as plain tensors ({type(error).__name__}); "
                         "save its state_dict as .safetensors and name that file") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    state = {re.sub(r"^(module\.|_orig_mod\.)+", "", str(name)): value for name, value in found.items()
             if isinstance(value, Tensor)} if isinstance(found, Mapping) else {}
    if not state:
        raise ModelError(f"{path} holds no named tensors")
    return {name: value.float() if value.is_floating_point() else value for name, value in state.items()}


def _merge_long_clip(state: State) -> tuple[State, bool]:
    """Long-CLIP's two 248-row tensors as one: rows below 20 from the frozen, the rest from the trained."""
    rest = state.pop("positional_embedding_res", None)
    if rest is None:
        return state, False
    first = state["positional_embedding"]
    return {**state, "positional_embedding": torch.cat([first[:KEPT_ROWS], rest[KEPT_ROWS:]])}, True


def _config_from_shapes(state: State) -> dict[str, Any]:
    """open_clip's configuration of an OpenAI-style ViT (heads of 64, QuickGELU), from its tensors."""
    def layers(tower: str) -> int:
        block = re.compile(rf"{tower}\.transformer\.resblocks\.\d+\.ln_1\.weight")
        return sum(1 for name in state if block.fullmatch(name))

    width, _, patch, _ = state["visual.conv1.weight"].shape
    grid = round((state["visual.positional_embedding"].shape[0] - 1) ** 0.5)
    text_width = state["text.ln_final.weight"].shape[0]
    return {
        "embed_dim": state["text.text_projection"].shape[1],
        "quick_gelu": True,
        "vision_cfg": {"image_size": patch * grid, "layers": layers("visual"), "width": width, "patch_size": patch},
        "text_cfg": {"context_length": state["text.positional_embedding"].shape[0],
                     "vocab_size": state["text.token_embedding.weight"].shape[0], "width": text_width,
                     "heads": max(1, text_width // 64), "layers": layers("text")},
    }


def _load_exactly(model: nn.Module, state: State, path: Path) -> None:
    own = model.state_dict()
    state = {name: value for name, value in state.items() if name not in ("text.attn_mask", "attn_mask")}
    if "logit_scale" in state:
        state["logit_scale"] = state["logit_scale"].reshape(own["logit_scale"].shape)
    wrong = sorted(set(own) ^ set(state))
    if wrong:
        raise ModelError(f"{path} does not fit this architecture: {len(set(own) - set(state))} tensors are missing and "
                         f"{len(set(state) - set(own))} are not known, such as {wrong[0]}; check --arch")
    sizes = [name for name in own if own[name].shape != state[name].shape]
    if sizes:
        name = sizes[0]
        raise ModelError(f"{path} does not fit this architecture: {name} is {tuple(state[name].shape)}, "
                         f"not {tuple(own[name].shape)}; check --arch")
    model.load_state_dict(state)


def _at_default_window(model: Any, spec: EncoderSpec, tokenizer: Any) -> DualEncoder:
    length = default_context_length(model.text)
    set_context_length(model.text, length)
    return DualEncoder(model, replace(spec, context_length=length), tokenizer)


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


def _some(state: State) -> str:
    return ", ".join(sorted({name.split(".")[0] for name in state})[:6])
