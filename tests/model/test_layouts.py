"""Weights in every layout give the vectors that the program they come from gives."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from pathlib import Path

import open_clip
import pytest
import torch
from helpers import TINY, load
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPModel

from densecap_search.errors import ModelError
from densecap_search.model.checkpoint import load_run, save_encoder
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.layouts import LAYOUTS, find_layout

try:  # the one that works with Pillow got a name of its own in transformers 5
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
except ImportError:
    from transformers import CLIPImageProcessor as CLIPImageProcessorPil

CAPTIONS = ["a red ball", "two boats lie before a white lighthouse at dawn", "word " * 60 + "red", ""]
LONG = [*CAPTIONS, "word " * 150 + "blue"]
END = 49407
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def shaken(model: nn.Module, seed: int = 5) -> nn.Module:
    """Weights so uneven that activation, eps, order of q, k, v and positions all show in the vectors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim:
                value.copy_(torch.randn(value.shape, generator=generator) * (0.3 if value.ndim == 1 else 1.5 / value[0].numel() ** 0.5))
    return model.eval()


def pixels(size: int = 32) -> torch.Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


# Hugging Face


def hf_model(*, positions: int = 77, size: int = 32, width: int = 48, heads: int = 3, act: str = "quick_gelu", eos: int = END, eps: float = 1e-5) -> CLIPModel:
    tower = {"num_hidden_layers": 2, "hidden_act": act, "layer_norm_eps": eps}
    return shaken(CLIPModel(CLIPConfig(
        text_config={**tower, "hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": heads,
                     "max_position_embeddings": positions, "eos_token_id": eos, "vocab_size": 49408},
        vision_config={**tower, "hidden_size": 2 * width, "intermediate_size": 101, "num_attention_heads": 2 * heads,
                       "image_size": size, "patch_size": 8},
        projection_dim=16,
    )))


@torch.no_grad()
def assert_same_as_hf(encoder: DualEncoder, theirs: CLIPModel, captions: list[str]) -> None:
    tokens = encoder.tokenize(captions)
    assert max(tokens.lengths) <= encoder.context_length
    there = torch.arange(tokens.ids.shape[1]) < torch.tensor(tokens.lengths)[:, None]
    padded = tokens.ids.masked_fill(~there, END)  # as their tokenizer pads
    text = theirs.get_text_features(input_ids=padded, attention_mask=there.long()).pooler_output
    pictures = pixels(theirs.config.vision_config.image_size)
    image = theirs.get_image_features(pixel_values=pictures).pooler_output
    assert torch.allclose(encoder.encode_text(tokens.ids), F.normalize(text, dim=-1), **TOLERANCE)
    assert torch.allclose(encoder.encode_image(pictures), F.normalize(image, dim=-1), **TOLERANCE)
    assert encoder.logit_scale().item() == pytest.approx(theirs.logit_scale.exp().item())


@pytest.mark.parametrize("said", [
    {}, {"act": "gelu"}, {"eos": 2}, {"eps": 0.1}, {"size": 35}, {"positions": 248}, {"positions": 248, "act": "gelu", "eos": 2, "eps": 1e-3},
], ids=str)
def test_a_hugging_face_folder_gives_the_vectors_of_transformers(said: dict, tmp_path: Path):
    theirs = hf_model(**said)
    theirs.save_pretrained(tmp_path)
    encoder = load(str(tmp_path), context_length=said.get("positions", 77))
    assert_same_as_hf(encoder, theirs, LONG if "positions" in said else CAPTIONS)
    assert encoder.spec.model_cfg["quick_gelu"] == (said.get("act") != "gelu")


def test_these_comparisons_would_see_a_wrong_activation_eps_or_number_of_heads(tmp_path: Path):
    theirs = hf_model()
    for number, change in enumerate(({"hidden_act": "gelu"}, {"layer_norm_eps": 0.1}, {"num_attention_heads": 1})):
        folder = tmp_path / str(number)
        theirs.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        for tower in ("text_config", "vision_config"):
            config[tower].update(change)
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(AssertionError):
            assert_same_as_hf(load(str(folder), context_length=77), theirs, CAPTIONS)


