"""The local control API of a running node, and its client for the CLI.

The server listens on loopback only, on a port of its own choice. Requests carry a bearer token,
which is written with mode 0600 next to the port: a process that can read the home directory can use
the API. The Host header is checked against DNS rebinding by web pages.

    GET  /v1/status     the snapshot          POST /v1/eval   measure unseen and seen now
    GET  /v1/network    ask members how this node is reached
    GET  /v1/history    rows of the history, those after the Unix second `since`
    GET  /v1/samples    some answers, own and peers'
    GET  /v1/log        events of peers, as this node saw them
    GET  /v1/settings   the settings in force, without the ticket
    GET  /v1/charts     the charts of a page, of which rows of the history are the points
    GET  /v1/events     what a page shows, every two seconds
    GET  /metrics       figures for Prometheus; `metrics.token` opens this path alone
    POST /v1/ping       one round trip to a peer
    POST /v1/stop       leave cleanly         POST /v1/key    a key with which a page gets in
    POST /v1/reload     read the settings again, and take over those that need no restart
    GET  /              the page, for anybody who can connect; it shows what its pass lets it ask
    POST /v1/enter      exchange a key for a pass; a pass is good for GET, but for /v1/network
    GET  /v1/models     and what else `openai.py` serves; `openai.token` opens these paths alone
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from swarm_node.config.reloading import Reloaded
from swarm_node.durable import open_regular, replace_private
from swarm_node.errors import (
    ConfigError,
    HomeError,
    SlowNodeError,
    SwarmNodeError,
    reason_of,
)
from swarm_node.node.control.openai import (
    MODELS,
    TOKEN_FILE,
    ModelList,
    OpenAIServer,
    ServedAt,
    is_openai,
)
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.history import CHARTS, HistoryReport
from swarm_node.node.metrics.samples import SampleRow, SamplesReport
from swarm_node.node.metrics.snapshot import SCHEMA, EvalPoint, NetworkReport, PingReport, Snapshot
from swarm_node.page.entrance import Entrance, Key, bearer, decode_answer, is_local, is_one_of
from swarm_node.page.event_log import EventReport
from swarm_node.page.events import Events
from swarm_node.page.files import serve_file
from swarm_node.page.listening import Listening

MAX_BODY = 64 * 1024
#: The longest time that a ping waits for an answer, and what finding the peer may take besides.
MAX_PING_SECONDS = 60.0
_FINDING_SECONDS = 30.0
_BODY_SECONDS = 10.0
_Body = TypeVar("_Body")
_NETWORK = "/v1/network"
_MAX_ANSWER = 16 * 1024 * 1024
_PATIENCE = 10.0
#: A node that stops stores a checkpoint first.
LEAVE_SECONDS = 60.0
_LEAVE_POLL_SECONDS = 0.1
#: Access for Prometheus: the path, the file of its token, and the file with the node's address
#: (file_sd_configs).
_METRICS, _METRICS_TOKEN, _TARGET = "/metrics", "metrics.token", "prometheus.json"


class _Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    token: Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[A-Za-z0-9_-]+\Z")]
    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class PingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/ping`: a peer, and the seconds that it has to answer."""

    peer_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    seconds: Annotated[float, msgspec.Meta(ge=1.0, le=MAX_PING_SECONDS)]


class SettingsReport(msgspec.Struct, frozen=True):
    """The reply to `GET /v1/settings`: the values in force by their keys."""

    schema: int
    settings: Mapping[str, Any]


