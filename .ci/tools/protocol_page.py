"""The tables of the protocol's pages, written from those of the program: `make protocol-pages`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from swarm_node.p2p.limits.links import LIMITS
from swarm_node.p2p.wire.envelope import SEALED_BYTES
from swarm_node.p2p.wire.protocols import PROTOCOLS
from swarm_node.p2p.wire.reasons import REASONS, REFUSALS, Blame

_DOCS = Path(__file__).resolve().parents[2] / "docs"
#: The written tables of each page.
PAGES = {
    _DOCS / "protocol.md": ("kinds",),
    _DOCS / "protocol-streams.md": ("protocols", "limits", "refusals", "reasons"),
}
_CLASSES = {Blame.NONE: "No blame", Blame.USELESS: "Useless", Blame.VIOLATION: "Violation"}
_TAILS = {
    "": "",
    "reason": ": REASON",
    "reason, seconds": ": REASON",
    "protocol": " PROTOCOL",
}


def tables() -> dict[str, str]:
    """Every written table, by the name in the comments around it."""
    return {
        "kinds": "\n".join(
            f"* {kind.name}: {_size(limit)}" for kind, limit in SEALED_BYTES.items()
        ),
        "protocols": _table(
            ("protocol", "request", "reply"),
            ((f"`{name}`", request, reply) for name, request, reply in PROTOCOLS),
        ),
        "limits": _table(("of", "stack", "at most", "above it"), LIMITS),
        "refusals": "\n".join(
            f"* `{r.text}{_TAILS[r.names]}` ({r.protocols}): {r.meaning}" for r in REFUSALS
        ),
        "reasons": "\n\n".join(_class(blame, name) for blame, name in _CLASSES.items()),
    }


def with_tables(page: str, names: Iterable[str]) -> str:
    """The page with the tables of these names written anew.

    Raises:
        ValueError: the comments around a table are not there once.
    """
    for name in names:
        table = tables()[name]
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page, count = re.subn(
            pattern, lambda match, t=table: f"{match[1]}{t}\n{match[2]}", page, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"<!-- {name} --> stands {count} times on the page")
    return page


def _class(blame: Blame, name: str) -> str:
    codes = ", ".join(f"`{code}`" for code, code_blame in REASONS.items() if code_blame is blame)
    return textwrap.fill(f"{name}: {codes}.", 140)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, tuple("---" for _ in head), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _size(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size}"


if __name__ == "__main__":
    for path, names in PAGES.items():
        path.write_text(with_tables(path.read_text(), names))
