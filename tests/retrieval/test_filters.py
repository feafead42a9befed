from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_indexes import index_of, vectors

from densecap_search.errors import ConfigError
from densecap_search.retrieval.filters import find_numbers, parse_filter
from densecap_search.retrieval.index import NARROW
from densecap_search.retrieval.rows import Row, Rows, create_rows

PICTURES = [
    {"year": 1990, "place": "Lyon"},
    {"year": "1991", "place": "Paris"},
    {"year": 1985.5, "place": "L'Isle"},
    {"year": "unknown", "place": "lyon"},
    {"odd \"name\" x": 1},
    {"year": "12 Main", "place": ""},
]
FOLDERS = ["a", "a/b", "ab", "100%_done", "a_b", "."]
DATES = ["2019-05-31 14:03:59", "2019-06-01", None, "2020-01-01 00:00:00", None, None]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    path = tmp_path_factory.mktemp("rows") / "rows.db"
    create_rows(path, 1, (
        Row(number, "c", f"{number}.jpg", f"/{number}.jpg", (), f"{number:032x}", columns=columns, folder=FOLDERS[number],
            taken=DATES[number], split="test" if number % 2 else None) for number, columns in enumerate(PICTURES)))
    return Rows(path, 1, len(PICTURES))


@pytest.mark.parametrize(("where", "found"), [
    ("year >= 1990", [0, 1]),
    ("year<1990", [2]),
    ("YEAR = 1990", [0]),
    ("year = '1990'", [0]),
    ("year != 1990", [1, 2, 3, 4, 5]),
    ("year between 1985 and 1990", [0, 2]),
    ("year >= 1990 and place = 'Lyon'", [0]),
    ("year = 1990 or year = 1991 and place = 'x'", [0]),
    ("(year = 1990 or year = 1991) and not place = 'Lyon'", [1]),
    ("place = 'L''Isle'", [2]),
    ("place in ('Lyon', 'Paris')", [0, 1]),
    ("place not in ('Lyon', 'Paris')", [2, 3, 4, 5]),
    ("place contains 'LYON'", [0, 3]),
    ("place is missing", [4]),
    ("year is not missing", [0, 1, 2, 3, 5]),
    ("\"odd \"\"name\"\" x\" = 1", [4]),
    ("folder = 'a'", [0]),
    ("folder under 'a'", [0, 1]),
    ("folder under 'a/'", [0, 1]),
    ("folder under '100%_done'", [3]),
    ("folder under 'a_b'", [4]),
    ("date >= 2019 and date < 2020", [0, 1]),
    ("date = '2019-05'", [0]),
    ("date <= '2019-06-01'", [0, 1]),
    ("split = 'test'", [1, 3, 5]),
    ("split != 'test'", [0, 2, 4]),
    ("id = '3.jpg' or path = '/4.jpg'", [3, 4]),
    ("collection = 'c' and year > 1e3 and year < 1.9905e3", [0, 2]),
])
def test_a_condition_lets_through_what_it_says(where: str, found: list[int], rows: Rows):
    assert find_numbers(rows, where).tolist() == found


@pytest.mark.parametrize(("where", "words"), [
    ("", "has its end where a column should be"),
    ("yaer = 1", r"names 'yaer', which is no column of this index; it has: year, place, odd \"name\" x, folder, split"),
    ("year = Lyon", "'Lyon' where a number, or a text in single quotes should be"),
    ("year = 'x", "cannot be read from \"'x\" on"),
    ("year = 1; drop table versions", "cannot be read from '; drop"),
    ("year = 1 year = 2", "'year' where and, or, or the end should be"),
    ("(" * 60 + "year = 1" + ")" * 60, "nested more than 50 deep"),
    ("not " * 20_000 + "year = 1", "nested more than 50 deep"),
])
def test_what_is_no_condition_is_told(where: str, words: str, rows: Rows):
    with pytest.raises(ConfigError, match=words):
        find_numbers(rows, where)


def test_a_thousand_alternatives_are_one_condition(rows: Rows):
    assert find_numbers(rows, f"year in ({', '.join(map(str, range(5000)))})").tolist() == [0, 1]


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_value_and_never_sql(rows: Rows, text: str):
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        return
    found = find_numbers(rows, "place = '" + text.replace("'", "''") + "'").tolist()
    assert found == [number for number, columns in enumerate(PICTURES) if columns.get("place") == text]


@given(st.text(alphabet="ab'\"()=<> andor1.,-;\\%\n", max_size=30))
@settings(max_examples=500, deadline=None)
def test_any_letters_are_a_condition_or_an_error_of_ours(text: str):
    with suppress(ConfigError):
        parse_filter(text)


@pytest.mark.parametrize("kind", ["flat", "hnsw", pytest.param("ivfpq", marks=pytest.mark.slow)])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_a_filter_applies_before_the_ranking_for_every_type(kind: str, share: float, tmp_path: Path):
    matrix = vectors(1500)
    index = index_of(matrix, tmp_path, kind)
    last = int(1500 * share) - 1
    assert (last + 1 < NARROW * 1500) == (share == 0.01)
    numbers = np.arange(last + 1)
    queries = vectors(5, seed=1)
    for k in (1, 10, 2000):
        for query, found in zip(queries, index.search(queries, k, f"place <= {last}"), strict=True):
            cosines = matrix[numbers] @ query
            wanted = numbers[np.argsort(-cosines)][:k].tolist()
            assert len(found) == len(wanted)
            assert len({number for number, _ in found} & set(wanted)) >= (len(wanted) if share == 0.01 or k == 2000 else 0.9 * len(wanted))
            assert dict(found) == pytest.approx({number: float(matrix[number] @ query) for number, _ in found}, abs=1e-6)
