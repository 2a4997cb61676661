"""`swarm-node invite`, `members`, `revoke`, `block` and the like: who belongs to the swarm.

Cheap to import, so that `--help` is quick.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm_node.cli.home import ask, chosen_home, show, sound_home
from swarm_node.cli.options import HomeOption, JsonOption
from swarm_node.errors import ConfigError, NotRunningError, TicketError, reason_of
from swarm_node.program.terminal import DAY, date_of, seconds_of

if TYPE_CHECKING:
    from swarm_node.node.home.home import Home
    from swarm_node.node.members.admitting import Invitation
    from swarm_node.node.members.ledger import IssuedTicket
    from swarm_node.node.metrics.snapshot import PeerRow

_LONGEST_TICKET = 90 * DAY
MEMBER_DAYS = 90

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="The ticket's new file (mode 0600), or - to print it.",
    ),
]


def invite(
    name: Annotated[
        str | None, typer.Option(help="Whom it admits: 1 to 32 letters, digits, space, _ . -")
    ] = None,
    out: OutOption = None,
    expires: Annotated[
        str | None, typer.Option(help="How long it can be used: 12h, 7d, 2w, 90d at most. [7d]")
    ] = None,
    uses: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many nodes it admits in all. [1]")
    ] = None,
    member_days: Annotated[
        int | None, typer.Option(min=1, max=365, help="How long a membership lasts. [90]")
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(help="Address for new nodes; default: this node's."),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="URL of a coordinator, which the ticket names too.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Create a ticket, which admits new nodes: one ticket for each person or site.

    Whoever holds the ticket can join until it expires or is used up: send it as you would send a
    password. `swarm-node members` lists your tickets. `swarm-node revoke NAME` revokes one, with
    the memberships of the nodes that it admitted. `--out -` prints it; terminal, log and shell
    history may then keep it.

        swarm-node invite --name alice --out alice.ticket
    """
    if name is None or out is None:
        raise ConfigError(
            "say whom the ticket admits and where to write it, such as "
            "`swarm-node invite --name alice --out alice.ticket` (or --out - to print it)"
        )
    place, is_printed = sound_home(home), str(out) == "-"
    addresses, endpoints = _addresses(address, coordinator, home), _present(home)
    if is_printed:
        invitation = _admit(place, name, addresses, expires, uses, member_days, endpoints)
        typer.echo(invitation.ticket)
    else:
        with _reserve_file(out) as write:
            invitation = _admit(place, name, addresses, expires, uses, member_days, endpoints)
            write(invitation.ticket.encode("ascii") + b"\n")
    _explain(invitation.admission, None if is_printed else out)
    _warn_of_loopback(addresses)


def _addresses(address: list[str] | None, coordinator: str | None, home: Path | None) -> list[str]:
    """Addresses for a ticket. With a coordinator, which knows the nodes, no node needs to run
    here."""
    if address:
        own_id = chosen_home(home).identity().peer_id
        address = [dialable(text, own_id) for text in address]
    if coordinator is None:
        return address or _own_addresses(home)
    from swarm_node.p2p.addresses.addresses import coordinator_address

    try:
        server = coordinator_address(coordinator)
    except ValueError as error:
        raise ConfigError(f"--coordinator {coordinator}: {error}") from error
    node_addresses = address or []
    if not address:
        with suppress(NotRunningError):
            node_addresses = _own_addresses(home)
        if not _is_loopback(server):  # which leads other machines here, and loopback does not
            node_addresses = [text for text in node_addresses if not _is_loopback(text)]
    return [*node_addresses[:7], server]


