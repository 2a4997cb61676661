"""Texts in messages: commands with `--home`, where a person named the node's home, and what others
wrote."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

#: Commands on a home that messages tell its owner to type.
_ON_A_HOME: Final = re.compile(
    r"\bswarm-node (?:backup|block|config|delegate import|doctor|export|init|invite|join|logs"
    r"|members|open|peers|status|stop|unblock)\b(?! --home)"
)


def home_option(home: Path | None) -> str:
    """The option that names `home`, after a space; "" for None."""
    return "" if home is None else f" --home {shlex.quote(str(home))}"


def with_home(text: str, home: Path | None) -> str:
    """Return `text` with `--home` in each of its commands on a home; None: the usual one."""
    option = home_option(home)
    return _ON_A_HOME.sub(lambda match: match[0] + option, text) if option else text


def printable(text: str) -> str:
    """Return untrusted text in one line; control characters are replaced."""
    return "".join(c if c.isprintable() else " " if c == "\n" else "?" for c in text)
