"""The `swarm-coordinator` command. Cheap to import, so that `--help` is quick."""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm_node.errors import ConfigError
from swarm_node.program.terminal import (
    RefusingGroup,
    date_of,
    seconds_of,
    show_page,
    version_option,
)

if TYPE_CHECKING:
    from coordinator.admin import AdminClient

app = typer.Typer(
    name="swarm-coordinator",
    cls=RefusingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Introduce the members of a swarm to each other, and show what they report.\n\n"
    "No swarm needs it. It admits nobody, unless it is given an issuer file; it revokes nobody.",
)
code_app = typer.Typer(no_args_is_help=True, help="Codes that newcomers redeem for tickets.")
app.add_typer(code_app, name="code")

DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="SWARM_COORDINATOR_DATA",
        help="Its directory. [SWARM_COORDINATOR_DATA]",
        show_envvar=False,
    ),
]
_DATA = Path("coordinator-data")
_LONGEST_CODE = 366 * 86_400


@app.callback()
def _main(
    version: Annotated[bool, version_option("swarm-coordinator")] = False,
) -> None:
    pass


@app.command()
def serve(
    swarm: Annotated[Path, typer.Option(help="From `swarm-node id --swarm-file`.")],
    data: DataOption = _DATA,
    listen: Annotated[str, typer.Option(help="HOST:PORT for members.")] = "127.0.0.1:8470",
    admin: Annotated[str, typer.Option(help="HOST:PORT for you.")] = "127.0.0.1:8471",
    issuer_file: Annotated[
        Path | None,
        typer.Option(help="Tickets for codes: `swarm-node delegate create --tickets-only`."),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="Name or peer id of members with whom the reputation begins."),
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="X-Forwarded-For says who asks.")
    ] = False,
) -> None:
    """Run until Ctrl-C. It serves plain HTTP: put a TLS proxy in front of it."""
    from coordinator.server import Options, serve
    from swarm_node.program.logs import set_up_logging

    set_up_logging(False)
    options = Options(
        swarm=swarm,
        data=data,
        listen=_place("--listen", listen),
        admin=_place("--admin", admin),
        issuer_file=issuer_file,
        trust=tuple(trust or ()),
        behind_proxy=behind_proxy,
    )

    def on_running(port: int, admin_port: int) -> None:
        typer.echo(f"serving members at http://{options.listen[0]}:{port}")
        typer.echo(f"admin API at http://{options.admin[0]}:{admin_port} ({data / 'admin.token'})")
        typer.echo(f"dashboard: swarm-coordinator open --data {shlex.quote(str(data))}")

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await serve(options, stop, on_running)

    asyncio.run(run())


@code_app.command("make")
def make_code(
    name: Annotated[str, typer.Option(help="Whom it is for.")],
    uses: Annotated[int, typer.Option(min=1, max=1000, help="How many newcomers.")] = 1,
    expires: Annotated[str, typer.Option(help="How long: 12h, 7d, 2w.")] = "7d",
    data: DataOption = _DATA,
) -> None:
    """Create an invite code, which is shown once."""
    from swarm_node.p2p.coordinator import coordinator_api as api

    request = api.NewCode(name, uses, seconds_of(expires, _LONGEST_CODE))
    reply = asyncio.run(_admin(data).make_code(request))
    typer.echo(reply.code)
    allowance = "1 use" if uses == 1 else f"{uses} uses"
    typer.echo(f"for {name}, {allowance}, until {date_of(reply.row.expires)}", err=True)
    typer.echo(
        f"On the other machine: swarm-node join --coordinator URL --code {reply.code}", err=True
    )


@code_app.command("list")
def list_codes(data: DataOption = _DATA) -> None:
    """List the invite codes, and who holds their tickets.

    Each ticket has the end of its holder's peer id. Nodes show the holder under the ticket's name,
    such as web 16, until the owner runs `swarm-node rename`."""
    reply = asyncio.run(_admin(data).codes())
    for row in reply.codes:
        is_over = row.withdrawn or not row.left or row.expires < time.time()
        state = "withdrawn" if row.withdrawn else "over" if is_over else "open"
        tickets = [_describe_holders(ticket, row.holders.get(ticket, [])) for ticket in row.tickets]
        suffix = f"  gave {', '.join(tickets)}" if tickets else ""
        typer.echo(
            f"{row.id:>4}  {row.name:<32}  {row.left} of {row.uses} left  "
            f"until {date_of(row.expires)}  {state}{suffix}"
        )
    typer.echo(f"tickets left: {reply.tickets}")


@code_app.command("withdraw")
def withdraw_code(
    number: Annotated[int, typer.Argument(help="As `code list` shows it.")],
    data: DataOption = _DATA,
) -> None:
    """Withdraw a code. Tickets that it was redeemed for stay: `swarm-node revoke` ends those."""
    asyncio.run(_admin(data).withdraw(number))
    typer.echo("withdrawn")


@app.command()
def trust(
    who: Annotated[list[str] | None, typer.Argument(help="Names or peer ids.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Trust nobody beforehand.")] = False,
    data: DataOption = _DATA,
) -> None:
    """Show the members with which trust starts, or replace them."""
    from swarm_node.p2p.coordinator import coordinator_api as api

    client = _admin(data)
    change = bool(who) or clear
    request = client.trust(api.Trusted(who or [])) if change else client.fetch_trusted_members()
    for name in asyncio.run(request).who:
        typer.echo(name)


@app.command(name="open")
def open_page(
    data: DataOption = _DATA,
    show: Annotated[
        bool, typer.Option("--print", help="Only print the address; open no browser.")
    ] = False,
) -> None:
    """Open the dashboard of the swarm in a browser."""
    show_page(asyncio.run(_admin(data).page()), only_print=show)


@app.command()
def forget(
    peer_id: Annotated[str, typer.Argument(help="A whole peer id.")], data: DataOption = _DATA
) -> None:
    """Delete what a member reported."""
    typer.echo(f"{asyncio.run(_admin(data).forget(peer_id)).rows} rows deleted")


@app.command()
def backup(
    out: Annotated[Path, typer.Argument(help="The new directory; only you can read it.")],
    data: DataOption = _DATA,
) -> None:
    """Copy key, reports, codes and tickets into a new directory, even while it runs.

    `swarm-coordinator serve --data DIRECTORY` starts from the copy.
    """
    from coordinator.store import back_up

    size = back_up(data, out)
    typer.echo(f"Wrote {out} ({size / 1e6:,.1f} MB): whoever has it can act as this coordinator.")
    typer.echo(f"To use it:  swarm-coordinator serve --swarm FILE --data {out}")


def _admin(data: Path) -> AdminClient:
    from coordinator.admin import AdminClient

    return AdminClient(data)


def _describe_holders(ticket: str, holders: list[str]) -> str:
    from swarm_node.p2p.wire.identity import short_id

    ids = " ".join(map(short_id, holders))
    return f"{ticket} ({ids or 'not met yet'})"


def _place(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{option} {text} is not HOST:PORT, such as 127.0.0.1:8470")
    return host.strip("[]"), int(port)
