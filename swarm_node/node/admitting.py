"""Making tickets, and writing down whom they admit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swarm_node.errors import HomeError
from swarm_node.node.home import Home
from swarm_node.node.ledger import Admission, Ledger
from swarm_node.p2p.ticket import parse_ticket


class Invitation(NamedTuple):
    """A ticket's text, and what it admits."""

    ticket: str
    admission: Admission


def admissions(home: Home) -> Ledger[Admission]:
    """The ledger of the tickets made in this home."""
    return Ledger(home.path / "invitations.json", Admission)
