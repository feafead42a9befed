"""The rooms and the direction of imports, held by the syntax tree."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "densecap_search"
# From the top down; a room may import what stands after it.
ORDER = (("cli",), ("ui",), ("workflows",), ("experiments",), ("training",), ("evaluation", "inspection"), ("retrieval",),
         ("embedding",), ("model",), ("pages",), ("collection", "scenes"), ("config", "errors", "files", "locks", "talk"))
ONLY_IN = {
    "faiss": {"retrieval", "embedding/neighbours.py"},
    "gradio": {"ui/app.py"}, "pymilvus": {"retrieval/milvus.py"}, "pyarrow": {"collection/columnar.py", "workflows/publish_index.py"}, "openpyxl": {"collection/columnar.py"},
    "open_clip": {"model"}, "timm": {"model"}, "transformers": {"model"}, "peft": {"model"},
    "onnx": {"model"}, "onnxruntime": {"model"}, "tokenizers": {"model"}, "ftfy": {"model/query_encoder.py"}, "sentence_transformers": {"model"},
    "torch": {"model", "training", "embedding/towers.py"},
}
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "densecap_search" and len(parts) > 1 else None


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def level(name: str) -> int | None:
    return next((number for number, names in enumerate(ORDER) if name in names), None)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if level(own) is None:
        return  # __init__ and __main__
    for module in imports(path):
        other = room(module)
        if other and other != own and level(other) is not None:
            assert level(other) > level(own) or level(own) == len(ORDER) - 1, f"{own} imports {module}"


def test_no_module_imports_itself_through_others():
    """Modules as well as rooms: an import inside a function counts too."""
    names = {module_name(path): path for path in MODULES}
    graph = {name: {found for found in imports(path) if found in names} - {name}
             for name, path in names.items()}
    left = {name for name in names if not name.endswith("__main__")}
    while ready := {name for name in left if not graph[name] & left}:
        left -= ready
    assert not left, f"these import each other in a circle: {sorted(left)}"


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_belongs(library: str):
    for path in MODULES:
        name = path.relative_to(PACKAGE).as_posix()
        if library in {module.split(".")[0] for module in imports(path)}:
            assert name.split("/")[0] in ONLY_IN[library] or name in ONLY_IN[library], f"{name} imports {library}"


def test_every_room_is_in_the_architecture_page():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for path in MODULES:
        if path.name not in ("__init__.py", "__main__.py"):
            assert path.name in page, f"docs/architecture.md does not name {path.name}"


def test_nothing_prints_or_exits_outside_the_command_line():
    for path in MODULES:
        if path.relative_to(PACKAGE).parts[0] != "cli":
            assert not re.search(r"^\s*(print\(|sys\.exit)", path.read_text(), re.MULTILINE), path


def test_the_page_script_is_short():
    assert len((ROOT / "app.py").read_text().splitlines()) <= 15
