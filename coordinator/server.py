"""Builds a coordinator from its options, and runs it until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coordinator.redemptions import Redemptions
from coordinator.routes import ADMIN, PUBLIC
from coordinator.service import Service
from coordinator.store import Store
from coordinator.web import Api, CheckedRequest
from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.durable import make_private, replace_private
from swarm_node.errors import ConfigError, HomeError, Rejected, words_of
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.membership.issuer_file import tickets_of
from swarm_node.p2p.membership.membership import SwarmInfo
from swarm_node.p2p.wire.identity import Identity
from swarm_node.page.entrance import Entrance
from swarm_node.page.files import file_response, serve_file
from swarm_node.page.listening import MAX_CONNECTIONS, MAX_OF_ADDRESS, Listening
from swarm_node.program.private_directory import PrivateDirectory

#: Seconds between two batches.
TICK_SECONDS = 60.0
ADDRESS_FILE = "admin.json"
#: Files of bearer tokens: the operator's, and the one that Prometheus reads.
TOKEN_FILE, METRICS_TOKEN_FILE = "admin.token", "metrics.token"
_MAX_SWARM_FILE = 8192
#: aiohttp logs what clients send wrong with a traceback each; here it is counted.
_UNHEARD = logging.getLogger("coordinator.http")
_UNHEARD.disabled = True
#: Prefix of the names of metrics, and the gauges.
_METRICS = "swarm_coordinator_"
_GAUGES = {
    "members": "Members that were here.",
    "introductions": "Peer records that are given to others.",
    "reports": "Members with a report.",
    "batch_number": "Number of the newest signed batch.",
    "revocation_list_number": "Number of the revocation list held.",
    "tickets_left": "Tickets that no code was redeemed for.",
}
_USED = Rejected("token", "this key was used, or is too old")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Options:
    """Options of `swarm-coordinator serve`. Listening is on (host, port)."""

    swarm: Path
    data: Path
    listen: tuple[str, int]
    admin: tuple[str, int] = ("127.0.0.1", 0)
    issuer_file: Path | None = None
    trust: tuple[str, ...] = ()
    behind_proxy: bool = False
    clock: Clock = field(default=SYSTEM_CLOCK)


class AdminAddress(msgspec.Struct, frozen=True):
    """Address of the running coordinator's admin API."""

    host: str
    port: int


async def serve(
    options: Options, stop: asyncio.Event, on_running: Callable[[int, int], None]
) -> None:
    """Run until `stop` is set. `on_running` is told both ports.

    Raises:
        SwarmNodeError: it cannot start, or the disk fails.
    """
    swarm = read_swarm(options.swarm)
    try:
        make_private(options.data)
    except OSError as error:
        raise HomeError(f"cannot make {options.data} ({error.strerror}): choose --data") from error
    store = Store(options.data / "coordinator.db")
    try:
        service = await _service(options, swarm, store)
        redemptions = Redemptions(store, swarm.swarm_id, options.clock.wall, service.holders)
        if options.issuer_file is not None:
            await redemptions.stock(tickets_of(options.issuer_file, options.clock.wall()))
        public, admin = _apis(options, service, redemptions)
        of_address = MAX_CONNECTIONS if options.behind_proxy else MAX_OF_ADDRESS
        listener = Listening(public.app, *options.listen, of_address=of_address, logger=_UNHEARD)
        admin_listener = Listening(admin.app, *options.admin, logger=_UNHEARD)
        try:
            ports = await listener.start(), await admin_listener.start()
            address = AdminAddress(options.admin[0], ports[1])
            replace_private(options.data / ADDRESS_FILE, msgspec.json.encode(address))
            on_running(*ports)
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS):
                        await stop.wait()
                await _tick(service)
        finally:
            (options.data / ADDRESS_FILE).unlink(missing_ok=True)
            await listener.close()
            await admin_listener.close()
    finally:
        store.close()


async def _tick(service: Service) -> None:
    try:
        await service.tick()
    except HomeError as error:  # a full disk may be emptied
        _log.error("nothing can be stored", error=str(error))


async def _service(options: Options, swarm: SwarmInfo, store: Store) -> Service:
    key = Identity.load_or_create(options.data / "coordinator.key")
    rng = random.Random()  # noqa: S311 - who is introduced to whom, no secret
    service = Service(swarm, key, store, PrivateDirectory(options.data), options.clock, rng)
    await service.load()
    if options.trust:
        trusted_ids = service.trusted_members().who
        await service.trust(api.Trusted([*trusted_ids, *options.trust]))
    return service


