"""WebDataset shards: tar files of samples, whatever their order. Pictures are taken out once, into the cache."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from densecap_search.collection.source import Row, Rows, Source
from densecap_search.collection.text_files import decode, parse_json
from densecap_search.collection.unpacked import unpacked_rows
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError
from densecap_search.files import is_file

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_TEXT_BYTES = 1 << 26  # of a caption or its JSON: more is no caption
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_SIDES = (".txt", ".caption", ".json")
_BROKEN = (tarfile.TarError, EOFError, zlib.error, OSError)


def is_webdataset(source: Source) -> str | None:
    """A tar file, or a folder that holds tar files and no pictures."""
    shards = _shards(source)
    if not source.path.is_dir():
        return "a tar file" if shards else None
    return f"{len(shards)} tar files" if shards and not any(is_picture(name) for name in source.names) else None


def read_webdataset(source: Source) -> Rows:
    """Samples: members whose names are equal up to the first dot of the file name, or as far as tells pictures apart.

    The caption is the sample's .txt, else what its .json holds under caption, text or description; other keys of the
    .json are columns. Ids are SHARD/NAME.
    """
    shards = _shards(source)
    if not shards:
        raise CollectionError(f"{source.path} is no tar file and holds none; choose another --format")
    source.done.update(shards)
    before = 0
    for shard in shards:
        for number, row in unpacked_rows(shard, before, _take_out, source.notes):
            before = number
            yield number, row


def _shards(source: Source) -> list[Path]:
    if source.path.is_dir():
        return [source.path / name for name in source.names
                if name.lower().endswith(_SUFFIXES) and (source.reading.hidden or not name.startswith("."))
                and is_file(source.path / name)]
    is_tar = source.start[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC) or source.path.name.lower().endswith(_SUFFIXES)
    return [source.path] if is_tar else []


@dataclass
class _Sample:
    """What was seen of one sample."""

    name: str
    image: str | None = None
    caption: str | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def row(self) -> Row:
        """A reason row counts as one, for a sample is an input row."""
        if self.image is None:
            return {"name": self.name, "reason": "a sample without a picture", "counts": 1}
        own = {"image": self.image, "id": self.name + PurePosixPath(self.image).suffix}
        return {"caption": None, **self.about, **({"caption": self.caption} if self.caption is not None else {}), **own}


def sample_names(members: Iterable[str]) -> dict[str, str]:
    """The members of a shard that belong to a sample → its name.

    A name ends at its first dot. Where that would put several pictures together, and none is called just so or several
    have texts of their own, it ends at its last one.
    """
    groups: dict[str, list[str]] = {}
    for member in members:
        path = PurePosixPath(member)
        groups.setdefault((path.parent / path.name.partition(".")[0]).as_posix(), []).append(member)
    stems_of: dict[str, str] = {}
    for name, own in groups.items():
        pictures = [member for member in own if is_picture(member)]
        stems = {_stem(picture) for picture in pictures}
        texts = [member for member in own if PurePosixPath(member).suffix.lower() in _SIDES]
        named = {stem for text in texts if (stem := _stem_of_text(text, pictures)) in stems}
        if len(stems) > 1 and (name not in stems or len(named) > 1):
            stems_of |= {picture: _stem(picture) for picture in pictures}
            stems_of |= {text: stem for text in texts if (stem := _stem_of_text(text, pictures)) in stems}
            continue
        first = min(pictures, key=lambda picture: _stem(picture) != name, default=None)  # the others: masks and views
        stems_of |= {member: name for member in own if member == first or member not in pictures}
    return stems_of


def _stem(member: str) -> str:
    path = PurePosixPath(member)
    return (path.parent / path.stem).as_posix()


def _stem_of_text(member: str, pictures: Sequence[str]) -> str:
    """`a.1.txt` speaks of `a.1.jpg`, and so does `a.1.jpg.txt`."""
    stem = _stem(member)
    return _stem(stem) if stem in pictures else stem


def _take_out(shard: Path, folder: Path) -> Iterator[Row]:
    """Write the pictures of a shard to a folder, member by member; yields the rows of its samples."""
    names = sample_names(_listed(shard))
    samples = {name: _Sample(name) for name in dict.fromkeys(names.values())}
    numbers = {name: number for number, name in enumerate(samples, start=1)}
    unread: Counter[str] = Counter()
    seen: set[str] = set()
    last, error = None, None
    try:
        with tarfile.open(shard, "r|*") as tar:
            for member in tar:
                name = names.get(member.name) if _counts(member) else None
                if name is None or member.name in seen:
                    unread.update([PurePosixPath(member.name).suffix.lower() or member.name] * _counts(member))
                    continue
                seen.add(member.name)
                last = name
                data = tar.extractfile(member)
                assert data is not None  # only None for what is no regular file
                kind = PurePosixPath(member.name).suffix.lower()
                if not _add(samples[name], data, kind, folder / f"{numbers[name]:08d}"):
                    unread.update([kind or member.name])
                last = None
    except _BROKEN as found:
        if isinstance(found, OSError) and found.errno is not None:
            raise  # the disk's trouble, not the shard's
        error = found
    for name, sample in samples.items():
        yield ({"name": name, "reason": "the shard is cut short within this sample", "counts": 1} if name == last
               else sample.row())
    if unread:
        yield {"note": "not read: " + ", ".join(f"{count} {ending}" for ending, count in unread.most_common(8))}
    if error is not None:
        yield {"name": "", "reason": f"the shard cannot be read to its end ({error})", "counts": 0}


def _counts(member: tarfile.TarInfo) -> bool:
    """Folders, links and devices are no part of a sample."""
    return member.isreg() and not PurePosixPath(member.name).name.startswith(".")


def _listed(shard: Path) -> list[str]:
    """The names of a shard's members, in order, as far as it can be read."""
    names: list[str] = []
    try:
        with tarfile.open(shard, "r|*") as tar:
            names += (member.name for member in tar if _counts(member))
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
    return names


def _add(sample: _Sample, data: IO[bytes], suffix: str, place: Path) -> bool:
    """Whether a member says something: a picture, a caption, a JSON object."""
    if is_picture(f"x{suffix}"):
        target = place.with_suffix(suffix)
        with target.open("wb") as file:
            shutil.copyfileobj(data, file, 1 << 20)
        sample.image = target.name
    elif suffix in (".txt", ".caption"):
        sample.caption = decode(data.read(_TEXT_BYTES)).removesuffix("\n").removesuffix("\r")
    elif suffix == ".json":
        try:
            about = parse_json(decode(data.read(_TEXT_BYTES)))
        except ValueError:
            return False
        if not isinstance(about, dict):
            return False
        sample.about = {key: value for key, value in about.items() if key not in ("image", "id")}
    else:
        return False
    return True