def test_a_bare_state_dict_of_hugging_face_is_not_guessed(tmp_path: Path):
    """With the other activation vectors would be off by 4e-3, with other heads by 9e-2, and nobody would be told."""
    save_file(hf_model().state_dict(), tmp_path / "goal.safetensors")
    with pytest.raises(ModelError, match=r"goal\.safetensors: tensors alone do not tell which activation and how many heads .* put its config\.json beside"):
        load(str(tmp_path / "goal.safetensors"))


def test_a_file_in_a_hugging_face_folder_is_read_with_the_config_beside_it(tmp_path: Path):
    theirs = hf_model(act="gelu")
    theirs.save_pretrained(tmp_path)
    assert_same_as_hf(load(str(tmp_path / "model.safetensors"), context_length=77), theirs, CAPTIONS)


def test_arch_tells_what_a_bare_state_dict_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = {"width": 128, "heads": 2, "layers": 2, "mlp_ratio": 2.0}
    image = {"width": 256, "layers": 2, "mlp_ratio": 101.5 / 256, "image_size": 32, "patch_size": 8}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "Tiny", {"embed_dim": 16, "vision_cfg": image, "text_cfg": text})
    theirs = hf_model(width=128, heads=2, positions=100, act="gelu")
    torch.save(theirs.state_dict(), tmp_path / "laion.bin")
    assert_same_as_hf(load(str(tmp_path / "laion.bin"), arch="Tiny", context_length=100), theirs, CAPTIONS)


@pytest.mark.parametrize("prefix", ["net.", "student.", "backbone.net.", "_fsdp_wrapped_module.net."])
def test_one_prefix_that_makes_all_names_fit_is_found(prefix: str, tmp_path: Path):
    theirs = hf_model()
    theirs.save_pretrained(tmp_path)
    expected = load(str(tmp_path)).fingerprint()
    torch.save({f"{prefix}{name}": value for name, value in theirs.state_dict().items()}, tmp_path / "wrapped.pt")
    assert load(str(tmp_path / "wrapped.pt")).fingerprint() == expected


def test_of_two_models_in_a_file_prefix_takes_one(tmp_path: Path):
    theirs, other = hf_model(), shaken(hf_model(), seed=8)
    theirs.save_pretrained(tmp_path)
    both = {f"{prefix}.{name}": value for prefix, model in (("student", theirs), ("teacher", other)) for name, value in model.state_dict().items()}
    torch.save({"state_dict": both}, tmp_path / "two.pt")
    assert load(str(tmp_path / "two.pt"), prefix="student.").fingerprint() == load(str(tmp_path)).fingerprint()
    assert load(str(tmp_path / "two.pt"), prefix="teacher").fingerprint() != load(str(tmp_path)).fingerprint()
    with pytest.raises(ModelError, match=r"begin with student, teacher; known layouts .*; of several models in a file --prefix takes one"):
        load(str(tmp_path / "two.pt"))
    with pytest.raises(ModelError, match=r"two\.pt holds no tensor whose name begins with 'net\.'; they begin with student, teacher"):
        load(str(tmp_path / "two.pt"), prefix="net.")
    with pytest.raises(ModelError, match=r"--prefix is for checkpoint files, and .* is none"):
        load(str(tmp_path), prefix="net.")


@pytest.mark.parametrize("prefix", ["", "net."])
def test_one_stray_tensor_is_told_and_left(prefix: str, tmp_path: Path):
    theirs = hf_model()
    theirs.save_pretrained(tmp_path)
    state = {f"{prefix}{name}": value for name, value in theirs.state_dict().items()}
    torch.save({**state, "queue_ptr": torch.zeros(1)}, tmp_path / "one.pt")
    encoder = load(str(tmp_path / "one.pt"))
    assert encoder.name.endswith(", without its tensor queue_ptr")
    assert encoder.fingerprint() == load(str(tmp_path)).fingerprint()
    torch.save({**state, "queue_ptr": torch.zeros(1), "queue": torch.zeros(2)}, tmp_path / "two.pt")
    with pytest.raises(ModelError):
        load(str(tmp_path / "two.pt"))


