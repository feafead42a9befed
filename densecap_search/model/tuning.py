"""What trains: which parameters of an encoder, how fast, and the mode its layers are in meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from densecap_search.config import parse_tune
from densecap_search.errors import ModelError
from densecap_search.model import adapters
from densecap_search.model.blocks import find_blocks
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.heads import Standardise
from densecap_search.model.text_encoder import Tower

Array = npt.NDArray[np.float32]
TOWERS: tuple[Tower, Tower] = ("image", "text")
NO_DECAY = re.compile(  # beside vectors and scalars: positions and class tokens, and DoRA's lengths
    r"(^|\.)(positional_embedding|class_embedding|cls_emb|pos_embed|cls_token|reg_token|position_embeddings\.weight"
    r"|lora_magnitude_vector\..*)$"
)


def _head(encoder: DualEncoder, tower: Tower) -> list[nn.Parameter]:
    slot = encoder.head_slot(tower)
    if slot is None:
        return []
    return [slot.head] if isinstance(slot.head, nn.Parameter) else list(slot.head.parameters())


def _full(encoder: DualEncoder, blocks: int) -> Iterator[nn.Parameter]:
    yield from (value for name, value in encoder.model.named_parameters() if name not in ("logit_scale", "logit_bias"))


def _heads(encoder: DualEncoder, blocks: int) -> Iterator[nn.Parameter]:
    for tower in TOWERS:
        if not _head(encoder, tower):
            raise ModelError(f"the {tower} tower of {encoder.name} has no head of its own to train; use --tune full")
        yield from _head(encoder, tower)


def _last(encoder: DualEncoder, blocks: int) -> Iterator[nn.Parameter]:
    parameters = dict(encoder.model.named_parameters())
    for tower in TOWERS:
        blocks_of = find_blocks(encoder, tower)
        if blocks > blocks_of.count:
            raise ModelError(f"--tune last:{blocks} asks for more blocks than the {tower} tower of {encoder.name} has: "
                             f"{blocks_of.count}; use last:{blocks_of.count} or fewer, or full")
        yield from (parameters[name] for name, number in blocks_of.number.items() if number > blocks_of.count - blocks)


def _adapted(encoder: DualEncoder, blocks: int) -> Iterator[nn.Parameter]:
    yield from (value for name, value in encoder.model.named_parameters() if ".lora_" in name)
    for tower in TOWERS:
        yield from _head(encoder, tower)


TUNE: dict[str, Callable[[DualEncoder, int], Iterator[nn.Parameter]]] = {
    "full": _full, "heads": _heads, "last": _last, "lora": _adapted, "dora": _adapted,
}


def select_parameters(
    encoder: DualEncoder, tune: str, *, learn_logit_scale: bool, rank: int = 16, alpha: float | None = None,
    only: str | None = None, seed: int = 0,
) -> dict[str, nn.Parameter]:
    """Mark what trains, and return it by name; everything else is frozen.

    tune: as :func:`densecap_search.config.parse_tune` reads it; lora and dora put adapters of this rank, alpha and
    choice of layers (see :func:`adapters.attach`) into the encoder, with random halves from seed.
    """
    mode, blocks = parse_tune(tune)
    if mode in adapters.KINDS:
        adapters.attach(encoder, mode, rank, alpha=alpha, only=only, seed=seed)
    chosen = {id(parameter) for parameter in TUNE[mode](encoder, blocks)}
    if learn_logit_scale:
        chosen.add(id(encoder.model.logit_scale))
    trained = {}
    for name, parameter in encoder.model.named_parameters():
        parameter.requires_grad_(id(parameter) in chosen)
        if parameter.requires_grad:
            trained[name] = parameter
    return trained


def count_trained(encoder: DualEncoder, trained: Mapping[str, nn.Parameter]) -> str:
    """How many parameters train, in words: in each tower (heads counted in) and of how many."""
    image, text = (sum(value.numel() for name, value in trained.items() if name.startswith(prefix))
                   for prefix in ("visual.", "text."))
    total = sum(value.numel() for value in encoder.model.parameters())
    return f"{image:,} parameters train in the image tower, {text:,} in the text tower, of {total:,}"


def default_tune(encoder: DualEncoder) -> str:
    """Heads where the towers are small and were never trained together (the starter), else everything."""
    return "heads" if encoder.spec.starter_heads is not None else "full"


def fit_standardisation(encoder: DualEncoder, image_rows: Array, text_rows: Array) -> None:
    """Give heads that start from nothing the mean and deviation of the tower outputs that they will see."""
    for tower, rows in zip(TOWERS, (image_rows, text_rows), strict=True):
        slot = encoder.head_slot(tower)
        for module in slot.head.modules() if slot is not None and isinstance(slot.head, nn.Module) else ():
            if isinstance(module, Standardise):
                module.fit(torch.from_numpy(rows))


def set_training_mode(encoder: DualEncoder) -> None:
    """Dropout on in the modules that hold what trains; BatchNorm always keeps its pre-trained statistics.

    A module without parameters, such as a dropout layer, goes with the module that holds it.
    """
    _train_where_trained(encoder.model)
    for module in encoder.model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def _train_where_trained(module: nn.Module) -> None:
    module.training = any(parameter.requires_grad for parameter in module.parameters())
    for child in module.children():
        if any(True for _ in child.parameters()):
            _train_where_trained(child)
        else:
            child.train(module.training)


def parameter_groups(
    encoder: DualEncoder, parameters: dict[str, nn.Parameter], weight_decay: float, layer_decay: float = 1.0,
    towers: Mapping[Tower, float] | None = None,
) -> list[dict[str, Any]]:
    """Groups for an optimiser, each with ``weight_decay`` and ``lr_scale``, a factor on the learning rate.

    Weight decay is for matrices: not for norms, biases, logit_scale, positional embeddings and class tokens.
    lr_scale is layer_decay^b: b is 0 for heads and logit_scale, 1 for the last block, 2 for the one below it, and
    most for the embeddings (Bao et al. 2021, arXiv:2106.08254). towers: a further factor
    for all of a tower; 0 leaves it as it is. The group with the highest rate comes first.
    """
    below = _blocks_below_head(encoder) if layer_decay != 1.0 else {}
    factors = {"visual": (towers or {}).get("image", 1.0), "text": (towers or {}).get("text", 1.0)}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, value in parameters.items():
        decays = value.squeeze().ndim >= 2 and not NO_DECAY.search(name)
        tower = factors.get(name.partition(".")[0], 1.0)
        key = (tower * layer_decay ** below.get(name, 0), weight_decay if decays else 0.0)
        groups.setdefault(key, []).append(value)
    ordered = sorted(groups.items(), key=lambda item: item[0], reverse=True)
    return [{"params": values, "lr_scale": scale, "weight_decay": decay} for (scale, decay), values in ordered]


def _blocks_below_head(encoder: DualEncoder) -> dict[str, int]:
    below = {}
    for tower in TOWERS:
        blocks_of = find_blocks(encoder, tower)
        below.update({name: blocks_of.count + 1 - number for name, number in blocks_of.number.items()})
    return below
