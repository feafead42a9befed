"""The snippets of docs/frameworks.md, run as they stand there against the functions of the packages they are for."""

from __future__ import annotations

import inspect
import re
from argparse import Namespace
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip.loss import ClipLoss
from torch.nn import functional as F

from densecap_search.training.objectives import HNClipLoss, hn_clip, info_nce

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")


def snippet(named: str) -> str:
    """The code below the paragraph that begins with this name."""
    found = re.search(rf"\*\*{re.escape(named)}.*?```python\n(.*?)```", PAGE, re.DOTALL)
    assert found, named
    return found[1]


def run(named: str, **names: object) -> dict:
    space = {"hn_clip": hn_clip, "HNClipLoss": HNClipLoss, "F": F, "torch": torch, **names}
    exec(snippet(named), space)  # our own page
    return space


def rows(count: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, 8, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_open_clips_create_loss_is_replaced_by_what_is_called_in_the_same_way():
    args = Namespace(distill=False, model="ViT-B-32", siglip=False, local_loss=False, gather_with_grad=False, rank=0, world_size=1,
                     horovod=False)
    ours, theirs = run("open_clip.", args=args)["loss"], open_clip.create_loss(args)
    assert isinstance(theirs, ClipLoss)
    assert list(inspect.signature(ours.forward).parameters)[:3] == list(inspect.signature(theirs.forward).parameters)[:3]
    image, text, scale = rows(6, 0), rows(6, 1), torch.tensor(20.0)
    assert ours(image, text, scale).item() == pytest.approx(hn_clip(image, text, scale, gamma=0.5).item())
    ours.gamma = 0.0
    assert ours(image, text, scale).item() == pytest.approx(theirs(image, text, scale).item(), abs=1e-6)


def test_the_plain_loop_takes_an_open_clip_model():
    from helpers import TINY

    model = open_clip.CLIP(**TINY).eval()
    tokens = open_clip.tokenize(["a red ball", "two dogs", "a boat"])
    loss = run("A plain loop", model=model, pixels=torch.randn(3, 3, 32, 32), tokens=tokens)["loss"]
    assert loss.requires_grad
    assert loss.item() > 0


def test_the_long_branch_of_long_clip_gives_its_loss_without_smoothing_and_margin():
    """Its own lines, with label_smoothing 0 and our γ 0: two processes, of which this is the second."""
    image, text = rows(8, 0), rows(8, 1)
    own, targets = slice(4, 8), torch.arange(4, 8)

    class Model:
        logit_scale = torch.tensor(3.0)

    names = {"image_features_long": image[own], "text_features_long": text[own], "image_feat_all_long": image,
             "text_feat_all_long": text, "targets": targets, "self": Model()}
    scale = Model.logit_scale.exp()
    theirs = (F.cross_entropy(scale * image[own] @ text.T, targets) + F.cross_entropy(scale * text[own] @ image.T, targets)) / 2
    assert info_nce(image[own], text[own], scale, all_image=image, all_text=text, labels=targets).item() == pytest.approx(theirs.item())
    assert run("Long-CLIP's own loop", **names)["loss_itcl"].item() > theirs.item()  # the margin only adds


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers by an old name
def test_clipmodel_under_peft_gives_what_the_snippet_takes():
    peft = pytest.importorskip("peft")
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = CLIPModel(CLIPConfig(text_config={**tower, "vocab_size": 100, "eos_token_id": 99, "bos_token_id": 1, "pad_token_id": 0},
                                 vision_config={**tower, "image_size": 32, "patch_size": 8}, projection_dim=8))
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    ids = torch.tensor([[1, 5, 6, 99], [1, 7, 8, 99]])
    made = run("LoRA and DoRA", peft_model=wrapped, ids=ids, pixels=torch.randn(2, 3, 32, 32))
    assert made["loss"].requires_grad
    assert torch.allclose(made["out"].image_embeds.norm(dim=-1), torch.ones(2), atol=1e-5)


@pytest.mark.parametrize(("named", "result", "names"), [
    ("FineLIP", "global_loss", ("image_global", "text_global")), ("GOAL", "loss_org", ("x_i_org", "x_t_org")),
    ("StructXLIP", "loss_org", ("x_i_org", "x_t_org"))])
def test_the_others_at_least_run_on_names_of_theirs(named: str, result: str, names: tuple[str, str]):
    class Model:
        logit_scale = torch.tensor(3.0)

    image, text = rows(4, 0), rows(4, 1)
    made = run(named, model=Model(), logit_scale_main=Model.logit_scale.exp(), **dict(zip(names, (image, text), strict=True)))
    assert made[result].item() == pytest.approx(hn_clip(image, text, Model.logit_scale.exp(), gamma=0.5).item())
