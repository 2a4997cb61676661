"""What a node concludes of what members found, over tables of outcomes."""

from __future__ import annotations

import msgspec
import pytest

from swarm_node.p2p.reach.reachability import (
    Kind,
    Nat,
    Outcome,
    Probed,
    Reach,
    Reachability,
    Relay,
    assess,
    dialable,
    majority_addresses,
    nat_kind,
)

PORT = 31330
#: Two members of the Internet, one of the same home network, and one behind the same router.
ALICE, BOB, CAROL = "11.0.0.1", "11.0.0.2", "11.0.0.3"
HOME = "11.0.1.1"


def probed(name: str, at: str, *outcomes: Outcome, seen: str = HOME, port: int = PORT) -> Probed:
    """What a member at `at` says, which sees this node at `seen` and `port`: the outcome there, and
    then that at the port on which the node listens, if it is another."""
    by_port = dict(zip((port, PORT), outcomes, strict=False))
    return Probed(f"id of {name}", name, at, seen, port, False, by_port, 0.0)


def alice(*outcomes: Outcome, port: int = PORT, seen: str = HOME) -> Probed:
    return probed("alice", ALICE, *outcomes, port=port, seen=seen)


def bob(*outcomes: Outcome, port: int = PORT, seen: str = HOME) -> Probed:
    return probed("bob", BOB, *outcomes, port=port, seen=seen)


def carol(*outcomes: Outcome, port: int = PORT) -> Probed:
    return probed("carol", CAROL, *outcomes, port=port)


def here(probe: Probed) -> Probed:
    """The same, where the address that the member sees is this machine's own."""
    return msgspec.structs.replace(probe, here=True)


def asked(probe: Probed, stranger: Outcome) -> Probed:
    """The same, where the member asked a stranger to try."""
    return msgspec.structs.replace(probe, stranger=stranger)


LAN = probed("dora", "192.168.1.12", "open", seen="192.168.1.11")
LAN_TOO = probed("eve", "192.168.1.13", "open", seen="192.168.1.11")
MACHINE = probed("fred", "127.0.0.1", "open", seen="127.0.0.1")
NEIGHBOUR = probed("gina", HOME, "open")


@pytest.mark.parametrize(
    ("probes", "known"),
    [
        ([], None),
        ([alice("open")], None),  # the word of one
        ([alice("timeout")], False),
        ([alice("open"), bob("open")], True),
        ([alice("open"), bob("open"), carol("timeout")], True),  # one lies
        ([alice("open"), bob("refused"), carol("timeout")], False),
        ([alice("open"), bob("timeout")], False),  # one lies, and a relay does no harm
        ([alice("untried"), bob("open")], None),
        ([asked(alice("open"), "open"), asked(bob("open"), "untried")], True),
        ([asked(alice("open"), "timeout"), asked(bob("open"), "timeout")], False),
        ([asked(alice("open"), "timeout"), asked(bob("open"), "open")], False),
        ([alice("timeout", "open", port=7), bob("timeout", "open", port=8)], True),
        ([LAN, LAN_TOO], True),
        ([LAN, LAN_TOO, alice("timeout")], False),  # the Internet decides
        ([MACHINE, MACHINE, NEIGHBOUR], None),  # they prove nothing
    ],
)
def test_a_majority_of_at_least_two_from_elsewhere_makes_a_node_dialable(
    probes: list[Probed], known: bool | None
) -> None:
    assert dialable(probes) is known


def test_only_an_address_that_two_members_found_open_is_announced() -> None:
    forwarded = [alice("timeout", "open", port=7), bob("timeout", "open", port=8)]
    assert majority_addresses(forwarded) == [f"/ip4/{HOME}/tcp/{PORT}"]
    assert majority_addresses([alice("open", port=7), bob("open", port=7)]) == [
        f"/ip4/{HOME}/tcp/7"
    ]
    invented = alice("open", seen="11.9.9.9")
    assert majority_addresses([invented, bob("timeout"), carol("timeout")]) == []
    assert majority_addresses([invented]) == majority_addresses([invented, bob("open")]) == []
    v6 = [
        probed("alice", "2a01:1::1", "open", seen="2a01:9::1"),
        probed("bob", "2a01:2::1", "open", seen="2a01:9::1"),
    ]
    assert majority_addresses(v6) == [f"/ip6/2a01:9::1/tcp/{PORT}"]
    assert majority_addresses([MACHINE, NEIGHBOUR]) == []
    forwarded = [alice("open", "refused", port=7), bob("open", "refused", port=7)]
    assert majority_addresses(forwarded) == [f"/ip4/{HOME}/tcp/7"]
    two = [alice("open", seen="11.9.9.9"), bob("open", seen="11.9.9.9")]
    assert (
        majority_addresses([*two, carol("open"), probed("dora", "11.0.0.4", "open")]) == []
    )  # half
    assert (
        majority_addresses([asked(alice("open"), "timeout"), asked(bob("open"), "timeout")]) == []
    )


