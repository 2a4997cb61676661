"""The schemas of what commands print are those of the types now."""

from __future__ import annotations

import json

import msgspec
import pytest
from builders import quiet_snapshot
from jsonschema import Draft202012Validator
from schemas import PLACE, TYPES, schema


@pytest.mark.parametrize("name", TYPES)
def test_a_schema_is_what_the_type_says_now(name: str) -> None:
    assert (PLACE / f"{name}.json").read_text() == schema(name), "run `make settings-page`"
    Draft202012Validator.check_schema(json.loads(schema(name)))


def test_a_status_is_as_its_schema_says() -> None:
    said = json.loads(msgspec.json.encode(quiet_snapshot()))
    checker = Draft202012Validator(json.loads(schema("status")))
    checker.validate(said)
    assert list(checker.iter_errors({**said, "peers": 3}))
