from __future__ import annotations

import re

import pytest
import torch
from helpers import load, make_mixed
from torch import nn

from densecap_search.errors import ConfigError, ModelError
from densecap_search.model.device import choose_device, choose_precision
from densecap_search.model.tuning import count_trained, parameter_groups, select_parameters, set_training_mode


def test_heads_are_the_projections_and_the_scale(tiny):
    assert set(select_parameters(tiny, "heads", learn_logit_scale=True)) == {
        "visual.proj", "text.text_projection", "logit_scale",
    }
    assert "logit_scale" not in select_parameters(tiny, "heads", learn_logit_scale=False)
    assert not tiny.model.visual.conv1.weight.requires_grad


def test_full_trains_everything(tiny):
    trained = select_parameters(tiny, "full", learn_logit_scale=True)
    assert len(trained) == len(list(tiny.model.parameters()))


def test_a_tower_without_a_head_is_refused_by_name():
    encoder = load("RN50", pretrained="random")
    with pytest.raises(ModelError, match=r"the image tower of RN50 \(random\) has no head of its own"):
        select_parameters(encoder, "heads", learn_logit_scale=True)
    set_training_mode(encoder)
    norms = [module for module in encoder.model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert not any(module.training for module in norms)
    assert encoder.model.visual.training


def test_last_trains_the_last_blocks_the_norms_after_them_and_the_heads(tiny):
    names = set(select_parameters(tiny, "last:1", learn_logit_scale=True))
    assert all(re.match(r"(visual|text)\.(transformer\.resblocks\.1\.|ln_post|ln_final|proj$|text_projection$)", name)
               for name in names - {"logit_scale"}), names
    # a block: 2 norms, attention of 4 and MLP of 2 tensors with biases; the final norm; the head
    assert len(names) == 2 * (2 * 2 + 4 + 4 + 2 + 1) + 1
    everything = select_parameters(tiny, "last:2", learn_logit_scale=True)
    assert {name for name, _ in tiny.model.named_parameters()} - set(everything) == {
        "visual.class_embedding", "visual.positional_embedding", "visual.conv1.weight", "visual.ln_pre.weight",
        "visual.ln_pre.bias", "text.positional_embedding", "text.token_embedding.weight"}


def test_the_trained_parameters_are_counted(tiny):
    trained = select_parameters(tiny, "heads", learn_logit_scale=True)
    total = sum(value.numel() for value in tiny.model.parameters())
    assert count_trained(tiny, trained) == (  # 32 · 16 each
        f"512 parameters train in the image tower, 512 in the text tower, of {total:,}")


def test_last_with_more_blocks_than_there_are_says_how_many_there_are(tiny, tmp_path):
    with pytest.raises(ModelError, match=r"--tune last:99 asks for more blocks than the image tower of tiny has: 2; use last:2"):
        select_parameters(tiny, "last:99", learn_logit_scale=True)
    with pytest.raises(ModelError, match=r"--tune last:4 asks for more blocks than the text tower of mixed has: 3"):
        select_parameters(make_mixed(tmp_path), "last:4", learn_logit_scale=True)


def test_dropout_is_on_where_something_trains_and_batch_norm_never(tmp_path):
    encoder = make_mixed(tmp_path)
    before = {name: value.clone() for name, value in encoder.model.visual.trunk.named_buffers()}
    layers = encoder.model.text.transformer.encoder.layer
    for tune, on in (("full", [True] * 3), ("last:1", [False, False, True]), ("heads", [False] * 3), ("lora", [True] * 3)):
        select_parameters(encoder, tune, learn_logit_scale=True)
        set_training_mode(encoder)
        assert [layer.output.dropout.training for layer in layers] == on, tune
        assert encoder.model.text.transformer.embeddings.dropout.training is (tune == "full"), tune
        encoder.encode_image(torch.randn(2, 3, 64, 64))
        encoder.encode_text(torch.randint(1, 200, (2, 5)))
    after = dict(encoder.model.visual.trunk.named_buffers())
    assert before
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_weight_decay_is_for_matrices_only(tiny, tmp_path):
    shapes = {"w": (2, 2), "b": (2,), "s": (), "norm": (1, 4, 1, 1), "text.positional_embedding": (3, 3),
              "x.lora_A.default.weight": (2, 3), "x.lora_magnitude_vector.default.weight": (2, 2)}
    parameters = {name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    groups = parameter_groups(tiny, parameters, 0.1)
    assert [(len(group["params"]), group["weight_decay"], group["lr_scale"]) for group in groups] == [(2, 0.1, 1), (5, 0.0, 1)]
    for encoder in (tiny, make_mixed(tmp_path, "test_vit")):
        trained = select_parameters(encoder, "dora", learn_logit_scale=True)
        trained |= select_parameters(make_mixed(tmp_path, "test_vit"), "full", learn_logit_scale=True)
        free = {id(value) for group in parameter_groups(encoder, trained, 0.1) if not group["weight_decay"]
                for value in group["params"]}
        names = {name for name, value in trained.items() if id(value) in free}
        assert {"logit_scale", "visual.trunk.cls_token", "visual.trunk.pos_embed", "visual.trunk.norm.weight",
                "text.transformer.embeddings.position_embeddings.weight"} <= names
        assert not [name for name in trained if "magnitude" in name and name not in names]
        assert "text.proj.weight" not in names


def test_the_learning_rate_decays_from_the_heads_down_worked_by_hand(tiny):
    trained = select_parameters(tiny, "full", learn_logit_scale=True)
    groups = parameter_groups(tiny, trained, 0.05, layer_decay=0.5)
    scale = {id(value): group["lr_scale"] for group in groups for value in group["params"]}
    by_hand = {"logit_scale": 1, "visual.proj": 1, "text.text_projection": 1, "text.ln_final.weight": 0.5,
               "visual.transformer.resblocks.1.mlp.c_fc.weight": 0.5, "text.transformer.resblocks.0.ln_1.bias": 0.25,
               "visual.conv1.weight": 0.125, "text.positional_embedding": 0.125, "text.token_embedding.weight": 0.125}
    assert {name: scale[id(trained[name])] for name in by_hand} == by_hand
    assert sum(len(group["params"]) for group in groups) == len(trained)
    assert [group["lr_scale"] for group in groups] == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_without_layer_decay_no_blocks_are_needed():
    encoder = load("RN50", pretrained="random")
    trained = select_parameters(encoder, "full", learn_logit_scale=True)
    assert {group["lr_scale"] for group in parameter_groups(encoder, trained, 0.05)} == {1.0}


def test_precisions_a_device_lacks_are_refused():
    cpu, mps = torch.device("cpu"), torch.device("mps")
    assert choose_precision("auto", cpu) == "fp32"
    assert choose_precision("auto", mps) == "fp32"
    assert choose_precision("bf16", cpu) == "bf16"
    with pytest.raises(ConfigError, match="--precision fp16 is not supported on cpu"):
        choose_precision("fp16", cpu)
    with pytest.raises(ConfigError, match="--precision bf16 is not supported on mps"):
        choose_precision("bf16", mps)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="there is no cuda on this machine; devices here: cpu"):
            choose_device("cuda")