def _apis(options: Options, service: Service, redemptions: Redemptions) -> tuple[Api, Api]:
    """The public application, and that of its operator."""
    public = Api(
        PUBLIC,
        {
            "health": lambda _: api.Health("ok"),
            "introduce": lambda request: service.introduce(request.member, request.body),
            "members": lambda request: service.members(request.query.after, request.query.limit),
            "reputation": lambda _: service.reputation(),
            "redeem": lambda request: redemptions.redeem(request.body),
            "report": lambda request: service.report(request.member, request.body),
            "report_of": lambda request: service.report_of(request.path_params.peer_id),
            "history": lambda request: service.history(
                request.query.after, request.query.since, request.query.limit
            ),
            "batches": lambda request: service.batches(request.query.since),
        },
        clock=options.clock,
        authenticate=service.authenticate,
        behind_proxy=options.behind_proxy,
    )

    entrance = Entrance(options.clock.now)

    async def show_metrics(_: CheckedRequest) -> str:
        tickets = (await redemptions.codes()).tickets
        return exposition({**service.counts(), "tickets_left": tickets}, public, admin)

    admin = Api(
        ADMIN,
        {
            "metrics": show_metrics,
            "key": lambda _: entrance.key(),
            "enter": lambda request: entrance.enter(request.body) or _USED,
            "picture": lambda request: service.picture(
                request.query.after, request.query.since, request.query.limit
            ),
            "exchange": lambda _: service.exchange(),
            "log": lambda _: service.log(),
            "codes": lambda _: redemptions.codes(),
            "make_code": lambda request: redemptions.make_code(request.body),
            "withdraw": lambda request: redemptions.withdraw(request.path_params.code),
            "trusted": lambda _: service.trusted_members(),
            "trust": lambda request: service.trust(request.body),
            "forget": lambda request: service.forget(request.path_params.peer_id),
        },
        clock=options.clock,
        token=_token(options.data / TOKEN_FILE),
        metrics_token=_token(options.data / METRICS_TOKEN_FILE),
        admits=entrance.admits,
    )
    admin.app.router.add_get("/", _page, allow_head=False)
    admin.app.router.add_get("/static/{name}", serve_file, allow_head=False)
    return public, admin


async def _page(_: web.Request) -> web.Response:
    return file_response("swarm.html")


def read_swarm(path: Path) -> SwarmInfo:
    """The swarm that a file describes: a TOML file with `name` and `root_key`, as `swarm-node id
    --swarm-file` prints it, or the swarm.json of a home. Nothing here uses the secret.

    Raises:
        ConfigError, HomeError: it describes none.
    """
    if path.suffix == ".json":
        return SwarmInfo.load(path)
    try:
        with path.open(encoding="utf-8") as file:
            document = tomllib.loads(file.read(_MAX_SWARM_FILE))
        return SwarmInfo(str(document["name"]), bytes.fromhex(str(document["root_key"])), bytes(32))
    except (OSError, ValueError, KeyError) as error:  # of TOML too
        reason = f"it has no {error.args[0]}" if isinstance(error, KeyError) else words_of(error)
        raise ConfigError(
            f"--swarm {path} is no swarm file ({reason}): make one with "
            "`swarm-node id --swarm-file > swarm.toml`"
        ) from error


def _token(path: Path) -> str:
    """A new token in a file. It ends with this run: while no coordinator runs, another user of the
    machine could listen at its port and receive the token."""
    token = secrets.token_urlsafe(32)
    replace_private(path, token.encode())
    return token


def exposition(gauges: Mapping[str, float], *apis: Api) -> str:
    """The text of `GET /metrics`, for Prometheus. No name or id of a member is a label."""
    registry = CollectorRegistry()
    registry.register(_CoordinatorCollector(gauges, apis))
    return generate_latest(registry).decode()


class _CoordinatorCollector:
    def __init__(self, gauges: Mapping[str, float], apis: Iterable[Api]) -> None:
        self._gauges = gauges
        self._apis = list(apis)

    def collect(self) -> Iterator[Metric]:
        for name, description in _GAUGES.items():
            yield GaugeMetricFamily(_METRICS + name, description, value=self._gauges[name])
        requests = _counter("requests", "Requests.", "operation", "status")
        seconds = _counter("request_seconds", "From a request's head to its response.", "operation")
        refusals = _counter("refused", "Requests that were refused.", "reason")
        reasons: Counter[str] = Counter()
        for application in self._apis:
            for (operation, status), count in sorted(application.request_counts.items()):
                requests.add_metric([operation, str(status)], count)
            for operation, duration in sorted(application.seconds.items()):
                seconds.add_metric([operation], duration)
            reasons.update(application.refusals)
        for reason, count in sorted(reasons.items()):
            refusals.add_metric([reason], count)
        yield from (requests, seconds, refusals)


def _counter(name: str, description: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(_METRICS + name, description, labels=labels)
