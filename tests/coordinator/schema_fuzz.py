"""Requests that Schemathesis makes by the types of the routes, signed as members and as the
operator do. No answer may be a 5xx but 500 and 503, and each must be of its type.

`make fuzz-coordinator` runs it; Schemathesis is no dependency of the project.
"""

from __future__ import annotations

import atexit
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import requests
import schemathesis
from coordinator_runs import authorization, swarm_file
from hypothesis import HealthCheck, settings
from swarm_keys import Swarm

from coordinator.routes import ADMIN, PUBLIC, Route
from swarm_node.node.home.home import Membership
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.wire.identity import Identity

_EXAMPLES = int(os.environ.get("EXAMPLES", "300"))
_SWARM = Swarm(begin=int(time.time()) - 60)
_ISSUERS = [_SWARM.issuer(f"ticket {n}") for n in range(64)]
_RNG = random.Random(0)
_PROBLEMS = (400, 401, 403, 404, 405, 408, 409, 410, 413, 422, 429, 500, 503)


def _start(place: Path) -> tuple[str, str, str]:
    """URLs of a coordinator for members and its operator, and the operator's token."""
    command = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--behind-proxy"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from coordinator.main import app; app()", "serve"),
            *("--swarm", str(swarm_file(place, _SWARM)), "--data", str(place), *command),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    assert process.stdout is not None
    members, operator = (process.stdout.readline().split()[1] for _ in range(2))
    return members, operator, (place / "admin.token").read_text()


_MEMBERS, _OPERATOR, _TOKEN = _start(Path(tempfile.mkdtemp()))


def _schema(url: str, routes: Sequence[Route]) -> schemathesis.BaseSchema:
    """An OpenAPI document of these routes, without signatures: every request gets one here, and
    test_server.py has who may ask."""
    types = {api.Problem}
    for route in routes:
        types |= {
            each for each in (route.answer, route.body, route.query, route.path_params) if each
        }
    _, schemas = msgspec.json.schema_components(
        sorted(types, key=lambda each: each.__name__), ref_template="#/components/schemas/{name}"
    )

    def content(media: str, of: type[msgspec.Struct] | None) -> dict[str, Any]:
        where = {"$ref": f"#/components/schemas/{of.__name__}"} if of else {"type": "string"}
        return {"content": {media: {"schema": where}}}

    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        problem = {"description": "", **content("application/problem+json", api.Problem)}
        media = "application/json" if route.answer else "text/plain"
        done = {"description": "", **content(media, route.answer)}
        operation = paths.setdefault(route.path, {})[route.method.lower()] = {
            "operationId": route.operation,
            "parameters": [
                {"name": name, "in": where, "required": where == "path", "schema": described}
                for where, type_ in (("path", route.path_params), ("query", route.query))
                for name, described in schemas[type_.__name__].get("properties", {}).items()
            ],
            "responses": {"200": done, **dict.fromkeys(map(str, _PROBLEMS), problem)},
        }
        if route.body is not None:
            body = content("application/json", route.body)
            operation["requestBody"] = {"required": True, **body}
    schema = schemathesis.openapi.from_dict(
        {
            "openapi": "3.1.0",
            "info": {"title": "coordinator", "version": "1"},
            "paths": paths,
            "components": {"schemas": schemas},
        }
    )
    schema.config.update(base_url=url)
    # A body that is too long for the server is refused before it is read.
    schema.config.checks.negative_data_rejection.expected_statuses += ["413"]
    return schema


_PUBLIC, _ADMIN = _schema(_MEMBERS, PUBLIC), _schema(_OPERATOR, ADMIN)


class _Signed(requests.auth.AuthBase):
    """Signs as another new member each time, from another address, which has used up no limit."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        number = _RNG.randrange(len(_ISSUERS))
        identity = Identity.generate()
        chain = _SWARM.chain(identity, _ISSUERS[number], f"ticket {number}", begin=30)
        member = Membership(identity, _SWARM.info, chain)
        body = request.body or b""
        sent = body.encode() if isinstance(body, str) else body
        assert isinstance(sent, bytes), type(sent)
        parts = urlsplit(str(request.url))
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        if len(target) <= 256:
            signed = authorization(member, str(request.method), target, sent, time.time(), {})
            request.headers["Authorization"] = signed
        return _elsewhere(request)


class _Token(requests.auth.AuthBase):
    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {_TOKEN}"
        return _elsewhere(request)


def _elsewhere(request: requests.PreparedRequest) -> requests.PreparedRequest:
    request.headers["X-Forwarded-For"] = ".".join(str(_RNG.randrange(1, 255)) for _ in range(4))
    return request


_HOW = settings(
    max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@_PUBLIC.parametrize()
@_HOW
def test_members(case: schemathesis.Case) -> None:
    case.call_and_validate(auth=_Signed(), excluded_checks=_EXCLUDED)


@_ADMIN.parametrize()
@_HOW
def test_operator(case: schemathesis.Case) -> None:
    case.call_and_validate(auth=_Token(), excluded_checks=_EXCLUDED)


#: Refused requests that fit the schema are right here: codes and presences are checked for more.
_EXCLUDED = [schemathesis.checks.CHECKS.get_one("positive_data_acceptance")]
