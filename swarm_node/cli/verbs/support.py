"""`swarm-node support-bundle`: collect what a helper must see, without any secret.

Parts are chosen one by one: no file of the home is copied as it is. Then every secret of the home
is searched for in the parts, in every usual notation, and removed.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from swarm_node.cli.home import chosen_home
from swarm_node.cli.options import ConfigOption, HomeOption
from swarm_node.errors import HomeError, NotRunningError, SwarmNodeError, reason_of

if TYPE_CHECKING:
    from swarm_node.node.home.home import Home

_LINES: Final = 5000
_PACKAGES: Final = (
    *("swarm-node", "torch", "vllm", "transformers", "hivemind", "libp2p", "msgspec", "aiohttp"),
    *("reasoning-gym", "cryptography", "peft", "bitsandbytes"),
)
#: Patterns of files that are a secret, or hold some as texts of JSON.
_KEYS: Final = (
    *("node.key", "root.key", "issuer.key", "site.key"),
    *("metrics.token", "openai.token", "serve-*.token"),
)
_HOLDERS: Final = ("swarm.json", "control.json")
_SECRET_FIELDS: Final = ("secret", "token")
_GONE: Final = b"[taken out]"
#: Options of an environment, which may be any program's, whose values nobody should see.
_SECRET_OPTION: Final = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_README: Final = """\
Made by `swarm-node support-bundle`. It has no key, secret, token or ticket, and no weights.
It names peers and their addresses, and has prompts and completions: read it before you share it.

{parts}
"""


def support_bundle(
    home: HomeOption = None,
    config: ConfigOption = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("swarm-node-support.zip"),
) -> None:
    """Collect diagnostics for a bug report: versions, checks, settings, status, log.

    No key, secret, token or ticket is in it. It names peers and their addresses: read it before you
    pass it on.
    """
    if out.exists():  # collecting takes seconds
        raise _output_error(out, "file exists")
    place = chosen_home(home)
    secrets = known_secrets(place.path)
    parts = {name: remove_secrets(part, secrets) for name, part in _collect_parts(place, config)}
    listing = "\n".join(f"{name}  {len(part)} bytes" for name, part in parts.items())
    parts["README.txt"] = _README.format(parts=listing).encode()
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise _output_error(out, reason_of(error)) from error
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as z:
        for name, part in parts.items():
            z.writestr(name, part)
    typer.echo(f"{out}\n{listing}")
    typer.echo("It names peers and their addresses: read it before you pass it on.", err=True)


def _output_error(out: Path, reason: str) -> HomeError:
    return HomeError(f"cannot make {out}: {reason}", "choose another --out")


def _collect_parts(place: Home, config: Path | None) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each part. A part that cannot be collected says why."""
    makers: Mapping[str, Callable[[], Any]] = {
        "versions.json": _versions,
        "checks.json": lambda: _checks(place, config),
        "settings.json": lambda: _settings(place, config),
        "status.json": lambda: _status(place),
        "home.json": lambda: _listing(place.path),
    }
    for name, make in makers.items():
        try:
            content = make()
        except SwarmNodeError as error:
            content = {"missing": str(error)}
        yield name, json.dumps(content, indent=1, default=str).encode()
    for name, path in (("log.jsonl", place.log), ("metrics.jsonl", place.metrics)):
        yield name, b"".join(_tail(path))


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _checks(place: Home, config: Path | None) -> list[dict[str, Any]]:
    from swarm_node.cli.verbs.doctor import find
    from swarm_node.config import load_settings

    settings = load_settings({"home": place.path}, config=config, with_home=True)
    return [finding._asdict() for finding in find(settings)[1]]


def _settings(place: Home, config: Path | None) -> list[dict[str, Any]]:
    from swarm_node.cli.views.config_view import explain_settings

    rows = []
    for key in explain_settings({"home": place.path}, config=config, with_home=True):
        if isinstance(key.value, Mapping):
            items = key.value.items()
            options = {k: _GONE.decode() if _SECRET_OPTION.search(k) else v for k, v in items}
            key = key._replace(value=options)
        rows.append(key._asdict())
    return [row for row in rows if row["name"] != "ticket"]


def _status(place: Home) -> Any:
    import asyncio

    import msgspec

    from swarm_node.node.control.control import ControlClient

    try:
        snapshot = asyncio.run(ControlClient(place.control_file).status())
    except NotRunningError as error:
        return {"missing": str(error)}
    return msgspec.to_builtins(snapshot)


def _listing(home: Path) -> list[dict[str, Any]]:
    """Names, sizes and modes, no contents."""
    rows = []
    for path in sorted(home.rglob("*"))[:_LINES]:
        with suppress(OSError):
            info = path.lstat()
            row = {"name": str(path.relative_to(home)), "mode": oct(info.st_mode)}
            rows.append({**row, "size": info.st_size, "modified": info.st_mtime})
    return rows


def _tail(path: Path) -> list[bytes]:
    from swarm_node.durable import Journal

    return [*Journal(path, 0).lines()][-_LINES:]


def known_secrets(home: Path) -> list[bytes]:
    """Every secret in a data directory, in the notations in which it could be written."""
    secrets: list[bytes] = []
    for path in chain.from_iterable(map(home.glob, _KEYS)):
        with suppress(OSError):
            content = path.read_bytes()
            secrets += [*_notations(content), *_notations(content.strip())]
    for name in _HOLDERS:
        with suppress(OSError, ValueError):
            fields = json.loads((home / name).read_text())
            for text in filter(None, map(fields.get, _SECRET_FIELDS)):
                secrets.append(str(text).encode())
                with suppress(ValueError):
                    secrets += _notations(bytes.fromhex(str(text)))
    return sorted({secret for secret in secrets if len(secret) >= 16}, key=len, reverse=True)


def _notations(secret: bytes) -> Iterable[bytes]:
    import base58

    base64_text, url = base64.b64encode(secret), base64.urlsafe_b64encode(secret)
    forms = (
        *(
            secret,
            repr(secret).encode()[2:-1],
            secret.hex().encode(),
            secret.hex().upper().encode(),
        ),
        *(base64_text, base64_text.rstrip(b"="), url, url.rstrip(b"="), base58.b58encode(secret)),
    )
    escaped = (json.dumps(form.decode("latin-1")).encode()[1:-1] for form in forms)
    return (*forms, *escaped)


def remove_secrets(part: bytes, secrets: Iterable[bytes]) -> bytes:
    """A part without these secrets, without tickets, and without the name of this user's data
    directory."""
    from swarm_node.p2p.membership.ticket import PREFIX
    from swarm_node.program.caches import user_directory

    for secret in secrets:
        part = part.replace(secret, _GONE)
    if len(user_home := str(user_directory() or "")) > 1:
        part = part.replace(user_home.encode(), b"~")
    return re.sub(re.escape(PREFIX.encode()) + rb"[\w-]+", _GONE, part)