class ControlServer:
    """Serves the control API for as long as it is started."""

    def __init__(
        self,
        file: Path,
        *,
        snapshot: Callable[[], Snapshot],
        history: Callable[[float], HistoryReport],
        network: Callable[[], Awaitable[NetworkReport]],
        evaluate: Callable[[], Awaitable[EvalPoint]],
        ping: Callable[[str, float], Awaitable[PingReport]],
        stop: Callable[[], None],
        reload: Callable[[], Reloaded],
        samples: Callable[[], Sequence[SampleRow]] = tuple,
        settings: Callable[[], Mapping[str, Any]] = dict,
        log: Callable[[], EventReport] = EventReport.empty,
        openai: OpenAIServer | None = None,
    ) -> None:
        self._file = file
        self._snapshot = snapshot
        self._history = history
        self._network = network
        self._evaluate = evaluate
        self._ping = ping
        self._stop = stop
        self._reload = reload
        self._samples = samples
        self._settings = settings
        self._log = log
        self._openai = openai
        self._token, self._metrics_token, self._openai_token = (
            secrets.token_urlsafe(32) for _ in range(3)
        )
        self._entrance = Entrance(time.monotonic)
        self._events = Events(self._news)
        self._listener: Listening | None = None

    async def start(self) -> None:
        """Listen and write the address file.

        Raises:
            HomeError: the file cannot be written.
            MachineError: it cannot listen.
        """
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY)
        app.add_routes(
            [
                web.get("/v1/status", self._get_status),
                web.get(_NETWORK, self._get_network),
                web.get("/v1/history", self._get_history),
                web.get("/v1/samples", self._get_samples),
                web.get("/v1/log", self._get_log),
                web.get("/v1/settings", self._get_settings),
                web.get("/v1/charts", self._get_charts),
                web.get("/v1/events", self._events.serve),
                web.get(_METRICS, self._get_metrics),
                web.post("/v1/key", self._post_key),
                web.post("/v1/enter", self._post_enter),
                web.get("/", serve_file),
                web.get("/static/{name}", serve_file),
                web.post("/v1/eval", self._post_eval),
                web.post("/v1/ping", self._post_ping),
                web.post("/v1/stop", self._post_stop),
                web.post("/v1/reload", self._post_reload),
                *(self._openai.routes() if self._openai is not None else []),
            ]
        )
        self._listener = Listening(app, "127.0.0.1", 0)
        port = await self._listener.start()
        address = _Address(port=port, token=self._token, pid=os.getpid())
        try:
            replace_private(self._file, msgspec.json.encode(address))
            replace_private(self._beside(_METRICS_TOKEN), self._metrics_token.encode())
            target = [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"home": self._file.parent.name}}
            ]
            replace_private(self._beside(_TARGET), msgspec.json.encode(target))
            if self._openai is not None:
                replace_private(self._beside(TOKEN_FILE), self._openai_token.encode())
        except OSError as error:
            await self._listener.close()
            self._listener = None
            raise HomeError(f"cannot write {self._file}: {error.strerror}") from error

    async def close(self) -> None:
        """Stop listening and take the address file away."""
        if self._listener is not None:
            for name in (self._file.name, _METRICS_TOKEN, _TARGET, TOKEN_FILE):
                self._beside(name).unlink(missing_ok=True)
            self._events.end()
            if self._openai is not None:
                self._openai.end()
            await self._listener.close()
            self._listener = None

    def _beside(self, name: str) -> Path:
        return self._file.with_name(name)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not is_local(request.host):
            raise web.HTTPForbidden(text="wrong Host header")
        if request.match_info.handler is serve_file or request.path == "/v1/enter":
            return await handler(request)
        token = bearer(request.headers.get("Authorization", ""))
        tokens = [self._token, *([self._metrics_token] if request.path == _METRICS else [])]
        if is_openai(request.path):
            tokens.append(self._openai_token)
        looks = request.method == "GET" and request.path != _NETWORK  # which has members work
        if not is_one_of(token, tokens) and not (looks and self._entrance.admits(token)):
            raise web.HTTPUnauthorized(text="missing or wrong token")
        return await handler(request)

    async def _post_key(self, _: web.Request) -> web.Response:
        return _json(self._entrance.key())

    async def _post_enter(self, request: web.Request) -> web.Response:
        """Exchange the key in the body for a pass. A key in the URL would stay in the browser's
        history."""
        page_pass = self._entrance.enter(await _body(request, Key))
        if page_pass is None:
            raise web.HTTPUnauthorized(text="this key was used, or is too old")
        return _json(page_pass)

    def _news(self, last_eval: float | None) -> tuple[Snapshot, float]:
        """Return the snapshot, with the evaluations that this page has not received yet."""
        now = self._snapshot()
        new = [point for point in now.evals if last_eval is None or point.seconds > last_eval]
        last = now.evals[-1].seconds if now.evals else 0.0
        return msgspec.structs.replace(now, evals=new), last

    async def _get_status(self, _: web.Request) -> web.Response:
        return _json(self._snapshot())

    async def _get_samples(self, _: web.Request) -> web.Response:
        return _json(SamplesReport(SCHEMA, list(self._samples())))

    async def _get_log(self, _: web.Request) -> web.Response:
        return _json(self._log())

    async def _get_settings(self, _: web.Request) -> web.Response:
        return _json(SettingsReport(SCHEMA, self._settings()))

    async def _get_charts(self, _: web.Request) -> web.Response:
        return _json(CHARTS)

    async def _get_history(self, request: web.Request) -> web.Response:
        try:
            start_time = float(request.query.get("since", 0))
        except ValueError:
            raise web.HTTPBadRequest(text="since is a time in Unix seconds") from None
        return _json(self._history(start_time))

    async def _get_metrics(self, _: web.Request) -> web.Response:
        from swarm_node.node.control.prometheus import CONTENT_TYPE, exposition

        return web.Response(
            body=exposition(self._snapshot()), headers={"Content-Type": CONTENT_TYPE}
        )

    async def _get_network(self, _: web.Request) -> web.Response:
        return await self._answer(self._network)

    async def _post_eval(self, _: web.Request) -> web.Response:
        return await self._answer(self._evaluate)

    async def _post_ping(self, request: web.Request) -> web.Response:
        ping = await _body(request, PingRequest)
        return await self._answer(lambda: self._ping(ping.peer_id, ping.seconds))

    async def _answer(self, work: Callable[[], Awaitable[Any]]) -> web.Response:
        try:
            return _json(await work())
        except SwarmNodeError as error:
            return web.Response(status=503, text=str(error))

    async def _post_stop(self, _: web.Request) -> web.Response:
        self._stop()
        return _json({"stopping": True})

    async def _post_reload(self, _: web.Request) -> web.Response:
        try:
            return _json(self._reload())
        except ConfigError as error:
            return web.Response(status=409, text=str(error))


