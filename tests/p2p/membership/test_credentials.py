"""What a node holds of its swarm: the newest statements, its chain, and a delegate's duties."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from swarm_keys import DAY, Swarm

from swarm_node.clock import Clock
from swarm_node.errors import Rejected
from swarm_node.node.home.home import Membership
from swarm_node.p2p.membership.credentials import Credentials, MemoryOffice
from swarm_node.p2p.membership.delegates import LIST_SECONDS, Signer, next_list, next_secret
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.membership.statements import (
    NewSecret,
    Revocations,
    Statement,
    state,
    verify_revocations,
)

SWARM = Swarm()
KEY, OTHER_KEY = b"k" * 32, b"o" * 32


class Node:
    """One node's credentials, its members and its clock."""

    def __init__(
        self,
        membership: Membership,
        signer: Signer | None = None,
        office: MemoryOffice | None = None,
    ) -> None:
        self.now = float(SWARM.begin)
        self.office = office or MemoryOffice(signer)
        clock = Clock(now=lambda: 0.0, wall=lambda: self.now)
        local = LocalNode.of(membership.identity, SWARM.info, clock, self.office)
        self.members = local.members
        self.secrets: list[bytes] = []
        self.own = Credentials(
            local, membership.chain, office=self.office, use_secret=self.secrets.append
        )


def listed(*keys: bytes, after: Statement[Revocations] | None = None) -> bytes:
    return next_list(SWARM.delegate, SWARM.info, after, keys, SWARM.begin).raw


def secret(number: int) -> bytes:
    body = NewSecret(1, number, SWARM.begin, bytes([number]) * 32)
    return state(SWARM.delegate.key, SWARM.delegate.certificate, SWARM.info, body)


def test_a_newer_list_is_obeyed_kept_and_passed_on() -> None:
    anna = SWARM.member(1)
    node = Node(SWARM.member(2))
    node.members.admit(anna.chain, anna.identity.peer_id)
    raw = listed(anna.identity.public_key)
    assert node.own.lists.exchange(raw) == b""
    assert node.own.lists.is_unsent
    assert not node.members.is_member(anna.identity.peer_id)
    assert node.own.lists.number == 1
    assert node.own.lists.exchange(b"") == raw
    later = Node(SWARM.member(2), office=node.office)
    assert later.own.lists.raw == raw
    answer = later.members.admit(anna.chain, anna.identity.peer_id)
    assert answer.reason == "revoked"


def test_an_older_or_worse_list_changes_nothing() -> None:
    node = Node(SWARM.member(2))
    first = listed(KEY)
    node.own.lists.offer(first)
    held = verify_revocations(first, SWARM.info)
    assert isinstance(held, Statement)
    second = listed(OTHER_KEY, after=held)
    node.own.lists.offer(second)
    node.own.lists.is_unsent = False
    assert node.own.lists.exchange(first) == second  # the peer learns of the newer one
    refused = node.own.lists.exchange(secret(1))
    assert refused.reason == "kind"
    assert node.own.lists.raw == second
    assert not node.own.lists.is_unsent
    assert node.office.load("revoked") == second


def test_a_list_that_a_command_wrote_is_taken_at_the_next_refresh() -> None:
    node = Node(SWARM.member(2))
    node.office.save("revoked", listed(KEY))
    assert node.own.lists.number == 0
    node.own.refresh()
    assert node.own.lists.number == 1
    node.office.save("revoked", b"damaged")
    with capture_logs() as logs:
        node.own.refresh()
        node.own.refresh()
    assert len(logs) == 1
    del node.office._files["revoked"]
    node.own.refresh()
    assert node.own.lists.number == 1


def test_an_ended_list_is_kept_but_not_taken_from_others() -> None:
    node, raw = Node(SWARM.member(2)), listed(KEY)
    node.own.lists.offer(raw)
    later = Node(SWARM.member(2), office=node.office)
    later.now += LIST_SECONDS + 301
    later.own.refresh()
    assert later.own.lists.raw == raw
    stranger = Node(SWARM.member(3))
    stranger.now = later.now
    refused = stranger.own.lists.offer(raw)
    assert refused.reason == "expired"


def test_a_new_secret_is_used_once_and_never_an_older_one() -> None:
    node = Node(SWARM.member(2))
    for number in (2, 1, 2, 3):
        node.own.secrets.offer(secret(number))
    assert node.secrets == [b"\x02" * 32, b"\x03" * 32]
    assert node.own.secrets.number == 3
    assert Node(SWARM.member(2), office=node.office).secrets == [b"\x03" * 32]


def test_a_member_is_renewed_and_keeps_its_new_chain() -> None:
    ticket = SWARM.issuer("Anna")
    anna, delegate = SWARM.member(1, ticket, "Anna"), Node(SWARM.member(9), SWARM.delegate)
    node = Node(anna)
    delegate.members.admit(anna.chain, anna.identity.peer_id)
    me = node.own.me()
    assert isinstance(me, Member)
    node.now = delegate.now = SWARM.begin + 20 * DAY - 1.0
    assert not node.own.ends_soon(me)
    node.now = delegate.now = SWARM.begin + 20 * DAY
    assert node.own.ends_soon(me)
    chain = delegate.own.renewal_of(anna.identity.peer_id)
    assert not isinstance(chain, Rejected)
    assert node.own.adopt(chain) is None
    me = node.own.me()
    assert isinstance(me, Member)
    assert (me.name, me.until) == ("Anna", SWARM.begin + 50 * DAY)
    assert me.admitted_by == ticket.key.public_key
    assert node.own.chain == chain
    assert node.office.load("membership") is not None
    refused = node.own.adopt(anna.chain)
    assert isinstance(refused, Rejected)
    assert node.own.chain == chain


