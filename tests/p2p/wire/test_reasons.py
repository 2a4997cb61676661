"""The table of reasons is that of the code, and a peer's words are read exactly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from builders import ROOT
from hypothesis import given
from hypothesis import strategies as st
from sources import PACKAGE, nodes

from swarm_node.p2p.wire import reasons
from swarm_node.p2p.wire.frames import MAX_REASON_BYTES
from swarm_node.p2p.wire.reasons import (
    BAD_REQUEST,
    NO_MEMBER,
    NOT_SERVED,
    REASONS,
    REFUSALS,
    UNKNOWN_MEMBER,
    Blame,
    Refusal,
    blame_of,
    read_refusal,
    with_seconds,
)

#: One worker parses the sources once.
pytestmark = pytest.mark.xdist_group("sources")

SOURCES = sorted(PACKAGE.rglob("*.py"))
NAMED = {
    "": "",
    "reason": "expired",
    "reason, seconds": "expired",
    "protocol": "/swarm-node/list/1",
}


def _reasons() -> Iterator[tuple[str, str]]:
    """Every reason that the code gives for a refusal, with its place."""
    for path, node in nodes(SOURCES):
        match node:
            case ast.Call(func=ast.Name(id="Rejected"), args=[first, *_]):
                said = str(first.value) if isinstance(first, ast.Constant) else ""
            case ast.Call(func=ast.Attribute(attr="_displace"), args=[*_, ast.Constant() as last]):
                said = str(last.value)
            case ast.Subscript(
                value=ast.Attribute(attr="rejected" | "_rejected"),
                slice=ast.Constant(value=str(said)),
            ):
                pass
            case _:
                continue
        yield said, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_reason_of_a_refusal_has_a_class() -> None:
    found = list(_reasons())
    assert len({reason for reason, _ in found}) > 30, "refusals look otherwise than here"
    assert [f"{place}: {said}" for said, place in found if said and said not in REASONS] == []
    # A reason that is no literal comes from `_displace`, whose callers are found above.
    assert [place.partition(":")[0] for said, place in found if not said] == [
        "swarm_node/policy/experience/replay.py"
    ]


def test_every_reason_of_the_table_is_given_somewhere() -> None:
    given_ = {said for _, said in _literals()}
    assert sorted(set(REASONS) - given_) == []


def _literals() -> Iterator[tuple[str, str]]:
    for path, node in nodes(SOURCES):
        if path.name == "reasons.py" or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str):
            yield path.name, node.value


def test_codes_are_short_tokens() -> None:
    assert all(re.fullmatch("[a-z_]{1,24}", code) for code in REASONS)
    codes = [refusal.code for refusal in REFUSALS]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch("[a-z_]{1,24}", code) for code in codes)
    every = [value for value in vars(reasons).values() if isinstance(value, Refusal)]
    assert every == list(REFUSALS), "a refusal is missing in the table"


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.code)
def test_no_two_refusals_share_words(refusal: Refusal) -> None:
    words = refusal.words(NAMED[refusal.names])
    assert [other for other in REFUSALS if other.named_in(words) is not None] == [refusal]


def test_a_refusal_names_what_it_must_and_nothing_else() -> None:
    for refusal, named in (
        (UNKNOWN_MEMBER, "expired"),
        (NO_MEMBER, ""),
        (NO_MEMBER, "Say hello first"),
        (NO_MEMBER, "a" * 25),
        (NOT_SERVED, "/ipfs/id/1.0.0"),
    ):
        with pytest.raises(ValueError, match=refusal.code):
            refusal.words(named)


@given(st.sampled_from(REFUSALS), st.text(max_size=40), st.text(max_size=40))
def test_words_around_those_of_a_refusal_make_them_unknown(
    refusal: Refusal, before: str, after: str
) -> None:
    words = refusal.words(NAMED[refusal.names])
    read = read_refusal(f"{before}{words}{after}".encode("utf-8", "replace"))
    if (before, after) == ("", ""):
        assert read.code == refusal.code
    elif refusal.names == "" or before:
        assert read.code == ""
    else:  # a longer reason or protocol is one of its own
        assert read.code in ("", refusal.code)


@given(st.binary(max_size=MAX_REASON_BYTES))
def test_any_bytes_are_read_and_shown_without_control_characters(payload: bytes) -> None:
    read = read_refusal(payload)
    assert str(read).isprintable()
    assert read.code in {"", *(refusal.code for refusal in REFUSALS)}
    assert read.detail in {"", "unknown", *REASONS} or read.code == "not_served"


@pytest.mark.parametrize(
    ("seconds", "named", "apart"),
    [
        (0.0, "revoked", None),
        (3602.4, "revoked 3602", 3602),
        (-86_400.0, "revoked 86400", 86_400),
        (999_999_999.0, "revoked 999999999", 999_999_999),
        (1e9, "revoked", None),
    ],
)
def test_a_refused_chain_names_the_seconds_that_its_time_is_away(
    seconds: float, named: str, apart: int | None
) -> None:
    assert with_seconds("revoked", seconds) == named
    read = read_refusal(NO_MEMBER.words(named).encode())
    assert (read.code, read.detail, read.clock_skew) == ("no_member", "revoked", apart)


@pytest.mark.parametrize("words", ["-1", "1.5", "1e9", "1234567890", " 1", "1 ", "\u0661"])
def test_other_seconds_make_a_refusal_unknown(words: str) -> None:
    assert read_refusal(NO_MEMBER.words("revoked").encode() + f" {words}".encode()).code == ""
    assert read_refusal(BAD_REQUEST.words("schema").encode() + f" {words}".encode()).code == ""


def test_a_reason_of_another_version_is_unknown() -> None:
    read = read_refusal(b"no member of this swarm: too_short_name")
    assert (read.code, read.detail) == ("no_member", "unknown")
    assert blame_of("too_short_name") is Blame.USELESS
