"""Where in its tower a parameter stands: the embeddings, the blocks one after the other, the head."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from open_clip.timm_model import TimmModel
from timm.models import group_parameters
from torch import nn

from densecap_search.errors import ModelError
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.text_encoder import Tower


@dataclass(frozen=True)
class Blocks:
    """The blocks of one tower.

    number: parameter of the model, by name → 0 in the embeddings (or the stem), 1 … count in a block, count + 1 in
    the head. What follows the last block, such as the final norm, counts as part of it.
    """

    count: int
    number: Mapping[str, int]


def find_blocks(encoder: DualEncoder, tower: Tower) -> Blocks:
    """The blocks of a tower that open_clip, timm or transformers made; ModelError where it has none."""
    prefix, module = ("visual", encoder.model.visual) if tower == "image" else ("text", encoder.model.text)
    slot = encoder.head_slot(tower)
    head = re.compile(rf"{slot.attribute}(\.|$)" if slot else r"$.")
    names = [name for name, _ in module.named_parameters() if not head.match(name)]
    if isinstance(module, TimmModel):
        numbers = {f"trunk.{name}": number for name, number in _in_timm_trunk(module.trunk).items()}
    else:
        numbers = _around_list(module, names)
    if not numbers:
        raise ModelError(f"the {tower} tower of {encoder.name} is a {type(module).__name__}, which has no list of "
                         "blocks; use --tune full or heads, and a train.layer_decay of 1")
    count = max(numbers.values())
    known = {name: numbers.get(name, count) for name in names}
    heads = {name: count + 1 for name, _ in module.named_parameters() if head.match(name)}
    return Blocks(count, {f"{prefix}.{name}": number for name, number in (known | heads).items()})


def _in_timm_trunk(trunk: Any) -> dict[str, int]:
    """timm's own grouping, finest level; names that it leaves over (pooling) go with the last block."""
    matcher = trunk.group_matcher(coarse=False)
    numbers: dict[str, int] = group_parameters(trunk, matcher, reverse=True)
    if not isinstance(matcher, dict):
        return numbers
    patterns = [entry if isinstance(entry, str) else entry[0] for group in matcher.values() if group is not None
                for entry in ([group] if isinstance(group, str) else group)]
    return {name: number for name, number in numbers.items() if any(re.match(pattern, name) for pattern in patterns)}


def _around_list(module: nn.Module, names: Iterable[str]) -> dict[str, int]:
    """Towers that keep their blocks in one list: what is registered before it is 0, what after it the last block."""
    where = next((name for name, part in module.named_modules() if isinstance(part, nn.ModuleList)), None)
    if where is None:
        return {}
    inside = re.compile(rf"{re.escape(where)}\.(\d+)\.")
    numbers, latest = {}, 0
    for name in names:
        match = inside.match(name)
        latest = int(match[1]) + 1 if match else latest
        numbers[name] = latest
    return numbers