@pytest.mark.parametrize("key", ["module", "net", "weights", "state_dict_ema", "model"])
def test_weights_lie_where_training_programs_put_them_beside_numbers_and_settings(key: str, tmp_path: Path):
    import argparse

    import numpy as np

    theirs = hf_model()
    theirs.save_pretrained(tmp_path)
    torch.save({key: theirs.state_dict(), "args": argparse.Namespace(lr=1e-4), "best": np.float64(0.5), "step": np.int64(3)},
               tmp_path / "run.pt")
    assert load(str(tmp_path / "run.pt")).fingerprint() == load(str(tmp_path)).fingerprint()


@pytest.mark.parametrize("below", ["0_CLIPModel", "snapshots/abc123", "deeper"])
def test_a_folder_one_level_above_is_understood(below: str, tmp_path: Path):
    theirs = hf_model()
    theirs.save_pretrained(tmp_path / "models--x--y" / below)
    encoder = load(str(tmp_path / "models--x--y"))
    assert_same_as_hf(load(str(tmp_path / "models--x--y" / below), context_length=77), theirs, CAPTIONS)
    assert encoder.dim == 16


def test_of_several_models_in_a_folder_none_is_guessed(tmp_path: Path):
    for name in ("one", "two"):
        hf_model().save_pretrained(tmp_path / name)
    with pytest.raises(ModelError, match="holds several models; name one: one, two"):
        load(str(tmp_path))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "model.clip.", "clip.", "_forward_module.model."])
def test_what_wrappers_put_before_the_names_is_taken_off(prefix: str, tmp_path: Path):
    theirs = hf_model()
    theirs.save_pretrained(tmp_path)
    expected = load(str(tmp_path)).fingerprint()
    wrapped = {f"{prefix}{name}": value for name, value in theirs.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, tmp_path / "wrapped.pt")
    assert load(str(tmp_path / "wrapped.pt")).fingerprint() == expected


def test_two_models_in_one_file_are_not_mixed(tmp_path: Path):
    state = hf_model().state_dict()
    torch.save({**state, "module.logit_scale": torch.zeros([])}, tmp_path / "two.pt")
    with pytest.raises(ModelError, match=r"two\.pt: it holds two tensors logit_scale, one of them as module\.logit_scale"):
        load(str(tmp_path / "two.pt"))


def shard_by_hand(state: dict[str, torch.Tensor], folder: Path) -> None:
    names = sorted(state)
    parts = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, mine in parts.items():
        torch.save({name: state[name] for name in mine}, folder / file)
    where = {name: file for file, mine in parts.items() for name in mine}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_the_files_of_a_hugging_face_folder_may_be_whole_or_in_shards(tmp_path: Path):
    theirs = hf_model()
    for name in ("whole", "shards", "bin", "bins"):
        theirs.save_pretrained(tmp_path / name, max_shard_size="2MB" if name == "shards" else "1GB")
    assert not (tmp_path / "shards" / "model.safetensors").exists()
    for name in ("bin", "bins"):
        (tmp_path / name / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    shard_by_hand(theirs.state_dict(), tmp_path / "bins")
    prints = {load(str(tmp_path / name)).fingerprint() for name in ("whole", "shards", "bin", "bins")}
    assert len(prints) == 1


def test_a_missing_shard_is_named_and_none_is_looked_for_elsewhere(tmp_path: Path):
    hf_model().save_pretrained(tmp_path, max_shard_size="2MB")
    shard = sorted(tmp_path.glob("*.safetensors"))[-1]
    shard.rename(tmp_path.parent / shard.name)
    with pytest.raises(ModelError, match=rf"index\.json names {shard.name}, which .* does not hold; bring the whole folder"):
        load(str(tmp_path))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(shard.name, f"../{shard.name}"))
    with pytest.raises(ModelError, match=rf"index\.json names \.\./{shard.name}, which"):
        load(str(tmp_path))


