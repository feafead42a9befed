"""What the pages tell people to type can be typed, and what they say of options is what the commands say."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from densecap_search.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "densecap_search/model/starter/README.md"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
SHELL = re.compile(r"```(?:sh|bash|console)\n(.*?)```", re.DOTALL)


def lines_of(text: str) -> list[str]:
    """The single commands in the blocks of a page: continued lines joined, comments and prompts taken off."""
    found = [line.strip().removeprefix("$ ").split(" #")[0].strip()
             for block in SHELL.findall(text.replace("\\\n", " ")) for line in block.splitlines()]
    return [part.strip() for line in found if not line.startswith("#") for part in line.split("&&") if part.strip()]


def help_examples() -> list[str]:
    lines = [line.strip() for command in [main, *main.commands.values()] for line in (command.help or "").splitlines()]
    return [re.split(r"\s{3,}", line)[0] for line in lines if re.match("densecap |torchrun ", line)]


DOCUMENTED = sorted({line for page in PAGES for line in lines_of(page.read_text(encoding="utf-8"))} | set(help_examples()))


def test_pages_and_help_have_commands_to_check():
    assert sum(line.startswith("densecap ") for line in DOCUMENTED) >= 40
    assert any(line.startswith("torchrun ") for line in DOCUMENTED)


@pytest.mark.parametrize("line", DOCUMENTED)
def test_every_documented_command_of_ours_can_be_typed(line: str):
    own = itertools.takewhile(lambda word: word not in ("|", ">"), shlex.split(line))  # what follows is of the shell
    words = [word for word in own if not re.fullmatch(r"[A-Z_]+=\S*", word)]  # settings before a command
    if words[0] == "torchrun":
        assert words[words.index("-m") + 1] == "densecap_search"
        words = ["densecap", *words[words.index("-m") + 2:]]
    if words[0] == "make":
        assert {word for word in words[1:] if "=" not in word} <= TARGETS
    elif words[0] == "densecap":
        if words[1] in ("-h", "--help", "--version"):
            return
        main.commands[words[1]].make_context(words[1], words[2:])
    elif words[:2] == ["python", "-m"] and words[2].startswith("tools."):
        assert (ROOT / words[2].replace(".", "/")).with_suffix(".py").is_file()
    elif words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file()


def test_the_page_of_commands_is_what_the_commands_say():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    made = subprocess.run([sys.executable, "-m", "tools.command_page"], cwd=ROOT, capture_output=True, check=True)
    assert page == made.stdout.decode("utf-8"), "docs/commands.md is old: run make commands"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_pages_name_exist(page: Path):
    """In running text as well: `--like-this`, unless it is of a tool, a benchmark or another program."""
    known = {option for command in [main, *main.commands.values()] for parameter in command.params
             for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {option for tool in [*ROOT.glob("tools/*.py"), *ROOT.glob("benchmarks/*.py")] for option in re.findall(r'"(--[a-z-]+)', tool.read_text())}
    known |= {"--help", "--version", "--depth", "--nproc-per-node", "--resolution"}  # of click, git, torchrun, uv
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = {option for code in re.findall(r"`([^`]+)`", text) if "/" not in code.split()[0]
             for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code)}
    assert named - known == set()
