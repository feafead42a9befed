"""What the repository holds beside code: small files in known places, a version that moves with the list of changes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import densecap_search

ROOT = Path(__file__).parents[1]
# A new file in the root is a decision: add it here together with its reason to be there.
IN_ROOT = {".ci", ".gitattributes", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md",
           "app.py", "benchmarks", "configs", "densecap_search", "docs", "indexes", "pyproject.toml", "tests", "tools"}
LARGEST = 1_000_000  # bytes
LARGER = {"densecap_search/model/starter/heads.safetensors": 6_000_000}  # what we ship trained


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Every file that git keeps, relative to the root."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_tracked_files_are_small(tracked: list[str]):
    sizes = {name: (ROOT / name).stat().st_size for name in tracked}
    assert {name: size for name, size in sizes.items() if size > LARGER.get(name, LARGEST)} == {}


def test_the_root_holds_what_belongs_there(tracked: list[str]):
    assert {name.split("/")[0] for name in tracked} - IN_ROOT == set()


def test_the_version_is_that_of_the_newest_changes():
    """0.2.0 (unreleased) is 0.2.0.dev0, 0.2.0 is 0.2.0."""
    headings = re.findall(r"^## (\S+)( \(unreleased\))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    newest, unreleased = headings[0]
    assert densecap_search.__version__ == newest + (".dev0" if unreleased else "")
    versions = [tuple(map(int, version.split("."))) for version, _ in headings]
    assert versions == sorted(set(versions), reverse=True)
    assert not any(mark for _, mark in headings[1:])
