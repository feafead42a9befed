"""Adapters of low rank (LoRA, DoRA) inside both towers: put in by peft, taken out again for the run folder."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from open_clip.modified_resnet import AttentionPool2d
from torch import Tensor, nn
from torch.nn import functional as F

from densecap_search.errors import MissingPackage, ModelError

if TYPE_CHECKING:
    from densecap_search.model.encoder import DualEncoder, Tower

KINDS = ("lora", "dora")  # Hu et al. 2021, arXiv:2106.09685; Liu et al. 2024, arXiv:2402.09353
State = dict[str, Tensor]


class SplitAttention(nn.Module):
    """nn.MultiheadAttention (batch first) with q, k and v as linear layers of their own, which can be adapted."""

    def __init__(self, fused: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.dropout = fused.num_heads, fused.dropout
        biases = fused.in_proj_bias.chunk(3) if fused.in_proj_bias is not None else (None, None, None)
        weights = fused.in_proj_weight.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = (_linear(w, b) for w, b in zip(weights, biases, strict=True))
        self.out_proj = fused.out_proj

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None = None,
                need_weights: bool = False) -> tuple[Tensor, None]:
        """query [B, L, W], key and value [B, S, W] → [B, L, W] and no weights.

        attn_mask: [L, S] or [B · heads, L, S]; added to the scores, or boolean, where True hides a position.
        """
        if need_weights:
            raise NotImplementedError("SplitAttention does not return weights")
        q, k, v = (self._by_head(layer(x)) for layer, x in
                   ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        if attn_mask is not None:
            attn_mask = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask.to(q.dtype)
            if attn_mask.ndim == 3:
                attn_mask = attn_mask.reshape(-1, self.num_heads, *attn_mask.shape[1:])
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask, self.dropout if self.training else 0.0)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None

    def _by_head(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


def attach(encoder: DualEncoder, kind: str, rank: int, *, seed: int = 0) -> None:
    """Put an adapter of this kind and rank on every linear layer and 1×1 convolution of both towers, in place.

    Afterwards only the adapters require gradients, and the vectors are still those of before. Heads get none: they
    are small enough to train whole. seed: of the adapters' random halves.
    """
    peft = _import_peft()
    towers: tuple[tuple[Tower, str, Any], ...] = (
        ("image", "visual", encoder.model.visual), ("text", "text", encoder.model.text))
    targets = []
    for tower, prefix, module in towers:
        slot = encoder.head_slot(tower)
        _split_attention(module)
        found = [f"{prefix}.{name}" for name in _targets(module, slot.attribute if slot else "")]
        if not found:
            raise ModelError(f"the {tower} tower of {encoder.name} has no layer that {kind} adapts; use --tune full")
        targets += found
    settings = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, use_dora=kind == "dora")
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
    return any(True for _ in _adapted_layers(encoder.model))


@torch.no_grad()
def folded_state(module: nn.Module, changed: Mapping[str, Tensor] | None = None) -> State:
    """:func:`merged_state` of a model or of a part of one."""
    state = {**module.state_dict(), **(changed or {})}
    for name, layer in _adapted_layers(module):
        merged = copy.deepcopy(layer)
        merged.load_state_dict(_pop_below(state, name))
        merged.merge()
        state.update({f"{name}.{key}": value for key, value in merged.get_base_layer().state_dict().items()})
    for name, part in module.named_modules():
        if isinstance(part, SplitAttention):
            own = _pop_below(state, name)
            for kind in ("weight", "bias"):
                if f"q_proj.{kind}" in own:
                    state[f"{name}.in_proj_{kind}"] = torch.cat([own[f"{letter}_proj.{kind}"] for letter in "qkv"])
                if f"out_proj.{kind}" in own:
                    state[f"{name}.out_proj.{kind}"] = own[f"out_proj.{kind}"]
    return state


def _import_peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise MissingPackage("--tune lora and dora need the package peft; "
                             "pip install 'densecap-search[peft]'") from error


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def _split_attention(tower: nn.Module) -> None:
    """peft adapts nn.MultiheadAttention for LoRA alone, and folds it in by assigning to its weights."""
    for module in list(tower.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.MultiheadAttention) and child.batch_first and child.in_proj_weight is not None:
                split = SplitAttention(child)
                setattr(module, name, split.train(child.training))


def _targets(tower: nn.Module, head: str) -> Iterator[str]:
    """Linear layers and 1×1 convolutions outside the head that are called as layers, by name."""
    closed = [name for name, module in tower.named_modules()  # these read the weights of their layers directly
              if isinstance(module, (nn.MultiheadAttention, AttentionPool2d))]
    for name, module in tower.named_modules():
        if any(f"{name}.".startswith(f"{outer}.") for outer in (*closed, *([head] if head else []))):
            continue
        pointwise = isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1
        if isinstance(module, nn.Linear) or pointwise:
            yield name


def _adapted_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers that peft has wrapped; told by their tensors, so that nothing is imported where there are none."""
    for name, layer in module.named_modules():
        if hasattr(layer, "lora_A") and hasattr(layer, "get_base_layer"):
            yield name, layer


def _pop_below(state: State, name: str) -> State:
    """Take the tensors of a module out of a state dict; without the module's name."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): state.pop(key) for key in [key for key in state if key.startswith(prefix)]}
