"""docs/schemas/*.json, written from the types of what commands print: `make settings-page`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarm_node.config.reloading import Reloaded
from swarm_node.library.measuring import CheckpointsReport
from swarm_node.node.metrics.history import HistoryReport
from swarm_node.node.metrics.samples import SamplesReport
from swarm_node.node.metrics.snapshot import EvalPoint, NetworkReport, Snapshot
from swarm_node.page.event_log import EventReport

PLACE = Path(__file__).resolve().parents[2] / "docs" / "schemas"
#: File name -> the type that it describes.
TYPES = {
    "status": Snapshot,
    "eval": EvalPoint,
    "checkpoints": CheckpointsReport,
    "samples": SamplesReport,
    "history": HistoryReport,
    "log": EventReport,
    "network": NetworkReport,
    "reload": Reloaded,
}


def schema(name: str) -> str:
    """The JSON Schema (2020-12) of one of these."""
    type_schema = msgspec.json.schema(TYPES[name])
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **type_schema}
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    for name in TYPES:
        (PLACE / f"{name}.json").write_text(schema(name))