def test_a_folder_of_another_kind_says_so(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "blip"}')
    with pytest.raises(ModelError, match="is a Hugging Face model of type 'blip'; only those of type 'clip' and 'siglip' can be read"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(ModelError, match=r"has a config\.json but no weights; it needs one of model\.safetensors, "):
        load(str(tmp_path))


@pytest.mark.parametrize(("tower", "change", "sentence"), [
    ("text", {"hidden_size": 64}, "config.json does not describe these weights: 2 text layers of width 64 by it, 2 of 48 are there"),
    ("vision", {"num_hidden_layers": 3}, "config.json does not describe these weights: 3 vision layers of width 96 by it, 2 of 96"),
    ("text", {"hidden_act": "gelu"}, "hidden_act is 'gelu' in the text tower and 'quick_gelu' in the image tower"),
    ("text", {"eos_token_id": 0}, "eos_token_id is 0, and CLIP's own tokenizer ends captions with 49407"),
    ("text", {"num_attention_heads": 5}, "its text tower of width 48 cannot have 5 heads"),
])
def test_a_config_that_cannot_be_right_is_refused(tower: str, change: dict, sentence: str, tmp_path: Path):
    hf_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config[f"{tower}_config"].update(change)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load(str(tmp_path))
    assert sentence in str(caught.value)


def test_the_oldest_configs_are_read_as_transformers_reads_them(tmp_path: Path):
    theirs = hf_model(eps=0.1)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for tower in ("text", "vision"):
        old = dict(config[f"{tower}_config"])
        del old["layer_norm_eps"]  # so the default, 1e-5, holds, whatever text_config says
        config[f"{tower}_config_dict"] = old
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = CLIPModel.from_pretrained(tmp_path).eval()
    assert again.config.text_config.layer_norm_eps == 1e-5
    assert_same_as_hf(load(str(tmp_path), context_length=77), again, CAPTIONS)


# preprocessing


@pytest.mark.parametrize("settings", [
    {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    {"size": {"shortest_edge": 32}, "crop_size": 32, "resample": 2, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
    {"size": {"height": 32, "width": 32}, "do_center_crop": False},
    {"size": {"shortest_edge": 32}, "crop_size": 32, "do_normalize": False},
], ids=str)
def test_pictures_are_prepared_as_the_folder_says(settings: dict, tmp_path: Path):
    theirs = CLIPImageProcessorPil(**settings)
    theirs.save_pretrained(tmp_path)
    hf_model().save_pretrained(tmp_path)
    # what is cropped must be even: the two libraries round half a pixel to different sides
    noise = torch.randint(0, 256, (60, 84, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    picture = Image.fromarray(noise.numpy())
    expected = torch.from_numpy(theirs(picture, return_tensors="np").pixel_values[0])
    encoder = load(str(tmp_path))
    assert torch.allclose(encoder.normalise(encoder.preprocess(picture)[None])[0], expected, **TOLERANCE)


def test_settings_of_the_oldest_and_the_newest_folders_are_found(tmp_path: Path):
    hf_model().save_pretrained(tmp_path)
    old = {"size": 32, "crop_size": 32, "image_mean": [0.1, 0.2, 0.3]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    assert load(str(tmp_path)).spec.preprocess["mean"] == (0.1, 0.2, 0.3)
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {**old, "image_mean": [0.4] * 3}}))
    assert load(str(tmp_path)).spec.preprocess["mean"] == (0.4, 0.4, 0.4)


@pytest.mark.parametrize(("settings", "reason"), [
    ({"size": {"shortest_edge": 40}, "crop_size": 32}, "resized to 40 and cropped to 32, and the image tower takes 32 pixels"),
    ({"size": 224, "crop_size": 224}, "resized to 224 and cropped to 224, and the image tower takes 32 pixels"),
    ({"size": 32, "crop_size": 32, "resample": 0}, "resample 0 is neither 2 (bilinear) nor 3 (bicubic)"),
    ({"size": 32, "do_center_crop": False}, "pictures are not cropped to a square"),
    ({"size": 32, "crop_size": 32, "do_resize": False}, "do_resize is False"),
])
def test_preprocessing_that_would_give_other_pixels_is_refused(settings: dict, reason: str, tmp_path: Path):
    hf_model().save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError) as caught:
        load(str(tmp_path))
    assert "the preprocessing cannot be followed: " in str(caught.value)
    assert reason in str(caught.value)


# OpenAI and open_clip

WIDE = {"embed_dim": 16, "vision_cfg": {"image_size": 32, "layers": 2, "width": 128, "patch_size": 8},
        "text_cfg": {"width": 64, "heads": 1, "layers": 2}}  # heads of 64
RESNET = {**WIDE, "vision_cfg": {"image_size": 64, "layers": [1, 2, 1, 1], "width": 8, "patch_size": None}}
EXTRAS = {"input_resolution": torch.tensor(32), "context_length": torch.tensor(77), "vocab_size": torch.tensor(49408)}


def plain_clip(cfg: dict = WIDE, *, quick_gelu: bool = True, context_length: int = 77) -> nn.Module:
    text = {**cfg["text_cfg"], "context_length": context_length}
    return shaken(open_clip.CLIP(**{**cfg, "text_cfg": text}, quick_gelu=quick_gelu))


@torch.no_grad()
def assert_same_as_open_clip(encoder: DualEncoder, theirs: nn.Module, size: int = 32) -> None:
    ids = open_clip.SimpleTokenizer(context_length=theirs.context_length)(CAPTIONS)
    text, image = theirs.encode_text(ids, normalize=True), theirs.encode_image(pixels(size), normalize=True)
    assert torch.allclose(encoder.encode_text(encoder.tokenize(CAPTIONS).ids), text, **TOLERANCE)
    assert torch.allclose(encoder.encode_image(pixels(size)), image, **TOLERANCE)


@pytest.mark.parametrize(("cfg", "size"), [(WIDE, 32), (RESNET, 64)], ids=["vit", "resnet"])
def test_openais_state_dict_in_half_precision_gives_the_vectors_of_clip(cfg: dict, size: int, tmp_path: Path):
    theirs = plain_clip(cfg).half()
    torch.save({**theirs.state_dict(), **EXTRAS}, tmp_path / "clip.pt")
    encoder = load(str(tmp_path / "clip.pt"), context_length=77)
    assert encoder.name == "clip.pt (OpenAI CLIP, QuickGELU)"
    assert encoder.image_size == size
    assert_same_as_open_clip(encoder, theirs.float(), size)


def save_torchscript(model: nn.Module, path: Path) -> None:
    """As OpenAI distributes CLIP: traced, halved, with its sizes as buffers."""
    for name, value in EXTRAS.items():
        delattr(model, name) if hasattr(model, name) else None
        model.register_buffer(name, value)
    inputs = {"encode_image": (pixels(),), "encode_text": (torch.zeros(1, 77, dtype=torch.long),)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated
        torch.jit.trace_module(model, inputs, check_trace=False).half().save(str(path))


def test_openais_torchscript_archive_gives_the_vectors_of_clip_and_its_program_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    save_torchscript(plain_clip(), tmp_path / "ViT-B-32.pt")
    monkeypatch.setattr(torch.jit, "load", lambda *_: pytest.fail("its program was loaded"))
    encoder = load(str(tmp_path / "ViT-B-32.pt"), context_length=77)
    assert_same_as_open_clip(encoder, plain_clip().half().float())


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("script", [False, True], ids=["pickle", "torchscript"])
def test_a_file_that_would_run_code_is_refused(script: bool, tmp_path: Path):
    evil, ran = tmp_path / "evil.pt", tmp_path / "ran"
    if script:
        with zipfile.ZipFile(evil, "w") as archive:
            archive.writestr("evil/constants.pkl", pickle.dumps(()))
            archive.writestr("evil/data.pkl", pickle.dumps({"visual.proj": Touch(ran)}))
    else:
        torch.save({"state_dict": Touch(ran)}, evil)
    with pytest.raises(ModelError, match=r"evil\.pt cannot be read as plain tensors \(UnpicklingError\); save its state_dict as \.safetensors"):
        load(str(evil))
    assert not ran.exists()
    pickle.load(io.BytesIO(pickle.dumps(Touch(ran))))
    assert ran.exists()  # it does run where it is let


def test_a_tensor_that_reaches_beyond_its_storage_is_refused(tmp_path: Path):
    save_torchscript(plain_clip(), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "cut.pt", "w") as cut:
        for name in whole.namelist():
            cut.writestr(name, whole.read(name)[:-64] if name.endswith("/data/3") else whole.read(name))
    with pytest.raises(ModelError, match=r"cut\.pt cannot be read as plain tensors \(RuntimeError\)"):
        load(str(tmp_path / "cut.pt"))


def custom_clip(quick_gelu: bool) -> nn.Module:
    return shaken(open_clip.CustomTextCLIP(**WIDE, quick_gelu=quick_gelu))


@pytest.mark.parametrize("make", [lambda quick: plain_clip(quick_gelu=quick), custom_clip], ids=["CLIP", "CustomTextCLIP"])
@pytest.mark.parametrize("quick_gelu", [False, True])
def test_open_clips_own_layouts_give_its_vectors_with_the_architecture_that_is_named(
    make, quick_gelu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "Tiny", {**WIDE, "quick_gelu": quick_gelu})
    theirs = make(quick_gelu)
    torch.save({"epoch": 1, "name": "x", "state_dict": theirs.state_dict()}, tmp_path / "epoch_1.pt")
    encoder = load(str(tmp_path / "epoch_1.pt"), arch="tiny", context_length=77)
    assert_same_as_open_clip(encoder, theirs)
    with pytest.raises(ModelError, match=r"epoch_1\.pt: the keys do not tell the architecture; name it with --arch"):
        load(str(tmp_path / "epoch_1.pt"))


def test_quick_gelu_that_the_layout_tells_is_not_undone_by_arch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "Tiny", WIDE)
    torch.save({**plain_clip().state_dict(), **EXTRAS}, tmp_path / "clip.pt")
    assert_same_as_open_clip(load("Tiny", pretrained=str(tmp_path / "clip.pt"), context_length=77), plain_clip())


# Long-CLIP


@torch.no_grad()
def long_clip_text(state: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Long-CLIP's text tower with one head a layer, from its two tables and two masks, operation by operation."""
    mask = (torch.arange(248) < 20).float()[:, None]
    x = state["token_embedding.weight"][ids]
    x = x + state["positional_embedding"] * mask + state["positional_embedding_res"] * (1 - mask)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x: torch.Tensor, name: str, between: str = ".") -> torch.Tensor:
        return x @ state[f"{name}{between}weight"].T + state[f"{name}{between}bias"]

    for number in range(2):
        block = f"transformer.resblocks.{number}"
        q, k, v = linear(norm(x, f"{block}.ln_1"), f"{block}.attn.in_proj", "_").chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(248, 248).triu(1).bool(), float("-inf"))
        x = x + linear(scores.softmax(-1) @ v, f"{block}.attn.out_proj")
        hidden = linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        x = x + linear(hidden * torch.sigmoid(1.702 * hidden), f"{block}.mlp.c_proj")
    pooled = norm(x, "ln_final")[torch.arange(len(ids)), ids.argmax(1)]
    return F.normalize(pooled @ state["text_projection"], dim=-1)


def test_long_clip_gives_the_vectors_of_its_two_tables(tmp_path: Path):
    theirs = plain_clip(context_length=248)
    trained = torch.randn(248, 64, generator=torch.Generator().manual_seed(4))
    state = {**theirs.state_dict(), "positional_embedding_res": trained}
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "longclip-B.pt")
    encoder = load(str(tmp_path / "longclip-B.pt"))
    ids = open_clip.SimpleTokenizer(context_length=248)(LONG)
    assert torch.allclose(encoder.encode_text(encoder.tokenize(LONG).ids), long_clip_text(state, ids), **TOLERANCE)
    with torch.no_grad():
        assert torch.allclose(encoder.encode_image(pixels()), theirs.encode_image(pixels(), normalize=True), **TOLERANCE)


