"""Revocation lists and new secrets: one order for all nodes, and their bounds. Who may sign
them, and when they are taken, is in the published vectors."""

import random

import pytest

from swarm_node.p2p.membership.membership import create_swarm, issue_issuer
from swarm_node.p2p.membership.statements import (
    MAX_REVOKED,
    MAX_STATEMENT_BYTES,
    ROOT_ONLY,
    NewSecret,
    Revocations,
    Signed,
    Statement,
    revocations,
    state,
    verify_revocations,
    verify_secret,
)
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import pack

ROOT = Identity.from_seed(b"r" * 32)
DELEGATE = Identity.from_seed(b"s" * 32)
SWARM = create_swarm("night shift", ROOT, bytes(32))
T0, DAY = 1_800_000_000, 86_400
CERTIFICATE = issue_issuer(
    ROOT, SWARM, DELEGATE.public_key,
    name="owner", not_before=T0, not_after=T0 + DAY, member_seconds=DAY, delegate=True,
)  # fmt: skip


def listed(number: int, *keys: bytes, by_root: bool = False) -> Statement[Revocations]:
    body = revocations(number, T0, T0 + DAY, keys)
    raw = state(ROOT, b"", SWARM, body) if by_root else state(DELEGATE, CERTIFICATE, SWARM, body)
    checked = verify_revocations(raw, SWARM, T0)
    assert isinstance(checked, Statement)
    return checked


def test_every_order_of_arrival_leaves_the_same_list() -> None:
    lists = [
        listed(1, b"a" * 32),
        listed(2, b"a" * 32, b"b" * 32),
        listed(2, b"c" * 32),
        listed(2, by_root=True),
        listed(2, b"d" * 32, by_root=True),
    ]
    by_the_root = [one.rank for one in lists[3:]]
    rng = random.Random(1)
    for _ in range(20):
        rng.shuffle(lists)
        assert max(one.rank for one in lists) == max(by_the_root)


def test_the_root_outranks_every_number_that_a_delegate_can_use() -> None:
    with pytest.raises(ValueError, match="the root"):
        listed(ROOT_ONLY)
    assert listed(ROOT_ONLY, by_root=True).rank > listed(ROOT_ONLY - 1).rank


def test_the_longest_list_fits_its_limit_and_a_longer_one_is_not_made() -> None:
    keys = [n.to_bytes(32, "big") for n in range(MAX_REVOKED + 1)]
    assert len(listed(ROOT_ONLY - 1, *keys[:-1]).raw) <= MAX_STATEMENT_BYTES
    with pytest.raises(ValueError, match="bounds"):
        listed(1, *keys)


def test_a_statement_that_peers_would_refuse_is_not_made() -> None:
    with pytest.raises(ValueError, match="wrong_root"):
        state(DELEGATE, b"", SWARM, revocations(1, T0, T0 + DAY, []))
    with pytest.raises(ValueError, match="outside_issuer"):
        state(DELEGATE, CERTIFICATE, SWARM, NewSecret(1, 1, T0 + 2 * DAY, bytes(32)))


def test_no_text_form_shows_a_secret() -> None:
    raw = state(DELEGATE, CERTIFICATE, SWARM, NewSecret(1, 1, T0, b"s" * 32))
    checked = verify_secret(raw, SWARM, T0)
    assert isinstance(checked, Statement)
    assert "sss" not in repr(checked) + str(checked.body)


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x91" * 1000])
def test_what_is_no_statement_is_refused(junk: bytes) -> None:
    certified = seal(DELEGATE, SWARM.swarm_id, Kind.REVOKE, pack(listed(1).body))
    for raw in (junk, pack(Signed(b"", junk)), pack(Signed(junk[:9] or b"junk", certified))):
        checked = verify_revocations(raw, SWARM, T0)
        assert checked.reason == "schema"
