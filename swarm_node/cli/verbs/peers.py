"""`swarm-node peers` and `ping`: the links of the running node to its peers."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm_node.cli.home import ask, chosen_home, json_of, show
from swarm_node.cli.options import HomeOption, JsonOption
from swarm_node.errors import SwarmNodeError

if TYPE_CHECKING:
    from swarm_node.node.metrics.snapshot import PeerRow, PingReport, Snapshot, UnmetRow

#: Pings without --count: in all, and until a direct link answers.
_COUNT, _DIRECT_COUNT = 5, 60
_INTERVAL_SECONDS = 1.0


def peers(
    home: HomeOption = None,
    groups: Annotated[
        bool, typer.Option("--groups", help="Also the use of each peer's groups.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the peers that the running node knows: the link to each, or why there is none.

    Each row has the name of the peer's ticket, the other end of its direct link, or the relay, the
    shortest recent time from a request to its reply, bytes of requests and replies since the start
    (without encryption, TCP and the DHT), its policy version, and when it was last seen. Reasons
    follow below the table, and how peers reach this node. --groups adds groups accepted and sent,
    the peer's fraction of the groups trained on, and its useful fraction (95% lower bound).
    `--json` has whole ids and every field."""
    snapshot = ask(home, lambda client: client.status())
    from swarm_node.cli.views.peers_view import peers_view
    from swarm_node.node.metrics.snapshot import SCHEMA

    document = {
        "schema": SCHEMA,
        "peers": snapshot.peers,
        "former": snapshot.former,
        "unmet": snapshot.unmet,
        "unmet_total": snapshot.unmet_total,
        "reach": snapshot.reach,
    }
    show(json, document, lambda: peers_view(snapshot, _given_names(home), groups=groups))


def ping(
    peer: Annotated[str, typer.Argument(help="Its name, its peer id, or the end of the id.")],
    count: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Pings; default 5, 60 with --until-direct.")
    ] = None,
    until_direct: Annotated[
        bool, typer.Option("--until-direct", help="Stop once a direct link answers.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, max=60.0, help="Seconds to wait for each answer.")
    ] = 5.0,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Ping a peer of the running node: a line says how it was reached, and the round trip.

    A ping is a request for one peer record, over the link that the node uses for everything else;
    the time includes the peer's work. Pings are a second apart. To a peer without a link, it first
    opens one. The exit code is 1 if no ping was answered, or with --until-direct none directly."""
    snapshot, names = ask(home, lambda client: client.status()), _given_names(home)
    peer_id, name = meant_peer(peer, snapshot, names)
    reports: list[PingReport] = []
    direct = False
    limit = count or (_DIRECT_COUNT if until_direct else _COUNT)
    for report in _pings(home, peer_id, limit, timeout):
        reports.append(report)
        direct = direct or (report.seconds is not None and not report.via)
        if not json:
            _say(_line(report, name))
        if until_direct and direct:
            break
    if json:
        typer.echo(json_of({"schema": snapshot.schema, "peer_id": peer_id, "pings": reports}))
    else:
        for line in _summary(reports, name):
            _say(line)
    has_answer = any(report.seconds is not None for report in reports)
    if has_answer and until_direct and not direct and not json:
        _say("no direct link: docs/networking.md says which nodes behind NAT can have one")
    if not has_answer or (until_direct and not direct):
        raise typer.Exit(1)


def meant_peer(text: str, snapshot: Snapshot, known_as: Mapping[str, str]) -> tuple[str, str]:
    """Find the peer that `text` names: by its name, its id or the end of its id. Return its id, and
    its name for people.

    Raises:
        SwarmNodeError: nobody, or more than one.
    """
    from swarm_node.cli.views.peers_view import display_names, name_of
    from swarm_node.node.members.lookup import SHORTEST
    from swarm_node.p2p.wire.identity import short_id

    names = display_names(snapshot, known_as)
    rows: list[PeerRow | UnmetRow] = [*snapshot.peers, *snapshot.former, *snapshot.unmet]
    matches = {row.peer_id: None for row in rows if name_of(row, known_as) == text}
    end = text.removeprefix("…")
    if not matches and len(end) >= SHORTEST:
        matches = {row.peer_id: None for row in rows if row.peer_id.endswith(end)}
    if len(matches) == 1:
        (peer_id,) = matches
        return peer_id, names[peer_id]
    if matches:
        ends = ", ".join(sorted(map(short_id, matches))[:8])
        raise SwarmNodeError(
            f"{len(matches)} peers are meant by {text!r}: give an id's end ({ends})"
        )
    close = difflib.get_close_matches(text, sorted(set(names.values())), n=3)
    hint = f": did you mean {' or '.join(map(_clean, close))}?" if close else ""
    raise SwarmNodeError(
        f"this node knows no peer {text!r}{hint or ': `swarm-node peers` lists names'}"
    )


def _pings(home: Path | None, peer_id: str, count: int, timeout: float) -> Iterator[PingReport]:
    """Yield the reports of `count` pings, a second apart, or of those before Ctrl-C."""
    try:
        for left in reversed(range(count)):
            start_time = time.monotonic()
            yield ask(home, lambda client: client.ping(peer_id, timeout))
            if left:
                time.sleep(max(0.0, start_time + _INTERVAL_SECONDS - time.monotonic()))
    except KeyboardInterrupt:
        return


def _line(report: PingReport, name: str) -> str:
    from swarm_node.cli.views.peers_view import milliseconds, place

    if report.seconds is None:
        reason = report.reason.text if report.reason else "no reason is known"
        return f"no answer from {name}: {reason}"
    route = f" ({place(report.address)}, direct)" if report.address else " directly"
    if report.via:
        route = f" via relay {report.relay}"
    return f"pong from {name}{route} in {milliseconds(report.seconds)} ms"


def _summary(reports: list[PingReport], name: str) -> Iterator[str]:
    from swarm_node.cli.views.peers_view import milliseconds

    trips = [report.seconds for report in reports if report.seconds is not None]
    text = f"{name} answered {len(trips)} of {len(reports)} pings"
    if trips:
        figures = min(trips), sum(trips) / len(trips), max(trips)
        text += ": min {}, mean {}, max {} ms".format(*map(milliseconds, figures))
    yield text
    cause = reports[-1].reason if reports and not trips else None
    if cause is not None and cause.remedy:
        yield f"  → {cause.remedy}"


def _given_names(home: Path | None) -> dict[str, str]:
    """The names that the owner of this data directory gave to tickets, by issuer key (hex)."""
    from swarm_node.node.members.admitting import admissions

    return {ticket.issuer_key: ticket.name for ticket in admissions(chosen_home(home)).entries()}


def _say(line: str) -> None:
    typer.echo(_clean(line))


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
