"""`swarm-node invite`, `members`, `revoke`, `ban` and their like: who belongs to the swarm.

Cheap to import, so that `--help` is quick.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm_node.cli.home import ask, chosen_home, show, sound_home
from swarm_node.cli.options import HomeOption, JsonOption
from swarm_node.errors import ConfigError, NotRunningError, TicketError
from swarm_node.program.terminal import DAY, date_of, seconds_of

if TYPE_CHECKING:
    from swarm_node.node.figures.snapshot import PeerRow
    from swarm_node.node.home.home import Home
    from swarm_node.node.members.admitting import Invitation
    from swarm_node.node.members.ledger import IssuedTicket

_LONGEST_TICKET = 90 * DAY
MEMBER_DAYS = 90

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="The new file for the ticket, mode 0600; - prints it, and then terminal, log and "
        "shell history may keep it.",
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
        typer.Option(help="Address newcomers dial; default: where the running node listens."),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(help="URL of a coordinator, which the ticket names too.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Write a ticket that admits a further node to the swarm: one ticket for each person or site.

    Whoever holds the ticket can join until it expires or is used up: send it as you would send a
    password. `swarm-node members` lists your tickets; `swarm-node revoke NAME` takes one back,
    and expels whom it admitted.

        swarm-node invite --name alice --out alice.ticket
    """
    if name is None or out is None:
        raise ConfigError(
            "say whom the ticket admits and where to write it, such as "
            "`swarm-node invite --name alice --out alice.ticket` (or --out - to print it)"
        )
    place, printed = sound_home(home), str(out) == "-"
    if not printed and out.exists():
        raise TicketError(f"{out} exists already: choose another file for the ticket")
    addresses = _addresses(address, coordinator, home)
    made = _admit(place, name, addresses, expires, uses, member_days, _present(home))
    if printed:
        typer.echo(made.ticket)
    else:
        write_secret(out, made.ticket.encode("ascii") + b"\n")
    _explain(made.admission, None if printed else out)


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
        own = address or _own_addresses(home)
    except NotRunningError:
        own = []
    try:
        return [*own[:7], coordinator_address(coordinator)]
    except ValueError as error:
        raise ConfigError(f"--coordinator {coordinator}: {error}") from error


def _admit(
    home: Home,
    name: str,
    addresses: list[str],
    expires: str | None,
    uses: int | None,
    member_days: int | None,
    present: list[str],
) -> Invitation:
    """A ticket by root.key, or from an issuer file, which has decided the rest. `present` are the
    addresses of the running node."""
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
            present=present,
        )
    if any(option is not None for option in (expires, uses, member_days)):
        raise ConfigError(
            "without root.key here, the issuer file decides how long tickets and memberships last: "
            "leave --expires, --uses and --member-days out"
        )
    return admitting.invite_from_stock(home, name, addresses, time.time(), present)


def _explain(admission: IssuedTicket, out: Path | None) -> None:
    """Say what a ticket does and what to type; beside a ticket on stdout, on stderr."""
    nodes = "1 node" if admission.uses == 1 else f"{admission.uses or 'any number of'} nodes"
    days = f"{admission.member_seconds / DAY:g} days"
    for line in (
        f"{f'{out} (mode 0600)' if out else 'The ticket'} is for {admission.name}",
        f"  admits      {nodes}, until {date_of(admission.expires)}, each for {days}",
        f"  take back   swarm-node revoke {quoted(admission.name)}",
        "Send it as you would send a password. On the other machine:",
        f"  swarm-node join --ticket-file {out.name if out else 'FILE'}",
    ):
        typer.echo(line, err=out is None)


def write_secret(out: Path, content: bytes) -> None:
    """Write a new file for its owner alone.

    Raises:
        TicketError: it exists, or cannot be written.
    """
    from swarm_node.durable import create_private

    try:
        create_private(out, content)
    except FileExistsError:
        raise TicketError(f"{out} exists already: choose another file") from None
    except OSError as error:
        raise TicketError(f"cannot write {out}: {error.strerror}") from error


def members(home: HomeOption = None, json: JsonOption = False) -> None:
    """List whom the running node has met, and whom you admitted.

    Each peer is shown with the name of its ticket, who signed its certificate, and until when it is
    a member, or why it is none any more. The end of a peer id is enough to name it to `revoke` and
    `ban`. Tickets are those made in this home, with the peers that came by them, also those that
    are away, and with who showed it after it was used up. A ticket for any number of nodes has only
    peers that the node knows.
    """
    from swarm_node.cli.members_view import members_view, ticket_rows
    from swarm_node.node.figures.snapshot import SCHEMA
    from swarm_node.node.members.admitting import admissions, holders, tried
    from swarm_node.node.members.bans import ban_ledger
    from swarm_node.node.members.stewardship import revoked

    place = chosen_home(home)
    swarm, bans, held = place.swarm(), ban_ledger(place).entries(), revoked(place)
    met, keys = _met(home), frozenset(key.hex() for key in held.body.keys) if held else frozenset()
    entries, came = admissions(place).entries(), holders(place)
    tickets = ticket_rows(entries, came, tried(place), met or [], keys, bans, time.time())
    listed = {"schema": SCHEMA, "swarm": swarm.name, "tickets": tickets, "bans": bans, "met": met}
    show(json, listed, lambda: members_view(tickets, bans, met))


WhoArgument = Annotated[
    str, typer.Argument(help="A name or the end of a peer id, as `swarm-node members` shows them.")
]


