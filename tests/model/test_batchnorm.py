from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from helpers import make_mixed, make_tiny
from torch import nn

from densecap_search.model.batchnorm import folded


def norms(module: nn.Module) -> int:
    return sum(isinstance(part, nn.BatchNorm2d) for part in module.modules())


def with_statistics(module: nn.Module) -> nn.Module:
    """As after training: means, variances, scales and shifts that are not 0 and 1."""
    torch.manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias)
    return module.eval()


def test_one_channel_folded_by_hand():
    """y = (2x − 3) / √(3.99999 + 1e-5) · 4 + 1 = 4x − 5."""
    tower = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1)).eval()
    with torch.no_grad():
        tower[0].weight.fill_(2)
        tower[1].running_mean.fill_(3)
        tower[1].running_var.fill_(3.99999)
        tower[1].weight.fill_(4)
        tower[1].bias.fill_(1)
    made = folded(tower, torch.ones(1, 1, 2, 2))
    assert made[0].weight.item() == pytest.approx(4)
    assert made[0].bias.item() == pytest.approx(-5)


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet"])
def test_a_folded_tower_returns_the_same_vectors_and_the_tower_stays_as_it_is(name: str):
    tower = with_statistics(timm.create_model(name, num_classes=0))
    before = {key: value.clone() for key, value in tower.state_dict().items()}
    x = torch.randn(3, 3, 64, 64)
    made = folded(tower, x[:1])
    assert norms(tower) > 5
    assert norms(made) == 0
    with torch.no_grad():
        assert nn.functional.cosine_similarity(made(x), tower(x)).min() >= 0.999999
    assert all(torch.equal(before[key], value) for key, value in tower.state_dict().items())


def test_a_tower_that_uses_a_convolutions_output_twice_is_not_folded():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.convolution(x)
            return self.norm(x) - x

    assert folded(with_statistics(Twice()), torch.randn(1, 3, 8, 8)) is None


def test_a_tower_without_batchnorm_is_not_copied():
    assert folded(make_tiny().model.visual, torch.randn(1, 3, 32, 32)) is None


def test_a_pass_over_pictures_returns_the_outputs_of_the_tower(tmp_path: Path):
    encoder = make_mixed(tmp_path)
    with_statistics(encoder.model.visual)
    pixels = torch.randint(0, 256, (5, 3, 64, 64), dtype=torch.uint8)
    folded_rows, rows = encoder.image_pass()(pixels), encoder.tower_outputs("image", pixels)
    assert nn.functional.cosine_similarity(folded_rows, rows).min() >= 0.999999
    assert not torch.equal(folded_rows, rows)
    assert torch.equal(make_tiny().image_pass()(pixels[:, :, :32, :32]), make_tiny().tower_outputs("image", pixels[:, :, :32, :32]))
