"""Files that people give for a table and that are none: told by their first bytes, with how to go on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from densecap_search.collection.source import Source
from densecap_search.collection.text_files import utf_16
from densecap_search.collection.walk import is_picture
from densecap_search.errors import CollectionError

_UNPACK = "unpack it first, and give what comes out"
_BY_START: Mapping[bytes, str] = {
    b"PK\x03\x04": f"a ZIP archive; {_UNPACK}",
    b"PK\x05\x06": "an empty ZIP archive",
    b"\x1f\x8b": f"compressed by gzip; {_UNPACK} (gunzip)",
    b"BZh": f"compressed by bzip2; {_UNPACK} (bunzip2)",
    b"\xfd7zXZ": f"compressed by xz; {_UNPACK} (unxz)",
    b"\x28\xb5\x2f\xfd": f"compressed by zstd; {_UNPACK} (unzstd)",
    b"7z\xbc\xaf": f"a 7z archive; {_UNPACK}",
    b"Rar!": f"a RAR archive; {_UNPACK}",
    b"SQLite format 3\0": "an SQLite database; write its table as CSV first (sqlite3 -header -csv FILE 'select …')",
    b"\xd0\xcf\x11\xe0": "a document of an older Office; save it as CSV or .xlsx",
    b"%PDF": "a PDF document; captions must stand in a table or in text files",
    b"\x89HDF": "an HDF5 file; write its table as CSV or JSON Lines first",
    b"\x93NUMPY": "a numpy array; write captions as CSV or JSON Lines",
    b"FEA1": "an old Feather file; write it as Parquet",
    b"ORC": "an ORC file; write it as Parquet",
    b"Obj\x01": "an Avro file; write it as Parquet",
    b"\xff\xd8\xff": "a picture; give the folder that it lies in",
    b"\x89PNG": "a picture; give the folder that it lies in",
    b"GIF8": "a picture; give the folder that it lies in",
    b"RIFF": "a picture or a film; give the folder that the pictures lie in",
}
_PICKLE = re.compile(rb"\x80[\x02-\x05][\x8c\x95c\]\}(}]")


def refuse_binary(source: Source) -> None:
    """One sentence about a file that is no table of text; nothing where it may be one."""
    reason = next((words for start, words in _BY_START.items() if source.start.startswith(start)), None)
    if reason is None and _PICKLE.match(source.start):
        reason = "a pickle, which is a program as much as data and is not run here; write it as CSV or JSON Lines"
    if reason is None and is_picture(source.path.name):
        reason = "a picture by its name; give the folder that it lies in"
    line = re.split(rb"[\r\n]", source.start, maxsplit=1)[0]
    if reason is None and b"\0" in line and utf_16(source.start[:4096]) is None:
        reason = "no text; give a table as CSV, JSON, JSON Lines, Parquet or .xlsx, or a folder of pictures"
    if reason is not None:
        raise CollectionError(f"{source.path} is {reason}")
