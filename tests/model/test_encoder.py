from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from helpers import TINY, load, make_tiny

from densecap_search.errors import ModelError, RunError
from densecap_search.model.checkpoint import load_run, save_encoder
from densecap_search.model.encoder import DualEncoder, default_preprocess, with_resize

CAPTIONS = ["a red ball on the left", "a blue box", "word " * 300]


def test_vectors_are_unit_rows(tiny):
    pixels = torch.randn(3, 3, 32, 32)
    for vectors in (tiny.encode_image(pixels), tiny.encode_text(tiny.tokenize(CAPTIONS).ids)):
        assert vectors.norm(dim=1).tolist() == pytest.approx([1.0] * 3, abs=1e-6)
    assert tiny.logit_scale().item() == pytest.approx(1 / 0.07, rel=1e-5)


@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
def test_pixels_are_those_of_open_clips_transform(resize_mode: str):
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image

    settings = default_preprocess(size=32, resize_mode=resize_mode)
    tiny = make_tiny()
    encoder = DualEncoder(tiny.model, replace(tiny.spec, preprocess=settings), tiny.tokenizer)
    image = Image.effect_mandelbrot((90, 50), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    theirs = image_transform_v2(PreprocessCfg(**settings), is_train=False)(image)
    assert torch.allclose(encoder.normalise(encoder.preprocess(image)[None])[0], theirs, atol=1e-6)
    whole = encoder.encode_image(theirs[None])
    assert torch.allclose(encoder.encode_image(encoder.preprocess(image)[None]), whole, atol=1e-6)


def test_tokens_equal_those_of_open_clip(tiny):
    ours = tiny.tokenize(CAPTIONS)
    theirs = open_clip.SimpleTokenizer(context_length=248)(CAPTIONS)
    assert torch.equal(ours.ids, theirs)
    assert ours.lengths == (8, 5, 302)


def test_padding_that_is_left_out_changes_nothing(tiny):
    short = tiny.tokenize(CAPTIONS[:2]).ids
    full = tiny.tokenize(CAPTIONS).ids[:2]
    assert short.shape[1] == 8
    assert full.shape[1] == 248
    assert torch.allclose(tiny.encode_text(short), tiny.encode_text(full), atol=1e-6)


@pytest.mark.parametrize("tower", ["image", "text"])
def test_a_tower_and_its_head_make_the_embedding(tiny, tower):
    batch = torch.randn(2, 3, 32, 32) if tower == "image" else tiny.tokenize(CAPTIONS[:2]).ids
    whole = tiny.encode_image(batch) if tower == "image" else tiny.encode_text(batch)
    rows = tiny.tower_outputs(tower, batch)
    assert rows.shape == (2, 32)
    assert torch.allclose(tiny.from_tower(tower, rows), whole, atol=1e-6)


def test_a_run_folder_moved_elsewhere_gives_the_same_vectors(tiny, tmp_path: Path):
    save_encoder(tiny, tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    again = load(str(tmp_path / "elsewhere"))
    pixels, ids = torch.randn(2, 3, 32, 32), tiny.tokenize(CAPTIONS).ids
    assert torch.allclose(tiny.encode_image(pixels), again.encode_image(pixels), atol=1e-6)
    assert torch.allclose(tiny.encode_text(ids), again.encode_text(again.tokenize(CAPTIONS).ids), atol=1e-6)
    assert again.context_length == 248
    assert again.fingerprint() == tiny.fingerprint()


def test_the_fingerprint_sees_weights_window_and_preprocessing():
    base = make_tiny().fingerprint()
    assert make_tiny().fingerprint() == base
    assert make_tiny(seed=1).fingerprint() != base
    assert make_tiny(context_length=200).fingerprint() != base
    changed = make_tiny()
    with torch.no_grad():
        next(iter(changed.model.text.parameters())).view(-1)[0] += 1e-6
    assert changed.fingerprint() != base


def test_a_towers_fingerprint_does_not_see_its_head():
    base, changed = make_tiny(), make_tiny()
    with torch.no_grad():
        changed.model.visual.proj.add_(1)
    assert changed.fingerprint() != base.fingerprint()
    assert changed.tower_fingerprint("image") == base.tower_fingerprint("image")
    with torch.no_grad():
        changed.model.visual.conv1.weight.add_(1)
    assert changed.tower_fingerprint("image") != base.tower_fingerprint("image")
    assert changed.tower_fingerprint("text") == base.tower_fingerprint("text")


def with_spec(encoder: DualEncoder, **changes: Any) -> DualEncoder:
    return DualEncoder(encoder.model, replace(encoder.spec, **changes), encoder.tokenizer)


def test_a_towers_fingerprint_sees_what_decides_its_outputs_and_nothing_else():
    tiny = make_tiny()
    cfg, preprocess = tiny.spec.model_cfg, tiny.spec.preprocess
    heads = {"timm_proj": "mlp", "hf_proj_type": "mlp", "timm_model_pretrained": True, "hf_model_name": "/elsewhere"}
    changes = {  # what is changed → the towers whose outputs it may change
        "context_length": (with_spec(tiny, context_length=100), {"text"}),
        "resize": (with_spec(tiny, preprocess=with_resize(preprocess, "pad")), {"image"}),
        "heads": (with_spec(tiny, starter_heads={"image": {"hidden": 8}}, model_cfg=cfg | {
            "embed_dim": 99, **{part: cfg[part] | heads for part in ("vision_cfg", "text_cfg")}}), set()),
        "activation": (with_spec(tiny, model_cfg=cfg | {"quick_gelu": True}), {"image", "text"}),
        "text tower": (with_spec(tiny, model_cfg=cfg | {"text_cfg": cfg["text_cfg"] | {"heads": 4}}), {"text"}),
        "image tower": (with_spec(tiny, model_cfg=cfg | {"vision_cfg": cfg["vision_cfg"] | {"head_width": 8}}), {"image"}),
        "long text": (with_spec(tiny, long_text="mean"), set()),
    }
    found = {name: {tower for tower in ("image", "text") if changed.tower_fingerprint(tower) != tiny.tower_fingerprint(tower)}
             for name, (changed, _) in changes.items()}
    assert found == {name: towers for name, (_, towers) in changes.items()}


def test_names_are_read_as_people_write_them():
    from densecap_search.model.loading import open_clip_name

    assert open_clip_name(" vit-b/16\n") == "ViT-B-16"
    with pytest.raises(ModelError, match=r"no model is called 'ViT-B-17' .*did you mean ViT-B-1"):
        open_clip_name("ViT-B-17")
    with pytest.raises(ModelError, match=r"ViT-B-16 needs weights: --pretrained with one of openai, "):
        load("ViT-B-16")
    with pytest.raises(ModelError, match=r"--pretrained nope is neither a file nor a tag of ViT-B-16; tags: openai"):
        load("ViT-B-16", pretrained="nope")


def test_captioning_models_are_refused_by_name():
    with pytest.raises(ModelError, match="captioning model"):
        load("coca_ViT-B-32", pretrained="random")


def test_a_damaged_run_folder_says_which_file(tiny, tmp_path: Path):
    save_encoder(tiny, tmp_path / "run")
    (tmp_path / "run" / "preprocess.json").unlink()
    with pytest.raises(RunError, match=r"run is not a whole run folder: cannot read preprocess\.json"):
        load_run(tmp_path / "run")
    save_encoder(tiny, tmp_path / "run")
    weights = tmp_path / "run" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RunError, match=r"cannot read the weights .*weights\.safetensors"):
        load_run(tmp_path / "run")


def plain_state(context_length: int = 77) -> dict[str, torch.Tensor]:
    """The state dict of open_clip's plain CLIP class, as checkpoints have it."""
    torch.manual_seed(3)
    cfg = {**TINY, "text_cfg": {**TINY["text_cfg"], "context_length": context_length}}
    # heads of 64, as configurations inferred from shapes have them
    cfg["vision_cfg"], cfg["text_cfg"] = {**cfg["vision_cfg"], "head_width": 64, "width": 64}, {**cfg["text_cfg"], "width": 64, "heads": 1}
    return open_clip.CLIP(**cfg, quick_gelu=True).state_dict()


def test_long_clip_weights_are_recognised_and_their_two_tables_become_one(tmp_path: Path):
    state = plain_state(context_length=248)
    residual = torch.randn_like(state["positional_embedding"])
    torch.save({**state, "positional_embedding_res": residual}, tmp_path / "longclip.pt")
    encoder = load(str(tmp_path / "longclip.pt"))
    assert encoder.context_length == 248
    assert encoder.spec.model_cfg["quick_gelu"] is True
    positions = encoder.model.text.positional_embedding
    assert torch.equal(positions[:20], state["positional_embedding"][:20])
    assert torch.equal(positions[20:], residual[20:])
    assert torch.equal(encoder.model.visual.conv1.weight, state["visual.conv1.weight"])


def test_a_checkpoint_without_architecture_asks_for_it_and_a_wrong_one_is_named(tmp_path: Path):
    path = tmp_path / "clip.pt"
    torch.save(plain_state(), path)
    with pytest.raises(ModelError, match=r"clip\.pt: the keys do not tell the architecture; name it with --arch"):
        load(str(path))
    with pytest.raises(ModelError, match=r"clip\.pt does not fit this architecture: \d+ tensors are missing"):
        load(str(path), arch="ViT-B-32")


def test_a_file_that_would_run_code_is_not_unpickled(tmp_path: Path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"state_dict": Evil()}))
    with pytest.raises(ModelError, match=r"evil\.pt cannot be read as plain tensors"):
        load(str(tmp_path / "evil.pt"), arch="ViT-B-32")
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_random_weights_are_the_same_every_time():
    first = load("RN50", pretrained="random").fingerprint()
    torch.manual_seed(99)
    assert load("RN50", pretrained="random").fingerprint() == first


