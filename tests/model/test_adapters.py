from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from helpers import load, make_mixed, make_tiny
from torch import nn

from densecap_search.errors import MissingPackage
from densecap_search.model.adapters import adapter_state, merged_state
from densecap_search.model.checkpoint import load_run, save_encoder
from densecap_search.model.encoder import DualEncoder
from densecap_search.model.folding import SplitAttention
from densecap_search.model.tuning import TOWERS, select_parameters, set_training_mode


@pytest.fixture(params=["open_clip", "timm and BERT", "timm ViT and BERT", pytest.param("starter", marks=pytest.mark.slow)])
def make(request, tmp_path: Path):
    return {"open_clip": make_tiny, "timm and BERT": lambda: make_mixed(tmp_path),
            "timm ViT and BERT": lambda: make_mixed(tmp_path, "test_vit"),
            "starter": lambda: load("starter", device="cpu")}[request.param]


def batch(encoder: DualEncoder) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    pixels = torch.randn(4, 3, encoder.image_size, encoder.image_size)
    return pixels, torch.randint(1, 200, (4, encoder.context_length if encoder.tokenizer else 12))


def both(encoder: DualEncoder) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, ids = batch(encoder)
    return encoder.encode_image(pixels), encoder.encode_text(ids)


def vectors(encoder: DualEncoder) -> torch.Tensor:
    encoder.model.eval()
    with torch.no_grad():
        return torch.cat(both(encoder))


def train(encoder: DualEncoder, trained: dict[str, nn.Parameter], steps: int = 3) -> None:
    optimizer = torch.optim.SGD(trained.values(), lr=0.3)
    set_training_mode(encoder)
    for _ in range(steps):
        image, text = both(encoder)
        scores = encoder.logit_scale() * image @ text.T
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, torch.arange(4)).backward()
        optimizer.step()


@pytest.mark.parametrize("bias", [True, False])
def test_split_attention_is_multihead_attention(bias: bool):
    torch.manual_seed(0)
    fused = nn.MultiheadAttention(32, 4, bias=bias, batch_first=True)
    nn.init.normal_(fused.in_proj_weight, std=0.3)
    split = SplitAttention(copy.deepcopy(fused))
    x, other = torch.randn(2, 7, 32), torch.randn(2, 7, 32)
    causal = torch.full((7, 7), -torch.inf).triu(1)
    hidden = torch.rand(2 * 4, 7, 7) < 0.3
    hidden[:, :, 0] = False
    for mask in (None, causal, causal < 0, hidden, torch.randn(8, 7, 7)):
        for query, key, value in ((x, x, x), (x, other, other)):
            expected, _ = fused(query, key, value, need_weights=False, attn_mask=mask)
            found, weights = split(query, key, value, need_weights=False, attn_mask=mask)
            assert weights is None
            assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_changes_nothing_when_it_is_put_in(make, kind: str):
    encoder = make()
    before, state, fingerprint = vectors(encoder), dict(encoder.model.state_dict()), encoder.fingerprint()
    trained = select_parameters(encoder, kind, learn_logit_scale=True)
    assert torch.allclose(vectors(encoder), before, atol=1e-6)
    merged = merged_state(encoder)
    assert set(merged) == set(state)
    assert all(torch.equal(merged[name], state[name]) for name in state)
    assert encoder.fingerprint() == fingerprint  # so an index or a cache that the plain model made still fits
    for prefix in ("visual.", "text."):
        assert sum(value.numel() for name, value in trained.items() if name.startswith(prefix) and ".lora_" in name) > 0


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_merged_vectors_are_the_unmerged_ones_and_merging_disturbs_nothing(make, kind: str, tmp_path: Path):
    encoder = make()
    before, plain = vectors(encoder), copy.deepcopy(encoder)
    train(encoder, select_parameters(encoder, kind, learn_logit_scale=True))
    unmerged, raw = vectors(encoder), {k: v.clone() for k, v in encoder.model.state_dict().items()}
    assert (unmerged - before).abs().max() > 1e-3
    plain.model.load_state_dict(merged_state(encoder))
    assert torch.allclose(vectors(plain), unmerged, atol=1e-5)
    assert all(torch.equal(raw[name], value) for name, value in encoder.model.state_dict().items())
    assert torch.equal(vectors(encoder), unmerged)
    assert plain.fingerprint() == encoder.fingerprint()


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_every_adapter_is_reached_and_the_towers_stay(make, kind: str):
    encoder = make()
    state = {name: value.clone() for name, value in encoder.model.state_dict().items()}
    trained = select_parameters(encoder, kind, learn_logit_scale=True)
    train(encoder, trained, steps=1)
    adapters = {name: value for name, value in trained.items() if ".lora_B." in name}
    assert adapters
    assert [name for name, value in adapters.items() if not value.any()] == []
    frozen = [name for name, value in encoder.model.named_parameters() if not value.requires_grad]
    raw = encoder.model.state_dict()
    assert all(torch.equal(raw[name], state[name.replace(".base_layer", "")]) for name in frozen
               if name.replace(".base_layer", "") in state)
    for tower in TOWERS:
        head = encoder.head_slot(tower).head
        values = [head] if isinstance(head, nn.Parameter) else list(head.parameters())
        assert all(value.requires_grad for value in values)


