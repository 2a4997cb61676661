"""`swarm-node issuer`: admitting members while the root key stays offline.

Cheap to import, so that `--help` is quick.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from swarm_node.cli.home import chosen_home
from swarm_node.cli.options import HomeOption
from swarm_node.cli.verbs.membership.members import MEMBER_DAYS, quoted, write_secret
from swarm_node.program.terminal import DAY, date_of, seconds_of

_LONGEST = 730 * DAY

issuer_app = typer.Typer(
    no_args_is_help=True,
    help="Admit members while root.key stays offline.\n\n"
    "On the offline machine, `issuer make` signs a stock of tickets and a steward, which renews "
    "and expels members. The running home takes the file with `issuer use`, and `invite` works "
    "there without root.key.",
)


@issuer_app.command("make")
def make_issuer(
    name: Annotated[str, typer.Option(help="The site, 1 to 24 letters.")],
    out: Annotated[Path, typer.Option(help="The new file: as secret as a key.")],
    tickets: Annotated[int, typer.Option(min=1, max=1000, help="How many people or nodes.")] = 20,
    uses: Annotated[int, typer.Option(min=1, max=1000, help="Nodes that each ticket admits.")] = 1,
    expires: Annotated[str, typer.Option(help="How long, 730d at most.")] = ("365d"),
    member_days: Annotated[
        int, typer.Option(min=1, max=365, help="How long a membership lasts.")
    ] = MEMBER_DAYS,
    no_steward: Annotated[
        bool, typer.Option("--no-steward", help="Without a key that renews and expels.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Create an issuer file, on the machine that has root.key.

    swarm-node issuer make --name hq --tickets 20 --out hq.issuer
    """
    from swarm_node.node.members.admitting import note_issuer_file
    from swarm_node.node.members.issuers import make

    place, seconds = chosen_home(home), seconds_of(expires, _LONGEST)
    made = make(
        place,
        name,
        tickets,
        now=time.time(),
        valid_seconds=seconds,
        member_seconds=member_days * DAY,
        uses=uses,
        steward=not no_steward,
    )
    write_secret(out, made.content)
    note_issuer_file(place, made)
    also = "" if made.steward is None else " and a steward"
    typer.echo(f"{out} (mode 0600) has {tickets} tickets{also} for {name}")
    typer.echo(f"  valid       until {date_of(time.time() + seconds)}")
    if made.steward is None:
        typer.echo(f"  take back   swarm-node revoke {quoted(made.tickets[0].name)}, and so on")
        typer.echo("Where the coordinator runs:")
        typer.echo(f"  swarm-coordinator serve --issuer-file {out.name} --swarm FILE")
        return
    typer.echo(f"  take back   swarm-node revoke {quoted(made.steward.name)} --stolen-steward")
    typer.echo("In the home that runs, which needs no root.key then:")
    typer.echo(f"  swarm-node issuer use {out.name}")


@issuer_app.command("use")
def use_issuer(
    file: Annotated[Path, typer.Argument(help="What `swarm-node issuer make` wrote.")],
    home: HomeOption = None,
) -> None:
    """Import an issuer file into this home.

    `invite` then hands out its tickets, and the running node renews members. A home that belongs to
    no swarm yet joins with the first ticket.
    """
    from swarm_node.node.members.admitting import admissions
    from swarm_node.node.members.issuers import use

    place = chosen_home(home)
    known = [made.issuer_key for made in admissions(place).entries() if made.given]
    taken = use(place, file, time.time(), known)
    if taken.joined is not None:
        typer.echo(f"Joined swarm {place.swarm().name!r} as {taken.joined.issuer.name!r}")
        typer.echo("Start it with `swarm-node join`; if other nodes run, with --bootstrap ADDRESS")
    typer.echo(f"Tickets left for `swarm-node invite`: {taken.tickets}")
    typer.echo(f"  steward     {taken.steward.name}, until {date_of(taken.steward.not_after)}")
    typer.echo(f"Delete {file} now: what it holds is in the home.")
    if place.is_owner:
        typer.echo(
            f"{place.path / 'root.key'} is not needed here any more. Keep it offline: see "
            "docs/members.md, then delete it here."
        )
