"""What the repository holds beside code: small files in known places, a version that moves with the list of changes."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import densecap_search

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it to 3.10

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


def imported(folder: Path) -> set[str]:
    """The packages of others that the modules below a folder import, anywhere in them, by the names of their imports."""
    trees = [ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for path in folder.rglob("*.py")]
    nodes = [node for tree in trees for node in tree]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"densecap_search", "tools"}


def declared(*extras: str) -> set[str]:
    """Names of the packages that pyproject.toml asks for, with those of some extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {re.split(r"[\[<>=!~ ;]", line)[0].lower().replace("_", "-") for line in lines}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="which package a module is of is not told there")
@pytest.mark.parametrize("folder", ["densecap_search", "tools", "benchmarks", "tests"])
def test_every_imported_package_is_declared(folder: str):
    """Installed by the way of another package is not declared: that one may leave it out tomorrow."""
    own = {path.stem for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]}
    distributions = importlib.metadata.packages_distributions()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev"} - ({"test"} if folder in ("densecap_search", "tools") else set())
    asked = declared(*extras)
    missing = {name for name in imported(ROOT / folder) - own
               if not {each.lower().replace("_", "-") for each in distributions.get(name, [name])} & asked}
    assert missing == set()


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
