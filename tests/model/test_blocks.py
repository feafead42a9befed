from __future__ import annotations

from pathlib import Path

import pytest
from helpers import load, make_mixed, make_tiny

from densecap_search.errors import ModelError
from densecap_search.model.blocks import find_blocks
from densecap_search.model.tuning import select_parameters


def test_open_clip_towers_are_numbered_from_the_embeddings_to_the_head():
    image, text = (find_blocks(make_tiny(), tower) for tower in ("image", "text"))
    assert image.count == text.count == 2
    by_hand = {"class_embedding": 0, "positional_embedding": 0, "conv1.weight": 0, "ln_pre.weight": 0,
               "transformer.resblocks.0.attn.in_proj_weight": 1, "transformer.resblocks.1.mlp.c_fc.bias": 2,
               "ln_post.weight": 2, "proj": 3}
    assert {name: image.number[f"visual.{name}"] for name in by_hand} == by_hand
    by_hand = {"token_embedding.weight": 0, "positional_embedding": 0, "transformer.resblocks.0.ln_1.weight": 1,
               "transformer.resblocks.1.ln_2.bias": 2, "ln_final.bias": 2, "text_projection": 3}
    assert {name: text.number[f"text.{name}"] for name in by_hand} == by_hand


def test_timm_and_hugging_face_towers_are_numbered_too(tmp_path: Path):
    encoder = make_mixed(tmp_path)
    image, text = (find_blocks(encoder, tower) for tower in ("image", "text"))
    stages = encoder.model.visual.trunk.blocks
    assert image.count == sum(len(stage) for stage in stages)
    assert image.number["visual.trunk.conv_stem.weight"] == image.number["visual.trunk.bn1.weight"] == 0
    assert image.number["visual.trunk.blocks.0.0.conv.weight"] == 1
    assert image.number["visual.trunk.conv_head.weight"] == image.number["visual.trunk.bn2.weight"] == image.count
    assert image.number["visual.head.proj.weight"] == image.count + 1
    assert text.count == 3
    assert text.number["text.transformer.embeddings.position_embeddings.weight"] == 0
    assert text.number["text.transformer.encoder.layer.2.output.dense.weight"] == 3
    assert text.number["text.proj.weight"] == 4
    vit = find_blocks(make_mixed(tmp_path, "test_vit"), "image")
    assert vit.number["visual.trunk.cls_token"] == vit.number["visual.trunk.pos_embed"] == 0
    assert vit.number["visual.trunk.norm.weight"] == vit.count


@pytest.mark.slow
def test_the_starter_has_16_blocks_and_6():
    encoder = load("starter")
    assert [find_blocks(encoder, tower).count for tower in ("image", "text")] == [16, 6]


def test_every_parameter_has_a_number_with_and_without_adapters(tmp_path: Path):
    for encoder in (make_tiny(), make_mixed(tmp_path), make_mixed(tmp_path, "test_vit")):
        for tune in ("full", "lora"):
            select_parameters(encoder, tune, learn_logit_scale=True)
            found = {name for tower in ("image", "text") for name in find_blocks(encoder, tower).number}
            assert found == {name for name, _ in encoder.model.named_parameters()} - {"logit_scale"}


def test_a_tower_without_a_list_of_blocks_is_refused_by_name():
    with pytest.raises(ModelError, match=r"the image tower of RN50 \(random\) is a ModifiedResNet, which has no list of"):
        find_blocks(load("RN50", pretrained="random"), "image")
