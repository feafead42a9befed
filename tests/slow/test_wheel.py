"""The built wheel, unpacked elsewhere, does what the checkout does."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_heads_models_and_demo_work_from_a_wheel(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", ROOT], check=True,
                   capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    elsewhere = tmp_path / "elsewhere"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(elsewhere)
        assert not any(name.startswith(("tests/", "benchmarks/", "configs/")) for name in archive.namelist())
    environment = {**os.environ, "PYTHONPATH": str(elsewhere), "DENSECAP_CACHE": str(tmp_path / "cache")}

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import densecap_search; print(densecap_search.__file__)")
    assert where.startswith(str(elsewhere))
    assert "towers and heads" in run("-m", "densecap_search", "models")
    output = run("-m", "densecap_search", "demo", "d", "--bursts", "24")
    assert "fine-tuned" in output
    assert "densecap serve d/index" in output