@pytest.mark.parametrize(
    ("nat", "probes"),
    [
        ("none", [here(alice("open")), here(bob("open"))]),
        ("none", [here(alice("timeout")), here(bob("timeout"))]),  # a firewall
        ("open", [alice("open"), bob("open")]),
        ("open", [alice("open")]),
        ("restricted", [alice("timeout"), bob("timeout")]),
        ("restricted", [alice("timeout")]),
        ("reject", [alice("refused"), bob("refused")]),
        ("address", [asked(alice("open"), "timeout"), asked(bob("open"), "timeout")]),
        ("address", [asked(alice("open"), "timeout")]),
        ("symmetric", [alice("timeout", "timeout", port=7), bob("timeout", "timeout", port=8)]),
        ("symmetric", [alice("refused", "refused", port=7), bob("refused", "refused", port=8)]),
        # One member cannot tell; a port that others see too holds for all; and so does one's own,
        # although p2pd took another one for a connection.
        ("restricted", [alice("timeout", "timeout", port=7)]),
        (
            "restricted",
            [alice("timeout", port=7), bob("timeout", port=7), carol("timeout", port=8)],
        ),
        ("restricted", [alice("timeout", "timeout", port=7), bob("timeout")]),
        ("open", [alice("timeout", "open", port=7), bob("timeout", "open", port=8)]),
        ("restricted", [asked(alice("timeout"), "timeout")]),  # it had no reason to ask one
        ("unknown", []),
        ("unknown", [MACHINE]),
        ("unknown", [alice("open"), bob("timeout")]),
    ],
)
def test_the_kind_of_nat(nat: Nat, probes: list[Probed]) -> None:
    assert nat_kind(probes, (PORT,)) == nat


def verdict(*probes: Probed, relays: tuple[Relay, ...] = ()) -> Reachability:
    return assess(probes, (PORT,), relays)


@pytest.mark.parametrize(
    ("asked", "named"), [(0, "no member"), (1, "only member"), (3, "3 members")]
)
def test_without_an_answer_it_says_how_many_were_asked(asked: int, named: str) -> None:
    assert named in assess([alice("untried")], (PORT,), (), asked).text
    assert named not in assess([alice("open"), bob("open")], (PORT,), (), asked).text


NAT_AT, LAN_AT = f"{HOME}:{PORT}", f"192.168.1.11:{PORT}"


@pytest.mark.parametrize(
    ("probes", "kind", "named", "remedy"),
    [
        ([], "unknown", (), ""),
        ([alice("untried")], "unknown", (), ""),
        ([alice("open"), bob("open"), carol("timeout")], "direct", (NAT_AT, "alice and bob"), ""),
        ([alice("open")], "direct", (NAT_AT, "alice, the only"), ""),
        ([LAN], "local", ("dora", LAN_AT), ""),
        ([MACHINE], "local", ("fred", f"127.0.0.1:{PORT}"), ""),
        ([NEIGHBOUR], "local", ("gina", NAT_AT), ""),
        (
            [alice("timeout"), bob("timeout")],
            *("unreachable", ("nothing answers", NAT_AT, "alice and bob"), "router"),
        ),
        # The router lets its own network in.
        ([probed("dora", "192.168.1.12", "open")], "local", ("dora", NAT_AT), ""),
        # It sees what a proxy shows.
        ([probed("dora", ALICE, "open", seen="192.168.1.11")], "local", ("dora", LAN_AT), ""),
        (
            [alice("refused", "timeout", port=7), bob("timeout")],
            *("unreachable", ("nothing answers", NAT_AT, "alice and bob"), "router"),
        ),
        ([here(alice("refused"))], "unreachable", (NAT_AT, "refused", "alice"), "firewall"),
        ([alice("other")], "unreachable", ("another program", NAT_AT, "alice"), "--advertise"),
        (
            [probed("dora", "192.168.1.12", "silent", seen="192.168.1.11")],
            *("unreachable", ("this network", LAN_AT, "says nothing", "dora"), "router"),
        ),
        ([asked(alice("open"), "timeout")], "unreachable", ("a link", NAT_AT, "alice"), "router"),
        ([alice("open"), bob("timeout")], "unknown", ("disagree: alice", "bob could"), ""),
    ],
)
def test_a_verdict_names_the_address_the_members_and_the_remedy(
    probes: list[Probed], kind: Kind, named: tuple[str, ...], remedy: str
) -> None:
    told = verdict(*probes)
    assert told.kind == kind
    assert [each for each in named if each not in told.text] == []
    assert remedy in told.remedy
    assert bool(told.remedy) == bool(remedy)
    assert told.probes == probes


def test_relays_count_where_a_node_is_not_known_to_be_dialable() -> None:
    relays = (Relay("hub", 0.0312), Relay("spare"))
    behind = verdict(alice("timeout"), bob("timeout"), relays=relays)
    assert behind.kind == "relayed"
    assert "hub (31 ms)" in behind.text
    assert "spare" in behind.text
    assert str(PORT) in behind.remedy
    assert behind.relays == list(relays)
    assert verdict(alice("open"), relays=relays).kind == "relayed"  # by the word of one
    assert verdict(alice("open"), bob("open"), relays=relays).kind == "direct"
    alone = verdict(relays=relays)
    assert (alone.kind, alone.remedy) == ("relayed", "")


def test_a_node_is_seen_by_members_of_the_internet() -> None:
    reach = Reach()
    reach.probes = (LAN, LAN_TOO, alice("timeout", port=9))
    assert reach.observed_endpoint() == (HOME, 9)
    reach.probes = (LAN,)
    assert reach.observed_endpoint() is None
