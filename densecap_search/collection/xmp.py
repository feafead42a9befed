"""What an XMP packet says of a picture: its description, and when and where it was taken.

Source: XMP specification parts 1 and 2 (Adobe 2012); a property is an element or an attribute of rdf:Description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_DC, _EXIF = "{http://purl.org/dc/elements/1.1/}", "{http://ns.adobe.com/exif/1.0/}"
_PHOTOSHOP, _XMP = "{http://ns.adobe.com/photoshop/1.0/}", "{http://ns.adobe.com/xap/1.0/}"
_TIFF, _IPTC = "{http://ns.adobe.com/tiff/1.0/}", "{http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/}"
_CAPTIONS = (f"{_DC}description", f"{_TIFF}ImageDescription", f"{_EXIF}UserComment")
_DATES = (f"{_EXIF}DateTimeOriginal", f"{_PHOTOSHOP}DateCreated", f"{_XMP}CreateDate")
_PLACES = (f"{_IPTC}Location", f"{_PHOTOSHOP}City", f"{_PHOTOSHOP}State", f"{_PHOTOSHOP}Country")

Columns = dict[str, str | int | float]


def read_xmp(packet: bytes | str) -> tuple[str | None, Columns]:
    """The description (x-default before other languages), and the columns date, place, latitude and longitude.

    Nothing of a packet that is damaged, or that asks for entities.
    """
    try:
        tree = fromstring(packet.rstrip(b"\0") if isinstance(packet, bytes) else packet)
    except (ParseError, DefusedXmlException, ValueError):
        return None, {}
    caption = next((text for name in _CAPTIONS if (text := _property(tree, name))), None)
    columns: Columns = {}
    if date := next((text.strip() for name in _DATES if (text := _property(tree, name))), None):
        columns["date"] = date
    if place := ", ".join(text.strip() for name in _PLACES if (text := _property(tree, name))):
        columns["place"] = place
    for word, name in (("latitude", "GPSLatitude"), ("longitude", "GPSLongitude")):
        degrees = _degrees(_property(tree, _EXIF + name) or "")
        if degrees is not None:
            columns[word] = degrees
    return caption, columns


def _property(tree: Element, name: str) -> str | None:
    """The text of a property: an element's (of a list its first item, x-default before others), an attribute's."""
    return next((text for text in _values(tree, name) if text.strip()), None)


def _values(tree: Element, name: str) -> Iterator[str]:
    for node in tree.iter(name):
        items = list(node.iter(f"{_RDF}li"))
        items.sort(key=lambda item: item.get(_LANG) != "x-default")
        yield (items[0].text if items else node.text) or ""
    for node in tree.iter():
        yield node.get(name) or ""


def _degrees(text: str) -> float | None:
    """`47,22.5N` and `47,22,30N` are 47.375; south and west are negative."""
    match = re.fullmatch(r"(\d+),(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?([NSEW])", text.strip())
    if not match:
        return None
    degrees = int(match[1]) + float(match[2]) / 60 + float(match[3] or 0) / 3600
    return -degrees if match[4] in "SW" else degrees