def test_the_layers_that_are_adapted_and_their_numbers_of_parameters(tmp_path: Path):
    encoder = make_tiny()
    trained = select_parameters(encoder, "lora", learn_logit_scale=True, rank=4)
    layers = {name.split(".resblocks.")[1].split(".lora_")[0] for name in trained if ".lora_" in name}
    assert layers == {f"{block}.{layer}" for block in (0, 1) for layer in (
        "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj", "mlp.c_fc", "mlp.c_proj")}
    for prefix, head in (("visual.", 32 * 16), ("text.", 32 * 16)):  # rank · (in + out), twice 4 of 32→32, 32→128, 128→32
        count = sum(value.numel() for name, value in trained.items() if name.startswith(prefix))
        assert count == head + 2 * 4 * (4 * (32 + 32) + 2 * (32 + 128))
    names = {name.split(".lora_")[0] for name in select_parameters(make_mixed(tmp_path), "lora", learn_logit_scale=False)
             if ".lora_" in name}
    text = {name.removeprefix("text.transformer.encoder.layer.") for name in names if name.startswith("text.")}
    assert text == {f"{block}.{layer}" for block in range(3) for layer in (
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        "intermediate.dense", "output.dense")}
    image = {name.rsplit(".", 1)[1] for name in names if name.startswith("visual.")}
    assert {"conv_pw", "conv_pwl", "conv_head"} <= image
    assert not {"conv_dw", "conv_stem"} & image


def test_a_merged_weight_worked_by_hand():
    encoder = make_tiny()
    before = encoder.model.text.transformer.resblocks[1].attn.in_proj_weight.detach().clone()
    trained = select_parameters(encoder, "lora", learn_logit_scale=True, rank=1)
    name = "text.transformer.resblocks.1.attn.k_proj"
    a, b = torch.zeros(1, 32), torch.zeros(32, 1)
    a[0, 3], b[5, 0] = 2.0, 0.25
    changed = {f"{name}.lora_A.default.weight": a, f"{name}.lora_B.default.weight": b, "logit_scale": torch.tensor(1.5)}
    merged = merged_state(encoder, changed)
    difference = merged["text.transformer.resblocks.1.attn.in_proj_weight"] - before
    assert difference[32 + 5, 3] == pytest.approx(0.5)  # k follows 32 rows of q
    assert difference.count_nonzero() == 1
    assert merged["logit_scale"] == 1.5
    assert not trained[f"{name}.lora_B.default.weight"].any()  # the model itself is as before
    assert torch.equal(adapter_state(encoder, changed)[f"{name}.lora_B.default.weight"], b)


def test_the_adapter_state_is_what_trains(tiny):
    assert set(merged_state(tiny)) == set(tiny.model.state_dict())
    trained = select_parameters(tiny, "dora", learn_logit_scale=False)
    assert set(adapter_state(tiny)) == {*trained, "logit_scale"}


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_a_saved_adapted_encoder_loads_without_peft(tiny, tmp_path: Path, monkeypatch, kind: str):
    train(tiny, select_parameters(tiny, kind, learn_logit_scale=True))
    save_encoder(tiny, tmp_path / "run")
    expected = vectors(tiny)
    monkeypatch.setitem(sys.modules, "peft", None)
    again = load_run(tmp_path / "run")
    assert torch.allclose(vectors(again), expected, atol=1e-5)
    assert type(again.model.visual.transformer.resblocks[0].attn) is nn.MultiheadAttention
    assert (tmp_path / "run" / "adapter.safetensors").stat().st_size < (tmp_path / "run" / "weights.safetensors").stat().st_size / 10


def test_without_peft_the_extra_is_named(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingPackage, match=r"need the package peft; pip install 'densecap-search\[peft\]'"):
        select_parameters(tiny, "lora", learn_logit_scale=True)


def test_the_random_halves_follow_the_seed():
    first, second, other = (
        adapter_state(encoder) for encoder, seed in ((make_tiny(), 3), (make_tiny(), 3), (make_tiny(), 4))
        if select_parameters(encoder, "lora", learn_logit_scale=True, seed=seed))
    name = "visual.transformer.resblocks.0.mlp.c_fc.lora_A.default.weight"
    assert torch.equal(first[name], second[name])
    assert not torch.equal(first[name], other[name])


def test_the_attention_pool_of_a_resnet_is_adapted_and_folded_back():
    from open_clip.modified_resnet import ModifiedResNet

    from densecap_search.model.adapters import _split_attention, _targets
    from densecap_search.model.folding import folded_state

    torch.manual_seed(0)
    tower = ModifiedResNet((1, 1, 1, 1), output_dim=8, heads=4, image_size=64, width=8).eval()
    pixels, names = torch.randn(2, 3, 64, 64), set(tower.state_dict())
    with torch.no_grad():
        before = tower(pixels)
        _split_attention(tower)
        assert torch.allclose(tower(pixels), before, atol=1e-5)
    assert {f"attnpool.{letter}_proj" for letter in "qkvc"} <= set(_targets(tower, ""))
    assert set(folded_state(tower)) == names


def test_alpha_scales_adapters_and_targets_choose_layers():
    from densecap_search.errors import ModelError
    from densecap_search.model.tuning import select_parameters

    encoder = make_tiny(77)
    trained = select_parameters(encoder, "lora", learn_logit_scale=False, rank=4, alpha=8, only=r"attn\.q_proj")
    adapted = [name for name in trained if ".lora_" in name]
    assert adapted
    assert all(".attn.q_proj." in name for name in adapted)
    assert encoder.model.text.transformer.resblocks[0].attn.q_proj.scaling == {"default": 2.0}
    with pytest.raises(ModelError, match=r"train\.lora_targets 'nothing' is in the name of no layer that lora adapts, such as text\."):
        select_parameters(make_tiny(77), "lora", learn_logit_scale=False, only="nothing")