def _admit(
    home: Home,
    name: str,
    addresses: list[str],
    expires: str | None,
    uses: int | None,
    member_days: int | None,
    endpoints: list[str],
) -> Invitation:
    """A ticket by root.key, or from an issuer file, which has decided the rest. `endpoints` are the
    endpoints of this data directory's node."""
    from swarm_node.node.members import admitting

    if home.is_owner:
        return admitting.invite(
            home,
            name,
            addresses,
            now=time.time(),
            valid_seconds=seconds_of("7d" if expires is None else expires, _LONGEST_TICKET),
            member_seconds=(member_days or MEMBER_DAYS) * DAY,
            uses=uses or 1,
            present=endpoints,
        )
    if any(option is not None for option in (expires, uses, member_days)):
        raise ConfigError(
            "without root.key here, the issuer file decides how long tickets and memberships last",
            "leave --expires, --uses and --member-days out",
        )
    return admitting.invite_from_stock(home, name, addresses, time.time(), endpoints)


def _explain(admission: IssuedTicket, out: Path | None) -> None:
    """Say what a ticket does and what to type; beside a ticket on stdout, on stderr."""
    nodes = "1 node" if admission.uses == 1 else f"{admission.uses or 'any number of'} nodes"
    days = f"{admission.member_seconds / DAY:g} days"
    for line in (
        f"{f'{out} (mode 0600)' if out else 'The ticket'} is for {admission.name}",
        f"  admits      {nodes}, until {date_of(admission.expires)}; a membership lasts {days}",
        f"  revoke      swarm-node revoke {quote_for_shell(admission.name)}",
        "Send it as you would send a password. On the other machine:",
        f"  swarm-node join --ticket-file {out.name if out else 'FILE'}",
    ):
        typer.echo(line, err=out is None)


def _warn_of_loopback(addresses: list[str]) -> None:
    """Say on stderr which addresses of a ticket no other machine can dial."""
    loopbacks = [text for text in addresses if _is_loopback(text)]
    if loopbacks == addresses:
        typer.echo(
            "Only this machine can use this ticket: all its addresses are loopback. Start the node "
            "with --listen /ip4/0.0.0.0/tcp/31330, or name an address with --address.",
            err=True,
        )
    elif loopbacks:
        typer.echo(f"Only this machine can connect to {loopbacks[0]}: it is loopback.", err=True)


def write_secret(out: Path, content: bytes) -> None:
    """Write a new file for its owner alone.

    Raises:
        TicketError: it exists, or cannot be written.
    """
    from swarm_node.durable import create_private

    try:
        create_private(out, content)
    except FileExistsError:
        raise TicketError(f"{out} exists already", "choose another file") from None
    except OSError as error:
        raise TicketError(f"cannot write {out}: {error.strerror}") from error


@contextmanager
def _reserve_file(out: Path) -> Iterator[Callable[[bytes], None]]:
    """Make the new file `out`, and hand the block what fills it. A ticket is in the ledger before
    it is written, so a file that cannot be made must be known earlier. It is gone again if the
    block fails.

    Raises:
        TicketError: it exists, or cannot be written.
    """
    from swarm_node.durable import replace_private

    def write(content: bytes) -> None:
        try:
            replace_private(out, content)
        except OSError as error:
            raise TicketError(
                f"cannot write {out}: {reason_of(error)}. Its ticket is lost: `swarm-node members` "
                "lists it, `swarm-node revoke` takes it back"
            ) from error

    write_secret(out, b"")
    try:
        yield write
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def members(home: HomeOption = None, json: JsonOption = False) -> None:
    """List the members that the running node has met, and the tickets that you issued.

    Each peer has the name of its ticket, its issuer, and the end of its membership, or why it is no
    longer a member. `revoke` and `block` take the end of a peer id. Tickets are those created in
    this data directory, each with the peers that joined with it, even absent ones, and those that
    showed it after it was used up."""
    place = chosen_home(home)
    swarm = place.swarm()
    from swarm_node.cli.views.members_view import members_view, ticket_rows
    from swarm_node.node.members.admitting import (
        admissions,
        holders,
        out_of_date,
        read_late_peer_ids,
    )
    from swarm_node.node.members.blocks import block_ledger
    from swarm_node.node.members.delegation import read_revocations
    from swarm_node.node.metrics.snapshot import SCHEMA

    blocks, revocations = block_ledger(place).entries(), read_revocations(place)
    met_peers, keys = (
        _fetch_met_peers(home),
        frozenset(key.hex() for key in revocations.body.keys) if revocations else frozenset(),
    )
    entries, holder_ids, now = admissions(place).entries(), holders(place), time.time()
    stale_tickets = out_of_date(entries, holder_ids, _present(home), now)
    tickets = ticket_rows(
        entries,
        holder_ids,
        read_late_peer_ids(place),
        met_peers or [],
        keys,
        blocks,
        now,
        stale_tickets,
    )
    document = {
        "schema": SCHEMA,
        "swarm": swarm.name,
        "tickets": tickets,
        "blocks": blocks,
        "met": met_peers,
    }
    show(json, document, lambda: members_view(tickets, blocks, met_peers))


