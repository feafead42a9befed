from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import worker
from helpers import TINY, make_tiny
from safetensors.torch import load_file

from densecap_search.model.checkpoint import build_model, save_encoder
from densecap_search.model.encoder import DualEncoder, EncoderSpec, default_preprocess
from densecap_search.training.objectives import hn_clip

HERE = Path(__file__).parent


def torchrun(*words: object, timeout: int = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


@pytest.mark.slow
def test_two_processes_have_the_loss_and_gradients_of_one_and_take_the_same_step(tmp_path: Path):
    done = torchrun(HERE / "worker.py", tmp_path)
    assert done.returncode == 0, done.stderr
    two = torch.load(tmp_path / "two.pt", weights_only=True)

    one, (pixels, ids) = make_tiny(), worker.batch()
    loss = hn_clip(one.encode_image(pixels), one.encode_text(ids), one.logit_scale(), groups=worker.GROUPS)
    loss.backward()
    assert two["loss"].item() == pytest.approx(loss.item(), abs=1e-5)
    step = {name: value.detach() - 0.1 * value.grad for name, value in one.model.named_parameters()}
    for name, value in one.model.named_parameters():
        assert torch.allclose(two["gradients"][name], value.grad, atol=1e-5), name
        assert torch.allclose(value.detach() - 0.1 * two["gradients"][name], step[name], atol=1e-5), name
    for local in (True, False):
        for ours, theirs in zip(two["clip"][f"ours {local}"], two["clip"][f"theirs {local}"], strict=True):
            assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["heads", "full"])
def test_a_run_and_an_index_under_torchrun_are_written_once(photos: Path, tiny_run: Path, tmp_path: Path, tune: str):
    words = ["--model", tiny_run, "--tune", tune, "--epochs", "2", "--batch-size", "8", "--lr", "1e-3", "--checkpoint", "last"]
    done = torchrun("-m", "densecap_search", "finetune", photos, *words, "-o", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The model is") == 1
    assert done.stderr.count("epoch 2: loss") == 1
    alone = subprocess.run([sys.executable, "-m", "densecap_search", "finetune", photos, *words, "-o", tmp_path / "one"],
                           capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert alone.returncode == 0, alone.stderr
    logs = [[json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()] for name in ("one", "two")]
    for one, two in zip(*logs, strict=True):
        assert one["step"] == two["step"]
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-3)
    first, second = (load_file(tmp_path / name / "weights.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(first[name], second[name], atol=2e-3) for name in first)

    done = torchrun("-m", "densecap_search", "index", photos, "--model", tmp_path / "two", "-o", tmp_path / "index")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("24 pictures written") == 1


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_within_a_minute_with_its_error(photos: Path, tiny_run: Path, tmp_path: Path):
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, sys\nfrom densecap_search.training import loop\noriginal = loop._Job._backward\n"
        "def backward(self, batch):\n"
        "    if self.at.step == 2 and self.processes.rank == 1:\n        raise RuntimeError('the second process died')\n"
        "    return original(self, batch)\n"
        "loop._Job._backward = backward\nfrom densecap_search.cli import main\nmain(sys.argv[1:])\n")
    started = time.monotonic()
    done = torchrun(script, "finetune", photos, "--model", tiny_run, "--tune", "heads", "--epochs", "3", "--batch-size", "8",
                    "-o", tmp_path / "run")
    assert done.returncode != 0
    assert "the second process died" in done.stderr
    assert time.monotonic() - started < 60


INTERRUPTED = """
import sys
from densecap_search.training import loop
original = loop._Job._backward
def backward(self, batch):
    if self.at.step == 4:
        raise KeyboardInterrupt
    return original(self, batch)
loop._Job._backward = backward
from densecap_search.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def dropping_run(tmp_path: Path) -> Path:
    """A model that leaves out half of a picture's patches while it trains, others at every step."""
    spec = EncoderSpec("dropping", {**TINY, "vision_cfg": {**TINY["vision_cfg"], "patch_dropout": 0.5}}, default_preprocess(size=32), 77)
    torch.manual_seed(0)
    save_encoder(DualEncoder(build_model(spec), spec, make_tiny().tokenizer), tmp_path / "dropping")
    return tmp_path / "dropping"


@pytest.mark.slow
def test_two_processes_that_are_stopped_and_resumed_have_the_weights_of_two_that_were_not(
        photos: Path, dropping_run: Path, tmp_path: Path):
    """With dropout, so that the random numbers of each process matter; and one process may not go on for two."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    words = ["finetune", photos, "--model", dropping_run, "--tune", "full", "--epochs", "3", "--batch-size", "8", "--lr", "1e-3", "--objective", "info_nce",
             "--checkpoint", "last"]
    done = torchrun("-m", "densecap_search", *words, "-o", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    assert torchrun(script, *words, "-o", tmp_path / "parts").returncode != 0
    assert torch.load(tmp_path / "parts" / "state.pt", weights_only=True)["step"] == 4

    alone = subprocess.run([sys.executable, "-m", "densecap_search", "finetune", photos, "--resume", "-o", tmp_path / "parts"],
                           capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert alone.returncode == 1
    assert alone.stderr.splitlines()[-1] == (
        f"Error: {tmp_path / 'parts'} was begun by 2 processes and cannot be continued by 1; start as many as then, or train anew into another folder")

    done = torchrun("-m", "densecap_search", "finetune", photos, "--resume", "-o", tmp_path / "parts")
    assert done.returncode == 0, done.stderr
    whole, parts = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    start = load_file(dropping_run / "weights.safetensors")
    assert not torch.allclose(start["visual.proj"], whole["visual.proj"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["heads", "full"])
def test_a_batch_of_one_pair_on_two_processes_is_refused_in_one_sentence(photos: Path, tiny_run: Path, tmp_path: Path, tune: str):
    done = torchrun("-m", "densecap_search", "finetune", photos, "--model", tiny_run, "--tune", tune, "--epochs", "1", "--batch-size", "1",
                    "--objective", "info_nce", "-o", tmp_path / "run")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert set(said) == {"Error: the smallest batch has 1 pairs, which 2 processes cannot share; start fewer, or take a larger --batch-size"}
    assert "densecap_search/" not in done.stderr, "a traceback of ours"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_fewer_pictures_than_processes_in_a_split_or_an_index_are_no_crash(photos: Path, tiny_run: Path, tmp_path: Path):
    """Three pictures to train with, one to validate, none to test; and an index of one picture."""
    few = tmp_path / "few"
    few.mkdir()
    for path in sorted(photos.glob("*.png"))[:4]:
        for each in (path, path.with_suffix(".txt")):
            (few / each.name).write_bytes(each.read_bytes())
    done = torchrun("-m", "densecap_search", "finetune", few, "--model", tiny_run, "--tune", "heads", "--epochs", "2", "--batch-size", "3",
                    "--objective", "info_nce", "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    one = tmp_path / "one"
    one.mkdir()
    (one / "a.png").write_bytes(next(photos.glob("*.png")).read_bytes())
    done = torchrun("-m", "densecap_search", "index", one, "--model", tiny_run, "-o", tmp_path / "index")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 pictures written") == 1