def test_tokens_come_with_the_same_embeddings_and_padding_is_no_word(tiny):
    pixels, ids = torch.randn(2, 3, 32, 32), tiny.tokenize(["a red ball", "a blue box that lies on a table"]).ids
    image, text, patches, words = tiny.encode_with_tokens(pixels, ids)
    assert torch.allclose(image, tiny.encode_image(pixels), atol=1e-6)
    assert torch.allclose(text, tiny.encode_text(ids), atol=1e-6)
    assert (patches.shape, words.shape) == ((2, 16, 16), (2, 10, 16))
    assert tiny.word_mask(ids).sum(1).tolist() == [5, 10]
    # the word that is pooled, the end token, is the caption's own embedding
    assert torch.allclose(words[0, 4], text[0], atol=1e-5)


def test_a_caption_is_tokenized_once_to_know_its_length(tiny, monkeypatch):
    counted = []
    count = type(tiny)._count_tokens
    monkeypatch.setattr(type(tiny), "_count_tokens", lambda self, captions: counted.extend(captions) or count(self, captions))
    assert tiny.lengths(["a red ball", "a box", "a red ball"]) == tiny.lengths(["a red ball", "a box", "a red ball"]) == (5, 4, 5)
    assert counted == ["a red ball", "a box"]
    monkeypatch.setattr("densecap_search.model.encoder.KNOWN_LENGTHS", 1)
    assert tiny.lengths(["a box", "a green box"]) == (4, 5)
    assert tiny.lengths(["a red ball"]) == (5,)


def test_lengths_are_remembered_up_to_a_number_of_letters(tiny: DualEncoder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("densecap_search.model.encoder.KNOWN_LETTERS", 100)
    for number in range(10, 50):
        captions = ["a", f"{number} " * 12, "a"]  # 36 letters and 1: two of them stay, the third begins anew
        assert tiny.lengths(captions) == tuple(tiny._count_tokens(captions))
        assert sum(map(len, tiny._lengths)) == tiny._letters <= 100
    assert tiny.lengths(["a" * 101]) == tuple(tiny._count_tokens(["a" * 101]))
    assert not tiny._lengths
