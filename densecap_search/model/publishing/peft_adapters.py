"""peft: a folder for ``PeftModel.from_pretrained`` onto a CLIPModel, which lies in it as ``base``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densecap_search.errors import ModelError
from densecap_search.model.adapters import import_peft
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.folding import State
from densecap_search.model.publishing import huggingface
from densecap_search.model.publishing.agreement import Loaded

BASE = "base"
_HEADS = ("text_projection", "visual_projection")  # trained whole


@dataclass(frozen=True)
class Adapters:
    """What a run trained, apart from the model that it began with.

    tensors: as :func:`densecap_search.model.adapters.adapter_state` names them. kind: lora or dora. alpha: adapters
    count alpha / rank.
    """

    base: DualEncoder
    tensors: State
    kind: str
    rank: int
    alpha: float


def write(adapters: Adapters, folder: Path) -> None:
    """adapter_model.safetensors and adapter_config.json, by peft itself; and the base as transformers reads it."""
    peft = import_peft("--as peft needs")
    if huggingface.is_siglip(adapters.base):
        raise ModelError(f"adapters of {adapters.base.name} are for attention in one matrix, which Hugging Face's "
                         "SiglipModel has not; publish the run merged, with --as huggingface or open_clip")
    huggingface.write(adapters.base, folder / BASE, "fp32")
    tensors = {_as_saved(name): value for name, value in huggingface.to_huggingface(adapters.tensors).items()
               if name != "logit_scale"}
    layers = sorted({name.partition(".lora_")[0].removeprefix("base_model.model.") for name in tensors
                     if ".lora_" in name})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks transformers for things by their old names
        model = _with_tensors(peft, adapters, layers, tensors)
        model.save_pretrained(folder)


def _with_tensors(peft: Any, adapters: Adapters, layers: list[str], tensors: State) -> Any:
    """A PeftModel on the base that has these tensors."""
    model = peft.get_peft_model(huggingface.as_model(adapters.base), peft.LoraConfig(
        r=adapters.rank, lora_alpha=adapters.alpha, target_modules=layers, use_dora=adapters.kind == "dora",
        modules_to_save=list(_HEADS)))
    model.peft_config["default"].base_model_name_or_path = BASE
    put = peft.set_peft_model_state_dict(model, tensors)
    wrong = [*put.unexpected_keys, *(name for name in put.missing_keys if ".lora_" in name)]
    if wrong:
        raise ModelError(f"the adapter {wrong[0]} of {adapters.base.name} has no place in Hugging Face's CLIPModel; "
                         "publish it merged, with --as open_clip or onnx")
    return model


def load(folder: Path) -> Loaded:
    """As a user of peft does it."""
    import transformers

    peft = import_peft("--as peft needs")
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(folder / BASE), folder).eval()
    return huggingface.in_hands(f"peft {peft.__version__}", model, folder / BASE)


def _as_saved(name: str) -> str:
    """As peft names it in a file: without the adapter's own name."""
    short = name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default.", ".")
    return f"base_model.model.{short}"
