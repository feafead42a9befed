"""SigLIP and SigLIP 2 as Hugging Face has them: the vectors of transformers, there and back."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import timm
import torch
from helpers import load
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional as F
from transformers import AutoTokenizer, Siglip2Tokenizer, SiglipConfig, SiglipModel, SiglipTokenizer
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from densecap_search.errors import ModelError
from densecap_search.model import siglip
from densecap_search.model.checkpoint import load_run, save_encoder
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.publishing import huggingface, open_clip_folder
from densecap_search.workflows.publish import check, check_inputs

sentencepiece = pytest.importorskip("sentencepiece")  # of the extra siglip
CAPTIONS = ["a red ball", "Two boats lie before a WHITE lighthouse, at dawn!", "word " * 60 + "red", ""]
TOLERANCE = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(autouse=True)
def tiny_trunk(monkeypatch: pytest.MonkeyPatch):
    """A model of timm with the name that a SigLIP of two layers would have."""
    def vit_tiny_patch8_siglip_32(pretrained: bool = False, **settings: object) -> VisionTransformer:
        return VisionTransformer(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, mlp_ratio=2, class_token=False,
                                 **{"global_pool": "map", **{k: v for k, v in settings.items() if k in ("num_classes", "global_pool")}})

    vit_tiny_patch8_siglip_32.__module__ = "timm.models.vision_transformer"
    if not timm.is_model("vit_tiny_patch8_siglip_32"):
        timm.models.register_model(vit_tiny_patch8_siglip_32)
    monkeypatch.setitem(siglip.TRUNKS, (48, 2, 3, 96), "tiny")


def write_tokenizer(folder: Path, kind: str) -> int:
    """A real tokenizer with a small vocabulary; returns its size."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "siglip2":
        letters = "abcdefghijklmnopqrstuvwxyz▁,.!"
        words = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "re", "red"]
        tokenizer = Siglip2Tokenizer(vocab={word: n for n, word in enumerate(words)}, merges=[("r", "e"), ("re", "d")], padding_side="right")
        tokenizer.save_pretrained(folder)
        return len(words)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter([text.lower() for text in check_inputs()[1]]), model_writer=model,
                                             vocab_size=90, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
    (folder / "spiece.model").write_bytes(model.getvalue())
    SiglipTokenizer(str(folder / "spiece.model")).save_pretrained(folder)
    return 90


def write_model(folder: Path, kind: str = "siglip", *, projection: int = 48, act: str = "gelu_pytorch_tanh") -> SiglipModel:
    """A SiglipModel of two layers a tower, with weights so uneven that each detail shows in the vectors."""
    words = write_tokenizer(folder, kind)
    tower = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96, "hidden_act": act}
    model = SiglipModel(SiglipConfig(
        text_config={**tower, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 101, "vocab_size": words, "projection_size": projection},
        vision_config={**tower, "image_size": 32, "patch_size": 8}))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * (0.3 if value.ndim == 1 else 1.5 / value[0].numel() ** 0.5))
    model.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return model.eval()


@torch.no_grad()
def assert_same(encoder: DualEncoder, theirs: SiglipModel, folder: Path) -> None:
    ids = AutoTokenizer.from_pretrained(folder)(CAPTIONS, padding="max_length", truncation=True, max_length=64, return_tensors="pt").input_ids
    assert torch.equal(encoder.tokenize(CAPTIONS).ids, ids)
    text = F.normalize(theirs.get_text_features(input_ids=ids).pooler_output, dim=-1)
    assert torch.allclose(encoder.encode_text(ids), text, **TOLERANCE)
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    image = F.normalize(theirs.get_image_features(pixel_values=pixels).pooler_output, dim=-1)
    assert torch.allclose(encoder.encode_image(pixels), image, **TOLERANCE)
    assert encoder.logit_scale().item() == pytest.approx(theirs.logit_scale.exp().item())
    assert encoder.model.logit_bias.item() == pytest.approx(theirs.logit_bias.item())