def revoke(
    who: WhoArgument,
    stolen_steward: Annotated[
        bool,
        typer.Option(
            "--stolen-steward",
            help="It is a steward whose key was stolen: from now on only root.key expels.",
        ),
    ] = False,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="With --stolen-steward: forget whom the list names so far. The thief may have "
            "expelled you, or have filled the list.",
        ),
    ] = False,
    home: HomeOption = None,
) -> None:
    """Expel somebody from the swarm: all nodes refuse it within two heartbeats.

    A name stands for its tickets: whoever came by them is expelled, and they admit nobody any
    more. The end of a peer id stands for this one node, whose key is out for good. Neither can be
    taken back, but a new ticket admits the person again. Whom you expel still knows the swarm's
    secret: `swarm-node rotate-secret` replaces it.
    """
    from swarm_node.node.members.admitting import admissions
    from swarm_node.node.members.people import keys_of, whom
    from swarm_node.node.members.stewardship import revoke as expel

    if anew and not stolen_steward:
        raise ConfigError("--anew is for --stolen-steward only: nobody else makes lists anew")
    place = sound_home(home)
    met = _met(home)
    keys = keys_of(whom(who, admissions(place).entries(), met or []), place.membership())
    number = expel(place, keys, time.time(), outrank=stolen_steward, anew=anew)
    typer.echo(f"{who} is expelled (revocation list {number}).")
    _passed_on(met is not None)
    typer.echo("It still knows the swarm's secret. Replace it:  swarm-node rotate-secret")


def rotate_secret(home: HomeOption = None) -> None:
    """Replace the secret that hides the swarm's records, after you expelled who knows it.

    The running nodes pass it on to all members, and none has to stop. A node that was off meanwhile
    gets it when it reaches a member. Tickets that nobody has used yet still work where one of their
    addresses answers.
    """
    from swarm_node.node.members.stewardship import rotate_secret as rotate

    place = sound_home(home)
    number = rotate(place, time.time())
    typer.echo(f"The swarm has a new secret (number {number}).")
    _passed_on(_met(home) is not None)


def _passed_on(running: bool) -> None:
    if running:
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
    """Call whoever came by a ticket otherwise, in this home.

    A coordinator gives tickets of an issuer file, which have names such as web 16. Other homes go
    on showing those.
    """
    from swarm_node.node.members.admitting import rename as renamed

    renamed(sound_home(home), old, new)
    typer.echo(f"{old} is called {new} here.")


def ban(who: WhoArgument, home: HomeOption = None) -> None:
    """Shun a member: this node neither asks it nor answers it, from now on.

    Only this node does, and only until `swarm-node unban`. A running node obeys at once. To expel
    somebody from the whole swarm, the owner runs `swarm-node revoke`.
    """
    from swarm_node.node.members.admitting import admissions
    from swarm_node.node.members.bans import add
    from swarm_node.node.members.people import whom

    place = chosen_home(home)
    meant = whom(who, admissions(place).entries(), _met(home) or [])
    add(place, who, meant, time.time())
    typer.echo(f"{who} is banned here. Other nodes do not know of it.")
    typer.echo(f"To end it:  swarm-node unban {quoted(who)}")


def unban(who: WhoArgument, home: HomeOption = None) -> None:
    """End a ban. A running node asks and answers the member again, at once."""
    from swarm_node.node.members.bans import remove

    remove(chosen_home(home), who)
    typer.echo(f"{who} is no longer banned here.")


def quoted(name: str) -> str:
    """A name as a shell takes it."""
    return f"'{name}'" if " " in name else name


def _met(home: Path | None) -> list[PeerRow] | None:
    """The peers that the running node has met, former members last; None if no node runs."""
    try:
        status = ask(home, lambda client: client.status())
    except NotRunningError:
        return None
    return [*status.peers, *status.former]


def _present(home: Path | None) -> list[str]:
    """The addresses of the running node; none if no node runs."""
    try:
        return [*ask(home, lambda client: client.status()).addresses]
    except NotRunningError:
        return []


def _own_addresses(home: Path | None) -> list[str]:
    try:
        status = ask(home, lambda client: client.status())
    except NotRunningError:
        raise NotRunningError(
            "a ticket needs an address that newcomers can dial: start this node first "
            "(`swarm-node join`), or name one with --address"
        ) from None
    if not status.addresses:
        raise NotRunningError("the node is still starting; try again in a few seconds")
    chosen = dialled_first(status.addresses)
    if all(map(_is_loopback, chosen)):
        typer.echo(
            "Only this machine can use this ticket: the node listens on loopback alone. Start it "
            "with --listen /ip4/0.0.0.0/tcp/31330, or name an address with --address.",
            err=True,
        )
    return chosen


def dialled_first(addresses: list[str]) -> list[str]:
    """Choose up to eight of a node's addresses for a ticket. Relay addresses come first, for
    newcomers that cannot dial the node directly. Loopback is left out if there is another one."""
    from swarm_node.p2p.addresses import circuit

    found = circuit.dialled(sorted(addresses, key=lambda text: circuit.parse(text) is None))
    return ([text for text in found if not _is_loopback(text)] or found)[:8]


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
        f"--address {address[:80]}: nobody can dial it; write /ip4/HOST/tcp/PORT or "
        "/dns4/NAME/tcp/PORT, with /p2p/ID for another node than this one"
    )


def _is_loopback(address: str) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))
