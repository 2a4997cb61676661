"""Circuit addresses: only exact ones are read, and what is written is read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.addresses.circuit import Circuit
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.identity import Identity

RELAY, TARGET, OTHER = (Identity.from_seed(bytes([n]) * 32).peer_id for n in (1, 2, 3))
RELAYS_PLACE = f"/ip4/203.0.113.5/tcp/4001/p2p/{RELAY}"
BARE = RELAYS_PLACE + "/p2p-circuit"
WHOLE = f"{BARE}/p2p/{TARGET}"


def test_a_circuit_names_the_relay_and_where_it_is_and_perhaps_the_target() -> None:
    assert circuit.parse(BARE) == Circuit(RELAYS_PLACE, RELAY, "")
    assert circuit.parse(WHOLE) == Circuit(RELAYS_PLACE, RELAY, TARGET)
    assert circuit.parse(f"/memory/p2p/{RELAY}/p2p-circuit") == Circuit(
        f"/memory/p2p/{RELAY}", RELAY, ""
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/p2p-circuit",
        RELAYS_PLACE,
        BARE + "/",
        BARE + "/p2p/",
        BARE + "/p2p/nonsense",
        BARE + "x",
        BARE + "/tcp/1",
        f"{BARE}/p2p/{RELAY}",  # a relay of itself
        f"{BARE}/p2p/{OTHER}/p2p-circuit",  # a relay behind a relay
        f"{BARE}/p2p/{OTHER}/p2p-circuit/p2p/{TARGET}",
        f"/ip4/203.0.113.5/tcp/4001/p2p/{OTHER}/p2p/{RELAY}/p2p-circuit",
        "/ip4/203.0.113.5/tcp/4001/p2p/nonsense/p2p-circuit",
        "/ip4/203.0.113.5/tcp/4001/p2p-circuit",
        f"/p2p/{RELAY}/p2p-circuit",  # nowhere
        f"ip4/203.0.113.5/tcp/1/p2p/{RELAY}/p2p-circuit",
        "/" + "x" * 512 + BARE,
    ],
)
def test_anything_else_is_no_circuit(text: str) -> None:
    assert circuit.parse(text) is None


@given(st.text(alphabet="/p2-circuit" + RELAY[:4], max_size=80) | st.text(max_size=80))
def test_what_is_read_is_written_again_byte_for_byte(text: str) -> None:
    for candidate in (text, BARE + text, text + BARE, BARE.replace("ip4", text)):
        found = circuit.parse(candidate)
        assert found is None or str(found) == candidate


@given(st.sampled_from([RELAY, TARGET, OTHER]), st.sampled_from(["", RELAY, TARGET, OTHER]))
def test_a_relay_is_never_its_own_target(relay: str, target: str) -> None:
    found = circuit.parse(str(Circuit(f"/ip4/192.0.2.1/tcp/1/p2p/{relay}", relay, target)))
    assert (found is None) == (relay == target)
    assert found is None or (found.relay, found.target) == (relay, target)


def test_a_peer_states_circuits_of_itself_whoever_it_names() -> None:
    direct = f"/ip4/192.168.0.2/tcp/1/p2p/{TARGET}"
    assert circuit.complete_circuits([direct, BARE], TARGET) == [direct, WHOLE]
    # A peer that names another target, or itself as its relay, is not believed.
    assert circuit.complete_circuits([f"{BARE}/p2p/{OTHER}"], TARGET) == [WHOLE]
    (own,) = circuit.complete_circuits([BARE], RELAY)
    assert circuit.parse(own) is None
    assert circuit.advertised_addresses([direct, WHOLE]) == [BARE, direct]
    assert circuit.dialable_addresses([direct, WHOLE, BARE]) == [direct, RELAYS_PLACE, RELAYS_PLACE]


def test_addresses_of_the_internet_come_before_those_of_a_private_network() -> None:
    private, public = "/ip4/192.168.0.2/tcp/1", "/ip4/1.2.3.4/tcp/1"
    named, local = "/dns4/example.org/tcp/1", "/ip6/fd00::1/tcp/1"
    found = circuit.reachable_first([private, BARE, public, local, named])
    assert found == [public, named, private, local]
    assert [circuit.host_of(text) for text in (public, "/memory/p2p/x", "", "/a/b")] == [
        "1.2.3.4",
        "",
        "",
        "",
    ]


def test_a_heartbeat_gets_two_circuits_and_two_other_addresses_that_fit() -> None:
    longest = "/ip6/2001:db8:1111:2222:3333:4444:5555:6666/tcp/65535/p2p/"
    direct = [longest + TARGET, longest.replace("65535", "65534") + TARGET, "/ip4/1.2.3.4/tcp/1"]
    through = [longest + relay + "/p2p-circuit/p2p/" + TARGET for relay in (RELAY, OTHER)]
    chosen = circuit.fit_heartbeat([*direct, *through, WHOLE])
    assert chosen == (*(text.rpartition("/p2p/")[0] for text in through), *direct[:2])
    assert sum(map(len, chosen)) <= wire.MAX_HEARTBEAT_ADDRESS_CHARS
    assert circuit.fit_heartbeat(["/" + "x" * 160, "/a", "/b", "/c"]) == ("/a", "/b")
    long = ["/" + letter * 155 for letter in "ab"]
    assert circuit.fit_heartbeat([*long, *through]) == (chosen[0], chosen[1], long[0])
    assert circuit.fit_heartbeat([]) == ()
