"""What a run of lora or dora trained, as adapters of peft: written onto a CLIPModel, and read from one."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import peft
import pytest
import torch
from click.testing import CliRunner
from helpers import load, make_mixed, make_tiny
from transformers import CLIPModel

from densecap_search.cli import main
from densecap_search.collection.records import Collection
from densecap_search.config import ModelConfig, RunConfig, TrainConfig
from densecap_search.errors import DensecapError, ModelError
from densecap_search.model.adapters import adapter_state
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing import huggingface, peft_adapters
from densecap_search.model.publishing.peft_adapters import Adapters
from densecap_search.model.tuning import select_parameters
from densecap_search.talk import SILENT
from densecap_search.training.loop import finetune
from densecap_search.workflows.publish import check, read_adapters

RANK, ALPHA = 3, 5.0


def trained(kind: str, window: int = 100) -> tuple[DualEncoder, Adapters]:
    """A tiny encoder with adapters and heads that do something, and the same apart from its base."""
    encoder = make_tiny(window)
    select_parameters(encoder, kind, learn_logit_scale=True, rank=RANK, alpha=ALPHA)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, value in encoder.model.named_parameters():
            if value.requires_grad and value.ndim == 2:
                value.add_(torch.randn(value.shape, generator=generator) * (0.05 if ".lora_" in name else 0.1))
            if "lora_magnitude" in name:
                value.mul_(1.1)
    return encoder, Adapters(make_tiny(window), adapter_state(encoder), kind, RANK, ALPHA)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_peft_gives_the_vectors_of_the_run_and_the_base_alone_does_not(kind: str, tmp_path: Path):
    encoder, adapters = trained(kind)
    peft_adapters.write(adapters, tmp_path)
    assert check(encoder, peft_adapters.load(tmp_path), "fp32").least == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ModelError, match="makes other vectors"):
        check(encoder, huggingface.load(tmp_path / "base"), "fp32")
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"], said["use_dora"]) == (RANK, ALPHA, kind == "dora")


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_what_was_published_is_read_back_here_with_its_base(kind: str, tmp_path: Path):
    encoder, adapters = trained(kind)
    peft_adapters.write(adapters, tmp_path / "mine")
    again = load(str(tmp_path / "mine"), context_length=100)
    assert again.name == "base (Hugging Face CLIPModel, GELU) with mine"
    assert_same(again, encoder)
    (tmp_path / "mine" / "base").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=r"mine holds adapters for base, which is no folder here; name that model with --model and"):
        load(str(tmp_path / "mine"))
    assert_same(load(str(tmp_path / "elsewhere"), pretrained=str(tmp_path / "mine"), context_length=100), encoder)


def assert_same(a: DualEncoder, b: DualEncoder) -> None:
    pixels, tokens = torch.randn(2, 3, 32, 32), b.tokenize(["a red ball", "two dogs"]).ids
    assert torch.allclose(a.encode_image(pixels), b.encode_image(pixels), atol=1e-5)
    assert torch.allclose(a.encode_text(tokens), b.encode_text(tokens), atol=1e-5)


@pytest.mark.parametrize("said", [
    {"target_modules": ["q_proj", "v_proj"]},
    {"target_modules": r".*text_model.*fc1", "use_rslora": True, "lora_alpha": 7},
    {"target_modules": ["q_proj", "fc2"], "rank_pattern": {"fc2": 4}, "alpha_pattern": {"fc2": 9}, "bias": "all"},
    {"target_modules": ["patch_embedding", "token_embedding", "text_projection"], "modules_to_save": ["visual_projection"]},
], ids=str)
def test_adapters_that_peft_made_give_the_vectors_of_peft(said: dict, tmp_path: Path):
    huggingface.write(make_tiny(77), tmp_path / "base", "fp32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks transformers for things by their old names
        theirs = peft.get_peft_model(CLIPModel.from_pretrained(tmp_path / "base"), peft.LoraConfig(r=2, **said)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in theirs.parameters():
            if value.requires_grad:
                value.add_(torch.randn(value.shape, generator=generator) * 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.save_pretrained(tmp_path / "adapter")
    ours = load(str(tmp_path / "adapter"), context_length=77)
    pixels, ids = torch.randn(2, 3, 32, 32), ours.tokenize(["a red ball", "two dogs lie"]).ids
    with torch.no_grad():
        image = huggingface.rows_of(theirs.get_image_features(pixel_values=pixels))
        text = huggingface.rows_of(theirs.get_text_features(input_ids=ids.masked_fill(ids == 0, 49407), attention_mask=(ids != 0).long()))
        assert ours.encode_image(pixels).numpy() == pytest.approx(image / (image ** 2).sum(1, keepdims=True) ** 0.5, abs=1e-5)
        assert ours.encode_text(ids).numpy() == pytest.approx(text / (text ** 2).sum(1, keepdims=True) ** 0.5, abs=1e-5)


@pytest.mark.parametrize(("change", "sentence"), [
    ({"peft_type": "IA3"}, "holds adapters of type 'IA3'; only those of type 'LORA'"),
    ({"megatron_config": {"a": 1}, "megatron_core": "os"}, "adapter_config.json sets megatron_config, which is not read"),
    ({"init_lora_weights": "pissa"}, r"sets init_lora_weights \('pissa'\), which is not read; merge the adapters"),
    ({"r": 4}, "does not fit base"),
    ({"target_modules": ["nowhere"]}, "does not fit base"),
    ({"target_modules": ["fc1"]}, "does not fit base"),
])
def test_adapters_that_cannot_be_read_are_one_sentence(change: dict, sentence: str, tmp_path: Path):
    _, adapters = trained("lora")
    peft_adapters.write(adapters, tmp_path)
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**said, **change}))
    with pytest.raises(ModelError, match=sentence):
        load(str(tmp_path))


def test_a_run_of_lora_is_published_by_the_command(collection: Collection, tiny_run: Path, tmp_path: Path):
    base = Path(shutil.copytree(tiny_run, tmp_path / "base"))
    settings = TrainConfig(tune="lora", epochs=1, batch_size=8, objective="info_nce", rank=2, lora_alpha=6.0, lr=1e-2)
    finetune(collection, RunConfig(model=ModelConfig(str(base)), train=settings), tmp_path / "run", talk=SILENT)
    result = CliRunner().invoke(main, ["publish", str(tmp_path / "run"), "-o", str(tmp_path / "mine"), "--as", "peft"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"peft {peft.__version__} gives the vectors of the run" in result.output
    assert 'PeftModel.from_pretrained(AutoModel.from_pretrained("mine/base"), "mine")' in (tmp_path / "mine" / "README.md").read_text()
    assert json.loads((tmp_path / "mine" / "adapter_config.json").read_text())["lora_alpha"] == 6
    shutil.rmtree(base)
    with pytest.raises(DensecapError, match=r"the model that .*run began with is needed for --as peft: there is no file or folder"):
        read_adapters(tmp_path / "run", make_tiny())


def test_what_peft_cannot_hold_is_one_sentence(tmp_path: Path):
    with pytest.raises(DensecapError, match=r"holds no adapter\.safetensors: --as peft is for runs that were trained with --tune lora or dora; publish it whole"):
        read_adapters(tmp_path, make_tiny())
    adapters = Adapters(make_mixed(tmp_path / "text"), {}, "lora", RANK, ALPHA)
    with pytest.raises(ModelError, match=r"the towers of mixed .* are not those of Hugging Face's CLIPModel"):
        peft_adapters.write(adapters, tmp_path / "peft")
