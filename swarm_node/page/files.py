"""The static files of the page. Names were read at the start; no path of a request reaches the file
system."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

from aiohttp import web

_KINDS: Final[Mapping[str, str]] = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
_HEAD: Final = "head.html"
#: Scripts and styles of this server alone, requests to it alone, no frames, no forms.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@cache
def files() -> Mapping[str, tuple[str, bytes]]:
    """Name -> content type and bytes. A page is its own part below the head of all pages."""
    place = resources.files(__package__) / "static"
    head, assets = (place / _HEAD).read_bytes(), dict[str, tuple[str, bytes]]()
    for entry in place.iterdir():
        name, _, end = entry.name.rpartition(".")
        if end in _KINDS and entry.name != _HEAD:
            page_head = head.replace(b"NAME", name.encode()) if end == "html" else b""
            assets[entry.name] = _KINDS[end], page_head + entry.read_bytes()
    return assets


async def serve_file(request: web.Request) -> web.Response:
    """`/` is the page itself; other names are its parts.

    Raises:
        HTTPNotFound: there is no such part.
    """
    return file_response(request.match_info.get("name", "node.html"))


def file_response(name: str) -> web.Response:
    """A file of the pages.

    Raises:
        HTTPNotFound: there is none of this name.
    """
    asset = files().get(name)
    if asset is None:
        raise web.HTTPNotFound(text="no such file")
    kind, content = asset
    return web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)
