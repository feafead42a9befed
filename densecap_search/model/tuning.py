"""What trains: which parameters of an encoder, and the mode its layers are in meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from densecap_search.errors import ModelError
from densecap_search.model.encoder import DualEncoder, Tower
from densecap_search.model.heads import Standardise

Array = npt.NDArray[np.float32]


def _heads(encoder: DualEncoder) -> Iterator[nn.Parameter]:
    towers: tuple[Tower, Tower] = ("image", "text")
    for tower in towers:
        slot = encoder.head_slot(tower)
        if slot is None:
            raise ModelError(f"the {tower} tower of {encoder.name} has no head of its own to train; use --tune full")
        head = slot.head
        yield from [head] if isinstance(head, nn.Parameter) else head.parameters()


def _full(encoder: DualEncoder) -> Iterator[nn.Parameter]:
    yield from (value for name, value in encoder.model.named_parameters() if name not in ("logit_scale", "logit_bias"))


TUNE = {"full": _full, "heads": _heads}


def select_parameters(encoder: DualEncoder, tune: str, *, learn_logit_scale: bool) -> dict[str, nn.Parameter]:
    """Mark what trains, and return it by name; everything else is frozen."""
    chosen = {id(parameter) for parameter in TUNE[tune](encoder)}
    if learn_logit_scale:
        chosen.add(id(encoder.model.logit_scale))
    trained = {}
    for name, parameter in encoder.model.named_parameters():
        parameter.requires_grad_(id(parameter) in chosen)
        if parameter.requires_grad:
            trained[name] = parameter
    return trained


def default_tune(encoder: DualEncoder) -> str:
    """Heads where the towers are small and were never trained together (the starter), else everything."""
    return "heads" if encoder.spec.starter_heads is not None else "full"


def fit_standardisation(encoder: DualEncoder, image_rows: Array, text_rows: Array) -> None:
    """Give heads that start from nothing the mean and deviation of the tower outputs that they will see."""
    towers: tuple[tuple[Tower, Array], ...] = (("image", image_rows), ("text", text_rows))
    for tower, rows in towers:
        slot = encoder.head_slot(tower)
        for module in slot.head.modules() if slot is not None and isinstance(slot.head, nn.Module) else ():
            if isinstance(module, Standardise):
                module.fit(torch.from_numpy(rows))


def set_training_mode(encoder: DualEncoder, tune: str) -> None:
    """Dropout on where something trains; BatchNorm always keeps its pre-trained statistics."""
    encoder.model.train(tune == "full")
    if tune == "heads":
        for tower in (encoder.head_slot("image"), encoder.head_slot("text")):
            if tower is not None and isinstance(tower.head, nn.Module):
                tower.head.train()
    for module in encoder.model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def parameter_groups(parameters: dict[str, nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """Weight decay on matrices only: not on norms, biases and logit_scale."""
    decayed = [value for value in parameters.values() if value.ndim >= 2]
    others = [value for value in parameters.values() if value.ndim < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