# all of them


@pytest.mark.parametrize(("keys", "layout"), [
    (["positional_embedding", "positional_embedding_res", "text_projection", "visual.proj"], "Long-CLIP"),
    (["input_resolution", "context_length", "vocab_size", "positional_embedding", "text_projection", "visual.proj"], "OpenAI CLIP"),
    (["text_model.x", "vision_model.x", "visual_projection.weight", "text_projection.weight"], "Hugging Face CLIPModel"),
    (["text_model.x", "vision_model.x", "text_model.head.weight"], "Hugging Face SiglipModel"),
    (["visual.blocks.0.attn.q_bias", "visual.patch_embed.proj.weight", "text.positional_embedding"], "EVA-CLIP"),
    (["positional_embedding", "text_projection", "visual.proj"], "open_clip CLIP"),
    (["text.positional_embedding", "visual.trunk.x"], "open_clip CustomTextCLIP"),
])
def test_a_layout_is_found_by_its_keys(keys: list[str], layout: str):
    assert find_layout(keys) == layout
    assert layout in LAYOUTS


def test_the_names_of_eva_clips_authors_are_one_sentence(tmp_path: Path):
    names = ("visual.blocks.0.attn.q_bias", "visual.patch_embed.proj.weight", "text.positional_embedding")
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "EVA02_CLIP_B.safetensors")
    with pytest.raises(ModelError, match=r"EVA02_CLIP_B\.safetensors: these are the names of EVA-CLIP's authors \(3 tensors\), which are not read; take open_clip's"):
        load(str(tmp_path / "EVA02_CLIP_B.safetensors"), arch="EVA02-B-16")
    assert ("EVA02-B-16", "merged2b_s8b_b131k") in open_clip.list_pretrained()


