"""Archives as programs leave them, each given as its folder; the right answers are those of the data's own README."""

from __future__ import annotations

from pathlib import Path

import pytest

from densecap_search.collection.images import open_image
from densecap_search.collection.readers import read_collection
from densecap_search.collection.records import Skipped

# folder → format, captions of its six pictures, split
EXPECTED = {
    "takeout_new": ("folder", 6, None), "xmp_lightroom": ("folder", 6, None), "kohya": ("folder", 6, None),
    "flickr8k_kaggle": ("csv", 30, None), "flickr30k": ("csv", 30, None), "hf_embedded": ("parquet", 6, None),
    "hf_jsonl": ("imagefolder", 6, None), "hf_data_dir": ("imagefolder", 6, "train"), "labelstudio_min": ("json", 6, None),
    "sharegpt_jsonl": ("sharegpt4v", 6, None), "dict_json": ("captions-by-name", 6, None), "excel": ("excel", 6, None),
}


def test_the_table_names_every_layout(real_data: Path):
    assert {path.name for path in (real_data / "layouts").iterdir() if path.is_dir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_layout_gives_its_captions(name: str, real_data: Path):
    kind, captions, split = EXPECTED[name]
    found = read_collection(real_data / "layouts" / name)
    assert (found.format, len(found), found.skipped) == (kind, 6, ())
    assert sum(len(record.captions) for record in found.records) == captions
    assert {len(record.captions) for record in found.records} == {captions // 6}
    assert {record.split for record in found.records} == {split}
    assert all(caption == caption.strip() for record in found.records for caption in record.captions)
    assert not any(isinstance(open_image(record.image), Skipped) for record in found.records)