WhoArgument = Annotated[
    str, typer.Argument(help="A name or the end of a peer id, as in `members`.")
]


def revoke(
    who: WhoArgument,
    stolen_delegate: Annotated[
        bool,
        typer.Option(
            "--stolen-delegate",
            help="A delegate's key was stolen: from now on only root.key revokes.",
        ),
    ] = False,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="With --stolen-delegate: start the list anew, without its entries.",
        ),
    ] = False,
    home: HomeOption = None,
) -> None:
    """Revoke a membership: all nodes reject that member within two heartbeats.

    A name stands for its tickets: every node that they admitted is revoked, and they admit nobody
    any more. The end of a peer id stands for that node alone. Revoking cannot be undone, but a new
    ticket admits the person again. Revoked members still know the swarm secret:
    `swarm-node rotate-secret` replaces it. Use `--anew` if somebody with a stolen delegate's key
    revoked you, or filled the list.
    """
    from swarm_node.node.members.admitting import admissions
    from swarm_node.node.members.delegation import revoke as expel
    from swarm_node.node.members.lookup import keys_of, whom

    if anew and not stolen_delegate:
        raise ConfigError("--anew is for --stolen-delegate only: nobody else makes lists anew")
    place = sound_home(home)
    met_peers = _fetch_met_peers(home)
    keys = keys_of(whom(who, admissions(place).entries(), met_peers or []), place.membership())
    number = expel(place, keys, time.time(), as_root=stolen_delegate, from_scratch=anew)
    typer.echo(f"{who} is revoked (revocation list {number}).")
    _passed_on(met_peers is not None)
    typer.echo("It still knows the swarm secret. Replace it:  swarm-node rotate-secret")


def rotate_secret(home: HomeOption = None) -> None:
    """Replace the swarm secret, after you revoked a member that knows it.

    The running nodes pass it on to all members, and none has to stop. A node that was off meanwhile
    gets it when it reaches a member. Tickets that nobody has used yet still work where one of their
    addresses answers.
    """
    from swarm_node.node.members.delegation import rotate_secret as rotate

    place = sound_home(home)
    number = rotate(place, time.time())
    typer.echo(f"The swarm has a new secret (number {number}).")
    _passed_on(_fetch_met_peers(home) is not None)


def _passed_on(is_running: bool) -> None:
    if is_running:
        typer.echo("The running node passes it on at its next heartbeat.")
    else:
        typer.echo(
            "No node runs here: start it (`swarm-node join`), so that the others hear of it."
        )


def rename(
    old: Annotated[str, typer.Argument(help="A name of `swarm-node members`, such as web 16.")],
    new: Annotated[str, typer.Argument(help="1 to 32 letters, digits, space, _ . -")],
    home: HomeOption = None,
) -> None:
    """Rename the holder of a ticket, in this data directory only.

    A coordinator gives tickets of an issuer file, which have names such as web 16. Other data
    directories go on showing those."""
    from swarm_node.node.members.admitting import rename as renamed

    renamed(sound_home(home), old, new)
    typer.echo(f"{old} is called {new} here.")


