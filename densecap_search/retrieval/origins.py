"""Which of an index's collections is being updated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from densecap_search.collection.records import Collection
from densecap_search.errors import IndexFolderError
from densecap_search.retrieval.manifest import Origin


def choose_origin(collection: Collection, place: Path | None, before: tuple[Origin, ...], folder: Path, *,
                  name: str | None, add: bool) -> Origin:
    """That of its name, else of its place, else the only one there is; a new one in a new index and with ``add``.

    Its fingerprint is that of the last time, and for the update to fill in.
    place: where the collection was read. Ids of pictures get the collection's name before them, but for the first.
    """
    where = str(place.absolute()) if place else ""
    fresh = Origin(name or collection.name, where, "")
    if not before:
        return fresh
    matches = [origin for origin in before if origin.name == name] if name else \
        [origin for origin in before if where and origin.place == where]
    if matches:
        return replace(matches[0], place=where or matches[0].place)
    names = ", ".join(origin.name for origin in before)
    if add:
        if fresh.name in [origin.name for origin in before]:
            raise IndexFolderError(f"{folder} already holds a collection {fresh.name}, from {before[0].place or '?'}; "
                                   "give this one another name with --name")
        return replace(fresh, prefix=f"{fresh.name}/")
    if name:
        raise IndexFolderError(f"{folder} holds no collection {name!r} but {names}; add it with --add")
    if len(before) > 1:
        raise IndexFolderError(f"{folder} holds the collections {names}, none of them from {where or collection.name}; "
                               "say with --name which one it is, or add it with --add")
    return replace(before[0], place=where or before[0].place)
