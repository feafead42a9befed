from __future__ import annotations

import pytest
import torch
from torch import nn

from densecap_search.errors import ConfigError, ModelError
from densecap_search.model.device import choose_device, choose_precision
from densecap_search.model.sources import load_encoder
from densecap_search.model.tuning import parameter_groups, select_parameters, set_training_mode


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
    encoder = load_encoder("RN50", pretrained="random")
    with pytest.raises(ModelError, match=r"the image tower of RN50 \(random\) has no head of its own"):
        select_parameters(encoder, "heads", learn_logit_scale=True)
    set_training_mode(encoder, "full")
    norms = [module for module in encoder.model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert not any(module.training for module in norms)
    assert encoder.model.visual.training


def test_weight_decay_is_for_matrices_only():
    parameters = {"w": nn.Parameter(torch.zeros(2, 2)), "b": nn.Parameter(torch.zeros(2)), "s": nn.Parameter(torch.zeros(()))}
    groups = parameter_groups(parameters, 0.1)
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.1), (2, 0.0)]


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
