"""The pages print what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders import ROOT
from documents import Block, Reader, blocks, says
from test_pages import commands, fault

#: Their console blocks are run.
RUN = [
    *("README.md", "docs/README.md", "docs/first-swarm.md", "docs/members.md"),
    *(
        "docs/networking.md",
        "docs/environments.md",
        "docs/questions.md",
        "docs/writing-environments.md",
        "docs/models.md",
        "docs/gpus.md",
        "docs/troubleshooting.md",
    ),
]
#: The first page that anybody reads, and pages whose blocks start no node.
EACH_TIME = {"README.md", "docs/gpus.md", "docs/troubleshooting.md"}
NODES = pytest.mark.nightly(reason="types whole pages: nodes start, train and meet for minutes")
NOT_RUN = [
    (page, block) for page in RUN for block in blocks((ROOT / page).read_text()) if block.not_run
]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "AGENTS.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.slow(reason="types what the pages say")
@pytest.mark.timeout(900)  # on a machine with much other work
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in EACH_TIME else NODES) for page in RUN]
)
def test_a_page_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for block in blocks((ROOT / page).read_text()):
            if not block.not_run:
                reader.types(block)
    finally:
        reader.leave()


@pytest.mark.parametrize(
    ("page", "block"), NOT_RUN, ids=[f"{page}:{block.line}" for page, block in NOT_RUN]
)
def test_a_block_that_is_not_run_has_a_reason_and_options_that_exist(
    page: str, block: Block
) -> None:
    text = "```console\n" + "\n".join(block.commands) + "\n```\n"
    assert [why for why in map(fault, commands(text)) if why] == []
    assert len(block.not_run.split()) >= 3
    pytest.skip(f"not run: {page}, line {block.line}: {block.not_run}")


def test_a_mark_is_one_of_the_notation() -> None:
    known = re.compile(r"not run: .+|on: .+|numbers differ|ends with 1")
    for page in PAGES:
        for block in blocks(page.read_text()):
            assert [mark for mark in block.marks if not known.fullmatch(mark)] == [], page


def test_what_a_page_shows_is_compared_word_by_word(tmp_path: Path) -> None:
    shown = "name   peer\nowner  …     share 21% ▁▂\n…\nend\n"
    (exact,) = blocks(f"```console\nx\n```\n\n```text\n{shown}```\n")
    (loose,) = blocks(f"<!-- numbers differ -->\n```console\nx\n```\n\n```text\n{shown}```\n")
    right = "name peer\n owner Fb6 Jci share 21%\n ▁▂\nmore\nand more\nend"
    assert says(right, exact)
    assert says(right.replace("more\nand more\n", ""), exact)
    for wrong in (right.replace("owner", "other"), right.replace("end", ""), right + "\nmore"):
        assert not says(wrong, exact)
        assert not says(wrong, loose)
    others = right.replace("21", "3.5").replace("▁▂", "▇")
    assert says(others, loose)
    assert not says(others, exact)
    (wrong,) = blocks("```console\necho one\necho two\n```\n\n```text\none\n```\n")
    with pytest.raises(AssertionError, match="line 1: `echo two`"):
        Reader(tmp_path).types(wrong)


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    (fails,) = blocks("```console\nfalse\ntrue\n```\n")
    with pytest.raises(AssertionError, match="`false`"):
        Reader(tmp_path).types(fails)
