"""Captions within picture files, in the charsets that programs really write."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from densecap_search.collection.dates import date_taken
from densecap_search.collection.embedded import embedded_caption
from densecap_search.collection.readers import read_collection
from densecap_search.config import Reading

TEXT = "Müller-Straße, café"
JAPANESE = "東京の駅"


def xmp(description: str, encoding: str = "utf-8") -> bytes:
    return f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">
    <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""
    xmlns:dc="http://purl.org/dc/elements/1.1/">{description}</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>
    """.encode(encoding)


def alternatives(**texts: str) -> str:
    items = "".join(f'<rdf:li xml:lang="{lang.replace("_", "-")}">{text}</rdf:li>' for lang, text in texts.items())
    return f"<dc:description><rdf:Alt>{items}</rdf:Alt></dc:description>"


def iptc_block(caption: bytes, charset: bytes | None = None) -> bytes:
    """The Photoshop segment of a JPEG with IPTC 2:120, and 1:90 where a charset is declared."""
    data = b"".join(
        struct.pack(">BBBH", 0x1C, record, dataset, len(value)) + value
        for record, dataset, value in ([(1, 90, charset)] if charset else []) + [(2, 120, caption)])
    data += b"\0" * (len(data) % 2)
    block = b"Photoshop 3.0\x008BIM\x04\x04\0\0" + struct.pack(">I", len(data)) + data
    return b"\xff\xed" + struct.pack(">H", len(block) + 2) + block


def save(path: Path, *, description: str | bytes | None = None, comment: bytes | None = None, iptc: bytes = b"", **options) -> Path:
    exif = Image.Exif()
    if description is not None:
        exif[270] = description
    if comment is not None:
        exif.get_ifd(0x8769)[0x9286] = comment
    Image.new("RGB", (4, 4)).save(path, exif=exif, **options)
    if iptc:
        data = path.read_bytes()
        path.write_bytes(data[:2] + iptc + data[2:])
    return path


def test_the_default_language_of_xmp_is_the_caption(tmp_path: Path):
    packet = xmp(alternatives(de="deutsch", x_default=f"  {TEXT} {JAPANESE}\n\nsecond &amp; last", en="english"))
    assert embedded_caption(save(tmp_path / "a.jpg", xmp=packet)) == f"  {TEXT} {JAPANESE}\n\nsecond & last"


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_xmp_is_read_from_every_common_kind_of_file(suffix: str, tmp_path: Path):
    path = tmp_path / f"a.{suffix}"
    if suffix == "tif":
        Image.new("RGB", (4, 4)).save(path, tiffinfo={700: xmp(alternatives(x_default=TEXT))})
    elif suffix == "png":
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp(alternatives(x_default=TEXT)).decode())
        Image.new("RGB", (4, 4)).save(path, pnginfo=info)
    else:
        Image.new("RGB", (4, 4)).save(path, xmp=xmp(alternatives(x_default=TEXT)))
    assert embedded_caption(path) == TEXT


@pytest.mark.parametrize(("data", "charset"), [
    (TEXT.encode("latin-1"), None), (TEXT.encode(), None), (TEXT.encode(), b"\x1b%G"), (TEXT.encode("latin-1"), b"\x1b.A"),
    (TEXT.encode("latin-1"), b"\x1b%G"),  # declared as UTF-8, but not written so
])
def test_iptc_captions_keep_their_accents(data: bytes, charset: bytes | None, tmp_path: Path):
    assert embedded_caption(save(tmp_path / "a.jpg", iptc=iptc_block(data, charset))) == TEXT


def test_decomposed_letters_arrive_as_written(tmp_path: Path):
    decomposed = "Mu\u0308ller-Strasse"
    assert embedded_caption(save(tmp_path / "a.jpg", iptc=iptc_block(decomposed.encode()))) == decomposed


@pytest.mark.parametrize("data", [TEXT.encode(), TEXT.encode("latin-1")])
def test_exif_descriptions_keep_their_accents(data: bytes, tmp_path: Path):
    path = save(tmp_path / "a.jpg", description="#" * len(data))
    whole = path.read_bytes()
    assert whole.count(b"#" * len(data)) == 1
    path.write_bytes(whole.replace(b"#" * len(data), data))
    assert embedded_caption(path) == TEXT