@pytest.mark.parametrize(("kind", "act"), [("siglip", "gelu_pytorch_tanh"), ("siglip2", "gelu_pytorch_tanh"), ("siglip", "gelu")])
def test_a_siglip_folder_gives_the_vectors_of_transformers(kind: str, act: str, tmp_path: Path):
    theirs = write_model(tmp_path, kind, act=act)
    encoder = load(str(tmp_path))
    assert_same(encoder, theirs, tmp_path)
    assert (encoder.context_length, encoder.dim) == (64, 48)
    picture = check_inputs()[0][1]
    expected = torch.from_numpy(SiglipImageProcessorPil(size={"height": 32, "width": 32})(picture, return_tensors="np").pixel_values[0])
    assert torch.allclose(encoder.normalise(encoder.preprocess(picture)[None])[0], expected, **TOLERANCE)
    save_encoder(encoder, tmp_path / "run")
    assert_same(load_run(tmp_path / "run"), theirs, tmp_path)


def test_the_comparison_would_see_the_other_activation(tmp_path: Path):
    theirs = write_model(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    said["vision_config"]["hidden_act"] = "gelu"
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(AssertionError):
        assert_same(load(str(tmp_path)), theirs, tmp_path)


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_a_siglip_run_is_written_as_transformers_reads_it(kind: str, tmp_path: Path):
    theirs = write_model(tmp_path / "theirs", kind)
    encoder = load(str(tmp_path / "theirs"))
    (tmp_path / "mine").mkdir()
    huggingface.write(encoder, tmp_path / "mine", "fp32")
    assert check(encoder, huggingface.load(tmp_path / "mine"), "fp32").least == pytest.approx(1.0, abs=1e-4)  # pixels are rounded otherwise
    again = SiglipModel.from_pretrained(tmp_path / "mine")
    assert {name: value.shape for name, value in again.state_dict().items()} == {name: value.shape for name, value in theirs.state_dict().items()}
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in again.state_dict().items())
    assert_same(load(str(tmp_path / "mine")), theirs, tmp_path / "mine")


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_a_siglip_run_is_written_as_open_clip_reads_it_with_its_tokenizer(kind: str, tmp_path: Path):
    write_model(tmp_path / "theirs", kind, act="gelu")
    encoder = load(str(tmp_path / "theirs"))
    (tmp_path / "mine").mkdir()
    open_clip_folder.write(encoder, tmp_path / "mine", "fp32")
    assert check(encoder, open_clip_folder.load(tmp_path / "mine"), "fp32").least == pytest.approx(1.0, abs=1e-5)


def test_every_trunk_is_one_of_timms_of_that_shape():
    for (width, layers, heads, inner), kind in siglip.TRUNKS.items():
        with torch.device("meta"):
            trunk = timm.create_model(timm.list_models(f"vit_{kind}_patch*_siglip_[0-9]*")[0])
        found = trunk.blocks[0]
        assert (trunk.embed_dim, len(trunk.blocks), found.attn.num_heads, found.mlp.fc1.out_features) == (width, layers, heads, inner)


@pytest.mark.parametrize(("change", "sentence"), [
    ({"hidden_act": "relu"}, "hidden_act of the vision tower is 'relu'; known are gelu_pytorch_tanh, gelu"),
    ({"num_hidden_layers": 3}, "timm has no image tower like it: 3 layers of width 48, patches of 8, pictures of 32 pixels"),
    ({"image_size": 40}, "timm has no image tower like it: 2 layers of width 48, patches of 8, pictures of 40 pixels"),
    ({"layer_norm_eps": 0.1}, "timm has no image tower like it"),
    ({"vision_use_head": False}, "its image tower has no pooling head"),
    ({"hidden_size": 64}, "config.json gives texts 48 numbers and pictures 64"),
])
def test_a_siglip_that_cannot_be_read_is_one_sentence(change: dict, sentence: str, tmp_path: Path):
    write_model(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    said["vision_config"].update(change)
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError) as caught:
        load(str(tmp_path))
    assert sentence in str(caught.value)


def test_naflex_and_a_missing_tokenizer_are_one_sentence(tmp_path: Path):
    write_model(tmp_path)
    for name in ("spiece.model", "tokenizer.json"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match=r"holds no tokenizer; bring tokenizer\.json or spiece\.model or tokenizer\.model of the model"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "siglip2"}')
    with pytest.raises(ModelError, match=r"of type 'siglip2'; only those of type 'clip' and 'siglip' .*NaFlex\), take one of a fixed resolution"):
        load(str(tmp_path))


def test_a_bare_state_dict_of_siglip_is_not_guessed(tmp_path: Path):
    write_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors: tensors alone do not tell which activation"):
        load(str(tmp_path / "model.safetensors"))
