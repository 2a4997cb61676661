"""The tables of docs/protocol.md are those of the program."""

from __future__ import annotations

import pytest
from protocol_page import PAGE, protocol_page, tables


def test_the_tables_of_the_page_are_those_of_the_program() -> None:
    written = PAGE.read_text()
    assert written == protocol_page(written), "run `make protocol-page`"


@pytest.mark.parametrize("name", tables())
def test_a_table_that_was_changed_by_hand_is_found(name: str) -> None:
    written = PAGE.read_text()
    table = tables()[name]
    stale = written.replace(table, f"{table}\nby hand")
    assert stale != written
    assert protocol_page(stale) == written


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="kinds"):
        protocol_page(PAGE.read_text().replace("<!-- kinds -->", ""))
