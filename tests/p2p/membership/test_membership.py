"""Swarm files and two-level certificates: which are made. Whom they let in is in the published
vectors (tests/p2p/test_vectors.py)."""

import json
from pathlib import Path

import pytest
from swarm_keys import verify_chain

from swarm_node.errors import HomeError, Rejected
from swarm_node.p2p.membership.membership import (
    CLOCK_SKEW_SECONDS,
    MAX_MEMBER_SECONDS,
    Chain,
    MemberBody,
    SwarmInfo,
    create_swarm,
    issue_issuer,
    issue_member,
)
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import MAX_CERTIFICATE_BYTES, pack

ROOT = Identity.from_seed(b"r" * 32)
ISSUER = Identity.from_seed(b"i" * 32)
NODE = Identity.from_seed(b"n" * 32)
OTHER = Identity.from_seed(b"o" * 32)
SECRET = b"s" * 32
SWARM = create_swarm("night shift", ROOT, SECRET)
DAY = 86_400
T0 = 1_800_000_000


def issuer_certificate(**changes: object) -> bytes:
    values = {
        "name": "owner",
        "not_before": T0,
        "not_after": T0 + DAY,
        "member_seconds": 30 * DAY,
        **changes,
    }
    return issue_issuer(ROOT, SWARM, ISSUER.public_key, **values)  # type: ignore[arg-type]


def chain(not_before: int = T0, not_after: int = T0 + 30 * DAY) -> Chain:
    member = issue_member(
        ISSUER, SWARM, NODE.public_key, name="owner", not_before=not_before, not_after=not_after
    )
    return issuer_certificate(), member


def reason(certificates: Chain, now: float = T0 + 1) -> str:
    result = verify_chain(certificates, SWARM, NODE.public_key, now)
    assert isinstance(result, Rejected)
    return result.reason


def test_every_flipped_bit_of_either_certificate_is_refused() -> None:
    good = chain()
    for which in (0, 1):
        for position in range(len(good[which])):
            mutant = bytearray(good[which])
            mutant[position] ^= 1 << position % 8
            altered = (bytes(mutant), good[1]) if which == 0 else (good[0], bytes(mutant))
            assert isinstance(verify_chain(altered, SWARM, NODE.public_key, T0 + 1), Rejected)


def test_a_clock_that_tells_no_time_lets_nobody_in() -> None:
    for now, expected in ((float("nan"), "expired"), (-float("inf"), "not_yet_valid")):
        assert reason(chain(), now) == expected


def test_an_issuers_clock_may_be_behind() -> None:
    early = chain(T0 - CLOCK_SKEW_SECONDS, T0 + 2 * DAY)
    assert isinstance(verify_chain(early, SWARM, NODE.public_key, T0 + DAY), MemberBody)


def test_a_certificate_that_ends_before_it_begins_is_refused() -> None:
    body = pack(MemberBody(1, NODE.public_key, T0 + 10, T0 + 10, "owner", ISSUER.public_key))
    member = seal(ISSUER, SWARM.swarm_id, Kind.CERT, body)
    assert reason((issuer_certificate(), member)) == "outside_issuer"
    with pytest.raises(ValueError, match="end after"):
        chain(not_after=T0)
    with pytest.raises(ValueError, match="end after"):
        issuer_certificate(not_after=T0)


def test_keys_of_small_order_are_not_certified() -> None:
    weak = b"\x01" + bytes(31)
    with pytest.raises(ValueError, match="usable"):
        issue_member(ISSUER, SWARM, weak, name="owner", not_before=T0, not_after=T0 + 1)
    with pytest.raises(ValueError, match="usable"):
        issue_issuer(ROOT, SWARM, weak, name="w", not_before=T0, not_after=T0 + 1, member_seconds=1)


def test_an_issuer_certificate_that_holds_something_else_is_refused() -> None:
    nonsense = seal(ROOT, SWARM.swarm_id, Kind.ISSUER, b"\xc1")
    assert reason((nonsense, chain()[1])) == "schema"


def test_only_the_root_names_issuers() -> None:
    with pytest.raises(ValueError, match="only the root"):
        issue_issuer(
            OTHER,
            SWARM,
            ISSUER.public_key,
            name="x",
            not_before=T0,
            not_after=T0 + 1,
            member_seconds=1,
        )


@pytest.mark.parametrize(
    "changes",
    [
        *({"name": name} for name in ("<b>", "", "n" * 33)),
        *({"member_seconds": seconds} for seconds in (0, MAX_MEMBER_SECONDS + 1)),
        *({"not_before": -1}, {"not_after": 253_402_300_800}),
        *({"uses": uses} for uses in (-1, 1001)),
    ],
)
def test_an_issuer_certificate_outside_its_bounds_is_not_made(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="outside its bounds"):
        issuer_certificate(**changes)


