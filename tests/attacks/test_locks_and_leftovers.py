"""Two writers of one folder, and what killed processes leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import ones

from densecap_search.errors import FolderBusy
from densecap_search.files import UNFINISHED, atomic_path, sweep, temporary_folder
from densecap_search.locks import LOCK, locked
from densecap_search.retrieval.index_folder import sweep_leftovers

HOLDER = """
import sys, time
from pathlib import Path
from densecap_search.files import atomic_path, temporary_folder
from densecap_search.locks import locked
folder = Path(sys.argv[1])
with locked(folder, "densecap index"), atomic_path(folder / "weights") as file, temporary_folder(folder, "gen") as work:
    file.write_bytes(b"half")
    (work / "vectors").write_bytes(b"half")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def killed_or_not(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def unfinished(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.endswith(UNFINISHED)]


def test_a_second_writer_is_told_who_holds_the_folder(tmp_path: Path, killed_or_not: subprocess.Popen[str]):
    pattern = f"is being written by densecap index \\(process {killed_or_not.pid} on .*, since [0-9:]+\\); wait"
    with pytest.raises(FolderBusy, match=pattern), locked(tmp_path, "densecap finetune"):
        raise AssertionError("two writers at once")


def test_a_killed_process_keeps_no_lock_and_its_leftovers_are_swept(tmp_path: Path,
                                                                    killed_or_not: subprocess.Popen[str]):
    assert len(unfinished(tmp_path)) == 2
    assert sweep(tmp_path) == 0, "a living process lost its unfinished files"
    killed_or_not.kill()
    killed_or_not.wait()
    with locked(tmp_path, "densecap finetune"):
        assert sweep(tmp_path) == 2
    assert not list(tmp_path.iterdir())


def test_the_next_who_writes_into_a_folder_sweeps_it(tmp_path: Path, killed_or_not: subprocess.Popen[str]):
    killed_or_not.kill()
    killed_or_not.wait()
    with atomic_path(tmp_path / "other") as file:
        file.write_bytes(b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {LOCK, "other"}


def test_sweeping_touches_only_names_with_our_mark(tmp_path: Path):
    kept = [".weights.safetensors.abc.tmp", f"mine{UNFINISHED}", ".hidden", ".git"]
    for name in kept:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / f".link.a{UNFINISHED}").symlink_to(tmp_path / ".hidden")
    assert sweep(tmp_path) == 0
    assert all((tmp_path / name).exists() for name in kept)


def test_only_what_has_our_mark_and_no_living_writer_is_swept_out_of_an_index(
        tmp_path: Path, killed_or_not: subprocess.Popen[str]):
    """Names as versions before gave them, which may be anything of a user's, and a writer that lives and then does not."""
    (tmp_path / "vectors").mkdir()
    theirs = [tmp_path / name for name in (".gen-abc", ".export.abc", ".weights.abc.tmp", f"gen-1{UNFINISHED}", "vectors/.a.f32.tmp")]
    for place in theirs:
        place.mkdir()
        (place / "file").write_bytes(b"x")
    sweep_leftovers(tmp_path)
    assert len(unfinished(tmp_path)) == 3
    killed_or_not.kill()
    killed_or_not.wait()
    sweep_leftovers(tmp_path)
    assert unfinished(tmp_path) == [tmp_path / f"gen-1{UNFINISHED}"]
    assert all((place / "file").exists() for place in theirs)


def test_a_lock_is_waited_for_when_asked(tmp_path: Path, killed_or_not: subprocess.Popen[str]):
    started = time.monotonic()
    with pytest.raises(FolderBusy), locked(tmp_path, "densecap index", wait=0.5):
        pass
    assert time.monotonic() - started >= 0.5


def test_a_lock_is_free_again_after_its_block(tmp_path: Path):
    for _ in range(2):
        with locked(tmp_path / "run", "densecap finetune"):
            pass


def test_files_that_libraries_write_are_held_too(tmp_path: Path):
    """safetensors puts another file in the place of the one it is given."""
    with atomic_path(tmp_path / "weights.safetensors") as file:
        save_file({"a": ones(3)}, file)
        assert sweep(tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize("name", ["a" * 250, "écran" * 40, "写真" * 40])
def test_names_as_long_as_the_disk_takes_can_be_written(tmp_path: Path, name: str):
    name = os.fsencode(name)[:255].decode(errors="ignore")
    with atomic_path(tmp_path / name) as file:
        file.write_bytes(b"x")
    with temporary_folder(tmp_path, name) as work:
        assert work.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [name]