def test_a_layout_that_is_not_known_says_what_was_seen(tmp_path: Path):
    state = {f"{name}.weight": torch.zeros(1) for name in ("backbone.a", "backbone.b", "head")}
    save_file(state, tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match=r"x\.safetensors has a layout that is not known: 3 tensors whose names begin with backbone, head; known layouts are Long-CLIP, OpenAI CLIP, "):
        load(str(tmp_path / "x.safetensors"), arch="ViT-B-16")


@pytest.mark.parametrize(("change", "sentence"), [
    ({"text_model.final_layer_norm.bias": torch.zeros(7)}, "text.ln_final.bias is (7,), not (48,)"),
    ({"text_model.encoder.layers.1.self_attn.q_proj.bias": None}, "1 tensors are missing and 2 are not known"),
    ({"adapter.weight": torch.zeros(1), "adapter.bias": torch.zeros(1)}, "0 tensors are missing and 2 are not known, such as adapter.bias"),
    ({"text_model.embeddings.token_embedding.weight": None}, "it lacks the tensor text.token_embedding.weight, so it is not a whole CLIP"),
    ({"text_model.embeddings.token_embedding.weight": torch.zeros(1000, 48)}, "its text tower knows 1000 tokens, and CLIP's own tokenizer has 49408"),
    ({"text_model.encoder.layers.1.self_attn.q_proj.bias": torch.zeros(7)}, "1 tensors are missing and 3 are not known"),
    ({"text_projection.weight": torch.zeros(3)}, "its tensor text.text_projection is (3,), which CLIP's is not"),
])
def test_weights_that_do_not_fit_are_named(change: dict, sentence: str, tmp_path: Path):
    theirs = hf_model()
    theirs.save_pretrained(tmp_path)
    state = {**theirs.state_dict(), **change}
    save_file({name: value for name, value in state.items() if value is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        load(str(tmp_path))
    assert sentence in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_window_asked_for_is_stretched_from_the_files_own_rows(tmp_path: Path):
    theirs = plain_clip(TINY)
    torch.save({**theirs.state_dict(), **EXTRAS}, tmp_path / "clip.pt")
    rows = theirs.positional_embedding.detach()
    for length in (40, 77):
        loaded = load(str(tmp_path / "clip.pt"), context_length=length).model.text.positional_embedding
        assert torch.equal(loaded, rows[:length])
    doubled = load(str(tmp_path / "clip.pt"), context_length=134).model.text.positional_embedding
    assert torch.allclose(doubled[20::2], rows[20:], atol=1e-6)  # 57 rows become 114
    assert load(str(tmp_path / "clip.pt")).context_length == 248


def test_a_run_of_converted_weights_is_loaded_again_with_the_same_vectors(tmp_path: Path):
    theirs = hf_model(eps=0.1, act="gelu")
    theirs.save_pretrained(tmp_path / "hf")
    encoder = load(str(tmp_path / "hf"), context_length=77)
    save_encoder(encoder, tmp_path / "run")
    again = load_run(tmp_path / "run")
    assert_same_as_hf(again, theirs, CAPTIONS)
    assert again.fingerprint() == encoder.fingerprint()
