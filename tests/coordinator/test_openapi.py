"""The document says what the routes do."""

from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_runs import Hand, coordinator, found, sealed_report
from jsonschema import Draft202012Validator
from swarm_keys import Swarm

from coordinator.routes import ADMIN, PUBLIC, Route, openapi
from coordinator.web import Api
from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.simulation.seeded import EPOCH


@pytest.mark.parametrize("routes", [PUBLIC, ADMIN])
def test_the_document_has_exactly_the_routes_that_are_served(routes: tuple[Route, ...]) -> None:
    document = openapi(routes, "x")
    assert document["openapi"] == "3.1.0"
    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }

    async def nothing(_: object) -> None:
        return None

    made = Api(routes, {r.operation: nothing for r in routes}, title="x", clock=SYSTEM_CLOCK)
    served = {
        (route.method, (route.resource.canonical if route.resource else ""))
        for route in made.app.router.routes()
    }
    assert served == described | {("GET", "/v1/openapi.json")}
    operations = [
        item["operationId"] for path in document["paths"].values() for item in path.values()
    ]
    assert len(set(operations)) == len(operations) == len(routes)


async def test_answers_are_as_the_document_says(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    one, two = swarm.member(1), swarm.member(2)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        _, document = await running.ask("GET", "/v1/openapi.json")
        report = sealed_report(one, EPOCH + 10, peers=(found(two, 5, signature=1),))
        presence = api.Introduction(swarm.presence(one, 10.0))
        for method, target, path, body in (
            ("GET", "/v1/health", "/v1/health", None),
            ("POST", "/v1/introductions", "/v1/introductions", presence),
            ("POST", "/v1/reports", "/v1/reports", report),
            ("POST", "/v1/reports", "/v1/reports", report),
            ("GET", "/v1/members", "/v1/members", None),
            ("GET", f"/v1/reports/{one.identity.peer_id}", "/v1/reports/{peer_id}", None),
            ("GET", f"/v1/reports/{two.identity.peer_id}", "/v1/reports/{peer_id}", None),
            ("GET", "/v1/history", "/v1/history", None),
            ("GET", "/v1/reputation", "/v1/reputation", None),
            ("GET", "/v1/batches", "/v1/batches", None),
            ("POST", "/v1/redemptions", "/v1/redemptions", None),
        ):
            status, answer = await running.ask(method, target, body, by=one)
            responses = document["paths"][path][method.lower()]["responses"]
            (content,) = responses[str(status)]["content"].values()
            whole = {**content["schema"], "components": document["components"]}
            Draft202012Validator(whole).validate(answer)