def block(who: WhoArgument, home: HomeOption = None) -> None:
    """Block a member on this node only: it neither sends it requests nor answers them.

    Other nodes are not affected. A running node applies it at once; `swarm-node unblock` ends it.
    To remove a member from the whole swarm, the owner runs `swarm-node revoke`.
    """
    from swarm_node.node.members.admitting import admissions
    from swarm_node.node.members.blocks import add
    from swarm_node.node.members.lookup import whom

    place = chosen_home(home)
    target = whom(who, admissions(place).entries(), _fetch_met_peers(home) or [])
    add(place, who, target, time.time())
    typer.echo(f"{who} is blocked here. Other nodes are not affected.")
    typer.echo(f"To end it:  swarm-node unblock {quote_for_shell(who)}")


def unblock(who: WhoArgument, home: HomeOption = None) -> None:
    """Unblock a member. A running node exchanges groups with it again at once."""
    from swarm_node.node.members.blocks import remove

    remove(chosen_home(home), who)
    typer.echo(f"{who} is no longer blocked here.")


def quote_for_shell(name: str) -> str:
    """A name as a shell takes it."""
    return f"'{name}'" if " " in name else name


def _fetch_met_peers(home: Path | None) -> list[PeerRow] | None:
    """The peers that the running node has met, former members last; None if no node runs."""
    try:
        status = ask(home, lambda client: client.status())
    except NotRunningError:
        return None
    return [*status.peers, *status.former]


def _present(home: Path | None) -> list[str]:
    """The endpoints of the running node, or else those at which it would start."""
    from swarm_node.config import load_settings
    from swarm_node.node.members.admitting import present

    place, addresses = chosen_home(home), list[str]()
    with suppress(NotRunningError):
        addresses = ask(home, lambda client: client.status()).addresses
    return present(place, load_settings({"home": place.path}, with_home=True).network, addresses)


def _own_addresses(home: Path | None) -> list[str]:
    """The addresses of the running node for a ticket, or those of its last start that it would have
    again."""
    try:
        addresses = ask(home, lambda client: client.status()).addresses
    except NotRunningError:
        ports = {place.rpartition("/")[2] for place in _present(home)}
        addresses = [
            text
            for text in chosen_home(home).last_addresses()
            if text.rpartition("/p2p/")[0].rpartition("/")[2] in ports
        ]
        if not addresses:
            raise NotRunningError(
                "a ticket needs an address that newcomers can connect to",
                "start this node first (`swarm-node join`), or name one with --address",
            ) from None
        typer.echo(
            "No node runs here: the ticket has its addresses of the last start. Newcomers need it "
            "to run (`swarm-node join`).",
            err=True,
        )
    if not addresses:
        raise NotRunningError("the node is still starting", "try again in a few seconds")
    return dialled_first(addresses)


def dialled_first(addresses: list[str]) -> list[str]:
    """Choose up to eight of a node's addresses for a ticket. Relay addresses come first, for
    newcomers that cannot dial the node directly. Loopback is left out if there is another one."""
    from swarm_node.p2p.addresses import circuit

    candidates = circuit.dialable_addresses(
        sorted(addresses, key=lambda text: circuit.parse(text) is None)
    )
    return ([text for text in candidates if not _is_loopback(text)] or candidates)[:8]


def dialable(address: str, own_id: str) -> str:
    """Return an address that a newcomer can dial: one without an id gets that of this node.

    Raises:
        ConfigError: it is no address to dial.
    """
    from swarm_node.p2p.addresses import circuit
    from swarm_node.p2p.addresses.addresses import parse_address

    for text in (address, f"{address}/p2p/{own_id}"):
        if parse_address(text) is not None or circuit.parse(text) is not None:
            return text
    raise ConfigError(
        f"--address {address[:80]}: nobody can connect to it",
        "write /ip4/HOST/tcp/PORT or "
        "/dns4/NAME/tcp/PORT, with /p2p/ID for another node than this one",
    )


def _is_loopback(address: str) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))
