"""The tables of the protocol's pages are those of the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from protocol_page import PAGES, tables, with_tables

_PLACES = [(path, name) for path, names in PAGES.items() for name in names]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_tables_of_a_page_are_those_of_the_program(path: Path) -> None:
    written = path.read_text()
    assert written == with_tables(written, PAGES[path]), "run `make protocol-pages`"


def test_every_table_stands_on_a_page() -> None:
    assert sorted(tables()) == sorted(name for _, name in _PLACES)


@pytest.mark.parametrize(("path", "name"), _PLACES)
def test_a_table_that_was_changed_by_hand_is_found(path: Path, name: str) -> None:
    written = path.read_text()
    table = tables()[name]
    stale = written.replace(table, f"{table}\nby hand")
    assert stale != written
    assert with_tables(stale, PAGES[path]) == written


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    path, name = _PLACES[0]
    with pytest.raises(ValueError, match=name):
        with_tables(path.read_text().replace(f"<!-- {name} -->", ""), (name,))
