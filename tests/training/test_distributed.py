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
from helpers import make_tiny
from safetensors.torch import load_file

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