def test_the_longest_certificates_fit_their_limit() -> None:
    last = 253_402_300_799
    longest = issuer_certificate(name="n" * 32, not_after=last, delegate=True, uses=1000)
    assert len(longest) <= MAX_CERTIFICATE_BYTES
    member = issue_member(
        ISSUER, SWARM, NODE.public_key, name="n" * 32, not_before=last - 1, not_after=last
    )
    assert len(member) <= MAX_CERTIFICATE_BYTES


def test_the_swarm_id_binds_root_and_name() -> None:
    ids = {
        create_swarm("a", ROOT, SECRET).swarm_id,
        create_swarm("b", ROOT, SECRET).swarm_id,
        create_swarm("a", OTHER, SECRET).swarm_id,
    }
    assert len(ids) == 3
    assert create_swarm("a", ROOT, b"t" * 32).swarm_id in ids


@pytest.mark.parametrize("name", ["", "x" * 33, "a\n", "tab\t", "<b>", "naïve", "a/b"])
def test_a_swarm_name_is_plain(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        create_swarm(name, ROOT, SECRET)


def test_a_swarm_needs_a_sound_root_and_a_full_secret() -> None:
    with pytest.raises(ValueError, match="root key"):
        SwarmInfo("a", b"\x01" + bytes(31), SECRET)
    with pytest.raises(ValueError, match="secret"):
        create_swarm("a", ROOT, b"short")


def test_text_forms_do_not_show_the_secret() -> None:
    for text in (repr(SWARM), str(SWARM)):
        assert "ssss" not in text
        assert SECRET.hex() not in text
    assert len(SWARM.fingerprint.split()) == 4


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The file of the swarm."""
    SWARM.save(tmp_path / "swarm.json")
    return tmp_path / "swarm.json"


def test_a_swarm_file_comes_back_and_is_private(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
    assert SwarmInfo.load(saved) == SWARM
    SWARM.save(saved)
    assert [file.name for file in saved.parent.iterdir()] == ["swarm.json"]


def test_a_swarm_file_keeps_the_newest_secret(saved: Path) -> None:
    newer = SwarmInfo(SWARM.name, SWARM.root_key, b"t" * 32, 2)
    for each in (newer, SWARM):
        each.save(saved)
    assert SwarmInfo.load(saved) == newer


def test_a_left_over_half_written_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "swarm.json.new").write_bytes(b"{")
    SWARM.save(tmp_path / "swarm.json")
    assert SwarmInfo.load(tmp_path / "swarm.json") == SWARM


def test_another_swarms_file_is_never_overwritten(saved: Path) -> None:
    with pytest.raises(HomeError, match="another swarm"):
        create_swarm("day shift", ROOT, SECRET).save(saved)
    assert SwarmInfo.load(saved) == SWARM


def test_a_swarm_file_others_can_read_is_refused(saved: Path) -> None:
    saved.chmod(0o640)
    with pytest.raises(HomeError, match="chmod 600"):
        SwarmInfo.load(saved)


def check_unusable(path: Path) -> None:
    with pytest.raises(HomeError, match="not a usable swarm file"):
        SwarmInfo.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"version": 3},
        {"name": "<b>"},
        {"name": "day shift"},
        {"root_key": "00"},
        {"root_key": "zz" * 32},
        {"root_key": OTHER.public_key.hex()},
        {"swarm_id": "00" * 32},
        {"secret": "00"},
        {"secret": "00" * 32},
        {"secret_number": 1},
        {"check": "00" * 32},
        {"secret": 5},
        {"unknown": 1},
    ],
)
def test_a_damaged_swarm_file_is_refused(saved: Path, change: dict[str, object]) -> None:
    saved.write_text(json.dumps({**json.loads(saved.read_text()), **change}))
    check_unusable(saved)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 3000, b" " * 5000])
def test_a_file_that_is_no_swarm_file_is_refused(saved: Path, data: bytes) -> None:
    saved.write_bytes(data)
    check_unusable(saved)


def test_a_swarm_file_that_is_longer_than_any_is_refused(saved: Path) -> None:
    saved.write_text(saved.read_text() + " " * 5000)
    with pytest.raises(HomeError, match="too long"):
        SwarmInfo.load(saved)


def test_files_that_cannot_be_reached_are_reported(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="cannot read"):
        SwarmInfo.load(tmp_path / "none")
    with pytest.raises(HomeError, match="cannot write"):
        SWARM.save(tmp_path / "none" / "swarm.json")