def test_a_renewal_is_checked_and_mends_a_membership_that_is_not_this_nodes() -> None:
    anna = SWARM.member(1)
    node = Node(Membership(anna.identity, SWARM.info, SWARM.member(2).chain))
    early = SWARM.chain(anna.identity, SWARM.delegate, "owner", DAY)
    for wrong in ((b"", b""), SWARM.member(3).chain, early):
        assert isinstance(node.own.adopt(wrong), Rejected)
    assert node.own.adopt(anna.chain) is None
    assert node.own.chain == anna.chain
    assert isinstance(node.own.adopt((b"", b"")), Rejected)


def test_a_renewal_does_not_move_a_node_to_another_ticket() -> None:
    anna, mallory = SWARM.member(1, SWARM.issuer("Anna"), "Anna"), SWARM.issuer("Mallory")
    node = Node(anna)
    refused = node.own.adopt(SWARM.chain(anna.identity, mallory, "Mallory", 60))
    assert isinstance(refused, Rejected)
    assert node.own.chain == anna.chain
    assert node.office.load("membership") is None


def test_nobody_but_a_delegate_renews_and_nobody_but_members_are() -> None:
    anna = SWARM.member(1)
    for signer, known, reason in [
        (None, True, "not_delegate"),
        (SWARM.delegate, False, "unknown_member"),
    ]:
        node = Node(SWARM.member(9), signer)
        if known:
            node.members.admit(anna.chain, anna.identity.peer_id)
        answer = node.own.renewal_of(anna.identity.peer_id)
        assert answer.reason == reason
    expelled = Node(SWARM.member(9), SWARM.delegate)
    expelled.members.admit(anna.chain, anna.identity.peer_id)
    expelled.own.lists.offer(listed(anna.identity.public_key))
    answer = expelled.own.renewal_of(anna.identity.peer_id)
    assert answer.reason == "revoked"


def test_a_delegate_renews_itself_and_states_the_list_anew() -> None:
    node = Node(SWARM.member(9), SWARM.delegate)
    node.own.lists.offer(listed(KEY))
    node.now += 21 * DAY
    node.own.refresh()
    me = node.own.me()
    assert isinstance(me, Member)
    assert me.until == SWARM.begin + 51 * DAY
    assert node.own.lists.number == 1
    node.now = SWARM.begin + LIST_SECONDS * 0.7
    node.own.refresh()
    held = node.own.lists.statement
    assert (held.body.number, held.body.keys) == (2, (KEY,))
    assert held.body.not_after > SWARM.begin + 1.6 * LIST_SECONDS


def test_the_first_of_its_ticket_is_this_node_itself() -> None:
    ticket = SWARM.issuer("one", uses=1)
    node = Node(SWARM.member(1, ticket, "one"))
    second = SWARM.member(2, ticket, "one")
    answer = node.members.admit(second.chain, second.identity.peer_id)
    assert answer.reason == "used_up"


def test_the_secret_of_a_ticket_is_not_replaced_by_an_older_one() -> None:
    newer = SWARM.info.with_secret(b"n" * 32, 2)
    made = next_secret(SWARM.delegate, newer, b"x" * 32, SWARM.begin)
    assert made.body.number == 3
    member = SWARM.member(1)
    used: list[bytes] = []
    own = Credentials(
        LocalNode.of(member.identity, newer, Clock(lambda: 0.0, lambda: SWARM.begin)),
        member.chain,
        office=MemoryOffice(),
        use_secret=used.append,
    )
    own.secrets.offer(secret(1))
    assert (used, own.secrets.number) == ([], 2)
    own.secrets.offer(made.raw)
    assert (used, own.secrets.number) == ([b"x" * 32], 3)


def test_two_delegates_that_expel_at_once_both_have_their_way() -> None:
    site = SWARM.issuer("site", delegate=True)
    nodes = [Node(SWARM.member(8), SWARM.delegate), Node(SWARM.member(9, site, "site"), site)]
    for node, signer, key in zip(nodes, (SWARM.delegate, site), (KEY, OTHER_KEY), strict=True):
        node.office.save("revoked", next_list(signer, SWARM.info, None, [key], SWARM.begin).raw)
    for _ in range(3):
        for node in nodes:
            node.own.refresh()
        for node, other in (nodes, nodes[::-1]):
            node.own.lists.offer(other.own.lists.raw)
    held = [node.own.lists.statement for node in nodes]
    assert held[0] == held[1]
    assert held[0].body.keys == (KEY, OTHER_KEY)


@pytest.mark.parametrize("key", [b"1" * 32, b"8" * 32])
def test_a_peers_list_does_not_undo_what_a_command_has_just_written(key: bytes) -> None:
    site, node = SWARM.issuer("site", delegate=True), Node(SWARM.member(8), SWARM.delegate)
    node.office.save("revoked", listed(KEY))  # of the same number: either may outrank the other
    node.own.lists.offer(next_list(site, SWARM.info, None, [key], SWARM.begin).raw)
    node.own.refresh()
    held = node.own.lists.statement
    assert KEY in held.body.keys  # the other delegate restates its own, if it was outranked


def test_a_delegate_does_not_contend_with_the_root() -> None:
    node = Node(SWARM.member(8), SWARM.delegate)
    node.own.lists.offer(listed(KEY, OTHER_KEY))
    held = node.own.lists.statement
    root = next_list(SWARM.root, SWARM.info, held, [KEY], SWARM.begin, root_only=True, anew=True)
    node.own.lists.offer(root.raw)
    node.own.refresh()
    assert node.own.lists.raw == root.raw
    assert root.body.keys == (KEY,)
    assert root.body.not_after > SWARM.begin + 9 * LIST_SECONDS
