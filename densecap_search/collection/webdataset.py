"""WebDataset shards: tar files of samples, read as a stream. Pictures are taken out once, into the cache.

Everything that opens pictures opens files, so the pictures of a shard become files: under $DENSECAP_CACHE, in a folder
named by the shard's content, under numbers instead of the names in the shard (which may be anything, `../` included).
"""

from __future__ import annotations

import json
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from densecap_search.collection.records import Skipped
from densecap_search.collection.source import Row, Rows, Source, parse_json
from densecap_search.collection.text_files import decode
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError
from densecap_search.files import cache_folder, hash_file, json_lines, temporary_folder

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_TEXT_BYTES = 1 << 26  # of a caption or its JSON: more is no caption
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_ROWS = "rows.jsonl"


def is_webdataset(source: Source) -> str | None:
    """A tar file, or a folder that holds tar files and no pictures."""
    shards = _shards(source)
    if not source.path.is_dir():
        return "a tar file" if shards else None
    return f"{len(shards)} tar files" if shards and not any(is_picture(name) for name in source.names) else None


def read_webdataset(source: Source) -> Rows:
    """Samples: members that follow each other and share their name up to the first dot of the file name.

    The caption is the sample's .txt, else what its .json holds under caption, text or description; other keys of the
    .json are columns. Ids are SHARD/NAME.
    """
    shards = _shards(source)
    if not shards:
        raise CollectionError(f"{source.path} is no tar file and holds none; choose another --format")
    number = 0
    for shard in shards:
        folder = _unpacked(shard)
        for line in (folder / _ROWS).read_text(encoding="utf-8").split("\n"):
            if not line:
                continue
            row = json.loads(line)
            if "reason" in row and "image" not in row:
                number += row["counts"]
                yield number, Skipped(f"{shard.name}/{row['name']}", row["reason"], number if row["counts"] else None)
                continue
            number += 1
            yield number, {**row, "image": str(folder / row["image"]), "id": f"{shard.name}/{row['id']}"}


def _shards(source: Source) -> list[Path]:
    if source.path.is_dir():
        return [source.path / name for name in source.names
                if name.lower().endswith(_SUFFIXES) and (source.reading.hidden or not name.startswith("."))
                and (source.path / name).is_file()]
    is_tar = source.start[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC) or source.path.name.lower().endswith(_SUFFIXES)
    return [source.path] if is_tar else []


def _unpacked(shard: Path) -> Path:
    """The folder of a shard's pictures and its rows, made where it is not there."""
    try:
        folder = cache_folder() / "webdataset" / hash_file(shard)
        if (folder / _ROWS).is_file():
            return folder
        with temporary_folder(folder.parent, "unpacking") as temporary:
            with (temporary / _ROWS).open("w", encoding="utf-8") as rows:
                for row in _take_out(shard, temporary):
                    rows.write(json_lines([row]))
            if not folder.exists():  # another process may have been first
                temporary.rename(folder)
        return folder
    except OSError as error:
        raise CollectionError(f"cannot take the pictures out of {shard}: {error.strerror or error}; they go to "
                              f"{cache_folder()}, which DENSECAP_CACHE can place elsewhere") from error


@dataclass
class _Sample:
    """What was seen of one sample. counts of a reason row: whether it is a sample (1) or a remark on the shard (0)."""

    name: str
    image: str | None = None
    caption: str | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def row(self) -> Row:
        if self.image is None:
            return {"name": self.name, "reason": "a sample without a picture", "counts": 1}
        own = {"image": self.image, "id": self.name + PurePosixPath(self.image).suffix}
        return {"caption": None, **self.about, **({"caption": self.caption} if self.caption is not None else {}), **own}


def _take_out(shard: Path, folder: Path) -> Iterator[Row]:
    """Write the pictures of a shard to a folder, member by member; yields the rows of its samples."""
    sample: _Sample | None = None
    count = 0
    try:
        with tarfile.open(shard, "r|*") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if not member.isreg() or path.name.startswith("."):
                    continue  # folders, links and devices are no part of a sample
                stem, _, suffix = path.name.partition(".")
                name = (path.parent / stem).as_posix()
                if sample is None or sample.name != name:
                    if sample is not None:
                        yield sample.row()
                    sample = _Sample(name)
                    count += 1
                data = tar.extractfile(member)
                assert data is not None  # only None for what is no regular file
                _add(sample, data, f".{suffix.lower()}", folder / f"{count:08d}")
        if sample is not None:
            yield sample.row()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's trouble, not the shard's
        if sample is not None:
            yield {"name": sample.name, "reason": "the shard is cut short within this sample", "counts": 1}
        yield {"name": "", "reason": f"the shard cannot be read to its end ({error})", "counts": 0}


def _add(sample: _Sample, data: IO[bytes], suffix: str, place: Path) -> None:
    if is_picture(f"x{suffix}"):
        if sample.image is None:  # of several pictures the first: the others are masks and views
            target = place.with_suffix(PurePosixPath(f"x{suffix}").suffix)
            with target.open("wb") as file:
                shutil.copyfileobj(data, file, 1 << 20)
            sample.image = target.name
    elif suffix in (".txt", ".caption"):
        sample.caption = decode(data.read(_TEXT_BYTES)).removesuffix("\n").removesuffix("\r")
    elif suffix == ".json":
        try:
            about = parse_json(decode(data.read(_TEXT_BYTES)))
        except ValueError:
            return
        if isinstance(about, dict):
            sample.about = {key: value for key, value in about.items() if key not in ("image", "id")}