@pytest.mark.parametrize(("comment", "text"), [
    (b"ASCII\0\0\0plain words\0\0\0", "plain words"),
    (b"UNICODE\0" + f"{TEXT} {JAPANESE}".encode("utf-16-le"), f"{TEXT} {JAPANESE}"),
    (b"UNICODE\0" + TEXT.encode("utf-16-be"), TEXT),
    (b"UNICODE\0" + JAPANESE.encode("utf-16"), JAPANESE),
    (b"JIS\0\0\0\0\0" + JAPANESE.encode("iso2022_jp"), JAPANESE),
    (b"\0" * 8 + TEXT.encode(), TEXT),
    (b"\0" * 8 + b"\x01\x02\x03 maker's notes", None),
    (b"ASCII\0\0\0" + b" " * 40, None),
])
def test_user_comments_are_read_in_their_charset(comment: bytes, text: str | None, tmp_path: Path):
    assert embedded_caption(save(tmp_path / "a.jpg", comment=comment)) == text


def test_xmp_goes_before_iptc_before_exif(tmp_path: Path):
    own = {"description": "from exif", "comment": b"ASCII\0\0\0from the comment"}
    packet, block = xmp(alternatives(x_default="from xmp")), iptc_block(b"from iptc")
    assert embedded_caption(save(tmp_path / "a.jpg", xmp=packet, iptc=block, **own)) == "from xmp"
    assert embedded_caption(save(tmp_path / "b.jpg", iptc=block, **own)) == "from iptc"
    assert embedded_caption(save(tmp_path / "c.jpg", **own)) == "from exif"
    assert embedded_caption(save(tmp_path / "d.jpg", comment=own["comment"])) == "from the comment"


def test_what_a_camera_writes_is_no_caption(tmp_path: Path):
    path = save(tmp_path / "a.jpg", description="OLYMPUS DIGITAL CAMERA         ", comment=b"ASCII\0\0\0a red barn")
    assert embedded_caption(path) == "a red barn"


def test_damaged_blocks_are_passed_over(tmp_path: Path):
    path = save(tmp_path / "a.jpg", xmp=b"<x:xmpmeta <broken", description="still here")
    assert embedded_caption(path) == "still here"
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><x>&b;</x>'
    assert embedded_caption(save(tmp_path / "b.jpg", xmp=bomb, description="here too")) == "here too"
    (tmp_path / "c.jpg").write_bytes(b"not a picture")
    assert embedded_caption(tmp_path / "c.jpg") is None
    assert embedded_caption(tmp_path / "gone.jpg") is None


def test_text_files_go_before_captions_in_the_files_unless_these_are_asked_for(tmp_path: Path):
    save(tmp_path / "a.jpg", description="in the file")
    save(tmp_path / "b.jpg", description="in the other file")
    found = read_collection(tmp_path)
    assert [record.captions for record in found.records] == [("in the file",), ("in the other file",)]
    assert found.format_reason == "pictures without side files; 2 of 2 hold a caption in the file"
    (tmp_path / "a.txt").write_text("beside it")
    mixed = read_collection(tmp_path)
    assert [record.captions for record in mixed.records] == [("beside it",), ("in the other file",)]
    assert mixed.notes == ("captions: 1 from .txt files, 1 from the picture files; of several places the first counts: "
                           ".caption, .txt, .xmp, .json, the picture file",)
    forced = read_collection(tmp_path, Reading(format="embedded"))
    assert [record.captions for record in forced.records] == [("in the file",), ("in the other file",)]



@pytest.mark.parametrize("behind", [False, True])
def test_what_a_png_says_is_read_without_its_pixels_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                       behind: bool):
    exif = Image.Exif()
    exif[0x010E] = "A quay at dusk."
    exif[0x0132] = "2019:05:31 14:03:59"
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png", exif=exif)
    if behind:
        data = (tmp_path / "a.png").read_bytes()
        start, end = data.index(b"eXIf") - 4, data.index(b"IDAT") - 4
        (tmp_path / "a.png").write_bytes(data[:start] + data[end:-12] + data[start:end] + data[-12:])
    Image.new("RGB", (40, 30), "red").save(tmp_path / "b.png")
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: pytest.fail("the pixels were decoded"))
    assert embedded_caption(tmp_path / "a.png") == "A quay at dusk."
    assert date_taken(tmp_path / "a.png") == "2019-05-31 14:03:59"
    assert embedded_caption(tmp_path / "b.png") is None
    assert date_taken(tmp_path / "b.png") is None
