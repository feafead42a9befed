"""The fuzz tests of the readers again, with 25 times the examples of the fast run (`make fuzz`: 10,000 each)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_fifteen_hundred_examples_each_find_no_exception_but_ours_and_no_lost_row():
    tests = Path(__file__).parents[1] / "collection" / "test_readers_fuzzed.py"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "auto", str(tests)], cwd=tests.parents[2], text=True,
                          capture_output=True, env={**os.environ, "DENSECAP_FUZZ": "1500"})
    assert done.returncode == 0, done.stdout[-4000:]
