"""Runs that are killed, stopped and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import make_photos, run_in_fork
from safetensors.torch import load_file

pytestmark = pytest.mark.slow


def run_until_rename(words: list[str], number: int, before: bool) -> int:
    """The command in a fork that is killed just before or after its n-th file takes its name; its exit code, or −9."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        counted, original = [0], Path.replace

        def replace(self: Path, target: Path) -> Path:
            counted[0] += 1
            if before and counted[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            done = original(self, target)
            if counted[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        Path.replace = replace  # type: ignore[method-assign]
        from densecap_search.cli import main

        try:
            main(words, standalone_mode=True)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_any_file_of_a_run_that_interpolates_leaves_half_and_not_a_quarter(
        tmp_path: Path, tiny_run: Path, before: bool):
    torch.set_num_threads(1)
    photos = make_photos(tmp_path / "photos")
    words = ["finetune", str(photos), "--model", str(tiny_run), "--tune", "heads", "--epochs", "2", "--batch-size", "8",
             "--lr", "1e-2", "--checkpoint", "last", "--interpolate", "0.5"]
    assert run_in_fork([*words, "-o", str(tmp_path / "whole")], tmp_path / "log") == 0
    whole = load_file(tmp_path / "whole" / "weights.safetensors")
    for number in range(1, 100):
        run = tmp_path / f"run-{number}"
        code = run_until_rename([*words, "-o", str(run)], number, before)
        if code == 0:
            break
        assert code == -9, code
        if not (run / "state.pt").exists():
            continue  # nothing to resume: it is begun anew
        assert run_in_fork(["finetune", str(photos), "--resume", "-o", str(run)], tmp_path / "log") == 0
        found = load_file(run / "weights.safetensors")
        assert all(torch.allclose(whole[name], found[name], atol=1e-6) for name in whole), number
    assert number > 5


@pytest.mark.parametrize("tune", ["heads", "full"])
def test_ctrl_c_saves_ends_within_five_seconds_and_leaves_no_process(tmp_path: Path, tiny_run: Path, tune: str):
    photos = make_photos(tmp_path / "photos")
    words = [sys.executable, "-m", "densecap_search", "finetune", photos, "--model", tiny_run, "--tune", tune, "--epochs",
             "100000", "--batch-size", "8", "--set", "train.workers=2", "-o", tmp_path / "run"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 2:"):
                break
        stopped = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(timeout=30) == 1
    assert time.monotonic() - stopped < 5
    assert "continue with --resume" in rest
    assert "Traceback" not in rest
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert state["step"] >= 6
    assert (tmp_path / "run" / "weights.safetensors").exists()


def test_memory_is_flat_across_epochs(tmp_path: Path, tiny_run: Path):
    photos = make_photos(tmp_path / "photos")
    script = (
        "import sys, resource\nfrom densecap_search.training import loop\nseen = []\noriginal = loop._Job._end_epoch\n"
        "def end(job, *rest):\n"
        "    original(job, *rest)\n    seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
        "loop._Job._end_epoch = end\nfrom densecap_search.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\nprint(seen[10], seen[-1])\n"
    )
    words = ["finetune", photos, "--model", tiny_run, "--tune", "full", "--epochs", "80", "--batch-size", "8", "-o", tmp_path / "run"]
    done = subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    early, late = map(float, done.stdout.splitlines()[-1].split())
    assert late - early < 60, f"{early:.0f} MiB after 11 epochs, {late:.0f} MiB after 80"
