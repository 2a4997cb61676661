"""`swarm-node delegate`: admit members while the root key stays offline.

Cheap to import, so that `--help` is quick.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from swarm_node.cli.home import chosen_home
from swarm_node.cli.options import HomeOption
from swarm_node.cli.verbs.membership.members import MEMBER_DAYS, quote_for_shell, write_secret
from swarm_node.program.terminal import DAY, date_of, seconds_of

_LONGEST = 730 * DAY

delegate_app = typer.Typer(
    no_args_is_help=True,
    help="Admit members while root.key stays offline.\n\n"
    "On the offline machine, `delegate create` signs a stock of tickets, and a key that renews and "
    "revokes memberships. `delegate import` gives both to a running node, for which `invite` then "
    "works without root.key.",
)


@delegate_app.command("create")
def create(
    name: Annotated[str, typer.Option(help="The site, 1 to 24 letters.")],
    out: Annotated[Path, typer.Option(help="The new file: as secret as a key.")],
    tickets: Annotated[int, typer.Option(min=1, max=1000, help="How many people or nodes.")] = 20,
    uses: Annotated[int, typer.Option(min=1, max=1000, help="Nodes that each ticket admits.")] = 1,
    expires: Annotated[str, typer.Option(help="How long, 730d at most.")] = ("365d"),
    member_days: Annotated[
        int, typer.Option(min=1, max=365, help="How long a membership lasts.")
    ] = MEMBER_DAYS,
    tickets_only: Annotated[
        bool, typer.Option("--tickets-only", help="Without a key that renews and revokes.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Create an issuer file, on the machine that has root.key.

    swarm-node delegate create --name hq --tickets 20 --out hq.issuer
    """
    from swarm_node.node.members.admitting import note_issuer_file
    from swarm_node.node.members.issuers import make

    place, seconds = chosen_home(home), seconds_of(expires, _LONGEST)
    issuer_file = make(
        place,
        name,
        tickets,
        now=time.time(),
        valid_seconds=seconds,
        member_seconds=member_days * DAY,
        uses=uses,
        delegate=not tickets_only,
    )
    write_secret(out, issuer_file.content)
    note_issuer_file(place, issuer_file)
    also = "" if issuer_file.delegate is None else " and a delegate's key"
    typer.echo(f"{out} (mode 0600) has {tickets} tickets{also} for {name}")
    typer.echo(f"  valid       until {date_of(time.time() + seconds)}")
    if issuer_file.delegate is None:
        ticket = quote_for_shell(issuer_file.tickets[0].name)
        typer.echo(f"  revoke      swarm-node revoke {ticket}, and so on")
        typer.echo("Where the coordinator runs:")
        typer.echo(f"  swarm-coordinator serve --issuer-file {out.name} --swarm FILE")
        return
    delegate = quote_for_shell(issuer_file.delegate.name)
    typer.echo(f"  revoke      swarm-node revoke {delegate} --stolen-delegate")
    typer.echo("In the running data directory, which then needs no root.key:")
    typer.echo(f"  swarm-node delegate import {out.name}")


@delegate_app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="What `swarm-node delegate create` wrote.")],
    home: HomeOption = None,
) -> None:
    """Import an issuer file into this data directory.

    `invite` then hands out its tickets, and the running node renews memberships. A data directory
    without a swarm joins with the first ticket."""
    from swarm_node.node.members.admitting import admissions
    from swarm_node.node.members.issuers import use

    place = chosen_home(home)
    known_keys = [ticket.issuer_key for ticket in admissions(place).entries() if ticket.given]
    contents = use(place, file, time.time(), known_keys)
    if contents.join_ticket is not None:
        typer.echo(f"Joined swarm {place.swarm().name!r} as {contents.join_ticket.issuer.name!r}")
        typer.echo("Start it with `swarm-node join`; if other nodes run, with --bootstrap ADDRESS")
    typer.echo(f"Tickets left for `swarm-node invite`: {contents.tickets}")
    typer.echo(
        f"  delegate    {contents.delegate.name}, until {date_of(contents.delegate.not_after)}"
    )
    typer.echo(f"Delete {file} now: the data directory has all of it.")
    if place.is_owner:
        typer.echo(
            f"{place.path / 'root.key'} is no longer needed here. Keep it offline (see "
            "docs/members.md), then delete it here."
        )
