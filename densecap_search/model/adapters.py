"""Adapters of low rank (LoRA, DoRA) inside both towers: put in by peft, taken out again for the run folder."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from open_clip.modified_resnet import AttentionPool2d
from torch import Tensor, nn

from densecap_search.errors import MissingPackage, ModelError
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.folding import SplitAttention, SplitPool, State, adapted_layers, folded_state
from densecap_search.model.text_encoder import Tower

KINDS = ("lora", "dora")  # Hu et al. 2021, arXiv:2106.09685; Liu et al. 2024, arXiv:2402.09353


def attach(encoder: DualEncoder, kind: str, rank: int, *, alpha: float | None = None, only: str | None = None,
           seed: int = 0) -> None:
    """Put an adapter of this kind and rank on every linear layer and 1×1 convolution of both towers, in place.

    Afterwards only the adapters require gradients, and the vectors are still those of before. Heads get none: they
    are small enough to train whole. alpha: adapters count alpha / rank; None: the rank, which is 1. only: a regular
    expression that the names of layers must hold. seed: of the adapters' random halves.
    """
    peft = import_peft("--tune lora and dora need")
    towers: tuple[tuple[Tower, str, Any], ...] = (
        ("image", "visual", encoder.model.visual), ("text", "text", encoder.model.text))
    targets = []
    for tower, prefix, module in towers:
        slot = encoder.head_slot(tower)
        _split_attention(module)
        every = [f"{prefix}.{name}" for name in _targets(module, slot.attribute if slot else "")]
        layers = [name for name in every if only is None or re.search(only, name)]
        if not every:
            raise ModelError(f"the {tower} tower of {encoder.name} has no layer that {kind} adapts; use --tune full")
        targets += layers
    if not targets:
        raise ModelError(f"train.lora_targets {only!r} is in the name of no layer that {kind} adapts, such as "
                         f"{every[0]}")
    settings = peft.LoraConfig(r=rank, lora_alpha=rank if alpha is None else alpha, target_modules=targets,
                               use_dora=kind == "dora")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, encoder.model)


def merged_state(encoder: DualEncoder, changed: Mapping[str, Tensor] | None = None) -> State:
    """The state dict with adapters folded in: names and shapes are those of the model before :func:`attach`.

    changed: values of parameters, by name, that stand in for the model's own. The model itself is left as it is;
    what no adapter touches shares its memory, as in :meth:`torch.nn.Module.state_dict`.
    """
    return folded_state(encoder.model, changed)


def adapter_state(encoder: DualEncoder, changed: Mapping[str, Tensor] | None = None) -> State:
    """Only what training changes: adapters, heads, logit_scale; by their names in the model that trains."""
    values = {name: value for name, value in encoder.model.named_parameters()
              if value.requires_grad or name == "logit_scale"}
    return {name: (changed or {}).get(name, value).detach() for name, value in values.items()}


def is_adapted(encoder: DualEncoder) -> bool:
    """Whether :func:`attach` was called on an encoder."""
    return any(True for _ in adapted_layers(encoder.model))


def import_peft(needs: str) -> Any:
    """The package. needs: who needs it, as the beginning of a sentence."""
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise MissingPackage(f"{needs} the package peft; pip install 'densecap-search[peft]'") from error


def _split_attention(tower: nn.Module) -> None:
    """peft adapts nn.MultiheadAttention for LoRA alone, and folds it in by assigning to its weights."""
    for module in list(tower.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.MultiheadAttention) and child.batch_first and child.in_proj_weight is not None:
                split = SplitAttention(child)
                setattr(module, name, split.train(child.training))
            elif isinstance(child, AttentionPool2d):
                setattr(module, name, SplitPool(child).train(child.training))


def _targets(tower: nn.Module, head: str) -> Iterator[str]:
    """Linear layers and 1×1 convolutions outside the head that are called as layers, by name."""
    closed = [name for name, module in tower.named_modules()  # these read the weights of their layers directly
              if isinstance(module, nn.MultiheadAttention)]
    for name, module in tower.named_modules():
        if any(f"{name}.".startswith(f"{outer}.") for outer in (*closed, *([head] if head else []))):
            continue
        pointwise = isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1
        if isinstance(module, nn.Linear) or pointwise:
            yield name