class ControlClient:
    """Talks to the node that runs in one home."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pid(self) -> int:
        """The node's process id.

        Raises:
            NotRunningError: nothing runs there.
        """
        return self._address().pid

    async def status(self) -> Snapshot:
        """The node's snapshot.

        Raises:
            NotRunningError: nothing runs there, or it does not answer.
        """
        return decode_answer(await self._call("GET", "/v1/status"), Snapshot)

    async def history(self, start_time: float = 0.0) -> HistoryReport:
        """The rows of the node's history after the Unix second `start_time`.

        Raises:
            NotRunningError: nothing runs there, or it does not answer.
        """
        return decode_answer(
            await self._call("GET", f"/v1/history?since={start_time!r}"), HistoryReport
        )

    async def samples(self) -> SamplesReport:
        """Some answers of the node and its peers.

        Raises:
            NotRunningError: nothing runs there, or it does not answer.
        """
        return decode_answer(await self._call("GET", "/v1/samples"), SamplesReport)

    async def network(self) -> NetworkReport:
        """Return how members reach the node now. It asks members, which takes seconds.

        Raises:
            NotRunningError: nothing runs there, or it does not answer.
        """
        return decode_answer(await self._call("GET", _NETWORK, 60), NetworkReport)

    async def fetch_openai_access(self) -> ServedAt:
        """Return the access of OpenAI's clients, and the model that answers them.

        Raises:
            NotRunningError: nothing runs there, or it does not answer.
        """
        port = self._address().port
        models = decode_answer(await self._call("GET", MODELS), ModelList)
        return ServedAt(
            f"http://127.0.0.1:{port}/v1", self._file.with_name(TOKEN_FILE), models.data[0]
        )

    async def evaluate(self) -> EvalPoint:
        """Have the node measure reward on unseen and on seen texts now."""
        return decode_answer(await self._call("POST", "/v1/eval", 300), EvalPoint)

    async def ping(self, peer_id: str, seconds: float) -> PingReport:
        """Have the node make one round trip to a peer, which has `seconds` to answer.

        Raises:
            NotRunningError: nothing runs there, or it does not answer.
            SwarmNodeError: the node does not know this peer.
        """
        request, patience = PingRequest(peer_id, seconds), seconds + _FINDING_SECONDS
        return decode_answer(await self._call("POST", "/v1/ping", patience, request), PingReport)

    async def reload(self) -> Reloaded:
        """Have the node read its settings again.

        Raises:
            NotRunningError: nothing runs there, or it does not answer.
            SwarmNodeError: they are refused, and stay as they are.
        """
        return decode_answer(await self._call("POST", "/v1/reload"), Reloaded)

    async def page(self) -> str:
        """Return a URL that opens the page in a browser; it is valid for one minute and one use."""
        port = self._address().port
        key = decode_answer(await self._call("POST", "/v1/key"), Key)
        return f"http://127.0.0.1:{port}/#{key.key}"

    async def stop(self) -> None:
        """Ask the node to leave; returns at once."""
        await self._call("POST", "/v1/stop")

    async def leave(self, seconds: float = LEAVE_SECONDS) -> None:
        """Ask the node to leave, and return once it has stored its checkpoint and left.

        Raises:
            NotRunningError: nothing runs there, or it does not answer.
            SlowNodeError: it has not left after these `seconds`; it goes on leaving.
        """
        await self.stop()
        deadline = time.monotonic() + seconds
        while self._file.exists():
            if time.monotonic() > deadline:
                raise SlowNodeError(
                    f"the node (process {self.pid()}) is still stopping after {seconds:g} s"
                )
            await asyncio.sleep(_LEAVE_POLL_SECONDS)

    def openai(self) -> tuple[str, str]:
        """The node's URL and the key of OpenAI's paths, as its files have them now.

        Raises:
            NotRunningError: nothing runs there.
            HomeError: a file cannot be read.
        """
        port, file = self._address().port, self._file.with_name(TOKEN_FILE)
        try:
            with open_regular(file) as token_file:
                return f"http://127.0.0.1:{port}", token_file.read(MAX_BODY).decode(
                    "ascii", "replace"
                )
        except FileNotFoundError:
            raise Home(self._file.parent).not_running() from None
        except OSError as error:
            raise HomeError(f"cannot read {file}: {reason_of(error)}") from error

    def _address(self) -> _Address:
        try:
            with open_regular(self._file) as file:
                return decode_answer(file.read(MAX_BODY), _Address)
        except FileNotFoundError:
            raise Home(self._file.parent).not_running() from None
        except (OSError, SwarmNodeError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else error
            raise HomeError(f"cannot read {self._file}: {reason}") from error

    async def _call(
        self, method: str, path: str, patience: float | None = None, body: Any = None
    ) -> bytes:
        address, patience = self._address(), patience or _PATIENCE
        url = f"http://127.0.0.1:{address.port}{path}"
        headers = {"Authorization": f"Bearer {address.token}"}
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                ClientSession(timeout=ClientTimeout(total=patience)) as session,
                session.request(
                    method, url, headers=headers, data=data, allow_redirects=False
                ) as response,
            ):
                answer = bytearray()
                async for chunk in response.content.iter_chunked(MAX_BODY):
                    answer += chunk
                    if len(answer) > _MAX_ANSWER:
                        raise Home(self._file.parent).not_running()
                if response.status == 401:  # another program took the port of a node that died
                    raise Home(self._file.parent).not_running()
                if response.status != 200:
                    message = answer[:500].decode("utf-8", "replace")
                    text = "".join(c if c.isprintable() else " " for c in message)
                    raise SwarmNodeError(f"the node answered {response.status}: {text}")
                return bytes(answer)
        except ClientError:
            raise Home(self._file.parent).not_running() from None
        except TimeoutError:
            raise SlowNodeError(
                f"the node in {self._file.parent} (process {address.pid}) did not answer "
                f"in {patience:g} s"
            ) from None


async def _body(request: web.Request, kind: type[_Body]) -> _Body:
    """Read the body of a request, which arrives at once."""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return msgspec.json.decode(await request.read(), type=kind)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not what this path takes") from None
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the body arrives at once") from None


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
