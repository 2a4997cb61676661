"""A machine's facts in a file, for `plan` and `doctor` on another machine (`--facts`).

`doctor --json` writes them beside its checks, which name the home: what a model's fit depends on,
and nothing that names a person, a home or a swarm. A reader takes them alone, and trusts nothing in
them: size, then types and limits.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec

from swarm_node.durable import open_regular
from swarm_node.errors import ConfigError, reason_of
from swarm_node.node.preflight.facts import Card, Facts, Torch
from swarm_node.node.preflight.probe import MOST_MEMORY, Seen
from swarm_node.policy.placement import Hardware, ProductTimes
from swarm_node.policy.planning.fit import GpuMemory
from swarm_node.policy.sampling.vllm.engine import VllmBuild

SCHEMA = 1
_MOST_BYTES = 1 << 16
#: Subjects of `doctor` that these facts decide.
SUBJECTS = frozenset(
    {
        *("python", "gpu", "device", "dtype", "sampler", "compiler"),
        *("memory", "model", "shm", "disk"),
    }
)
_Words = Annotated[str, msgspec.Meta(max_length=300)]
_Version = Annotated[str, msgspec.Meta(max_length=16, pattern=r"\A[0-9]{1,4}(\.[0-9]{1,4})*\Z")]
_Small = Annotated[int, msgspec.Meta(ge=0, le=1000)]
_Pair = tuple[_Small, _Small]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1000)]
_OfCard = Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMORY)]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all parts of the file. It refuses unknown fields, which come from another version."""


class StoredCard(_Struct, frozen=True):
    """See `Card`."""

    name: _Words
    driver: _Words
    cuda: _Pair | None
    memory: tuple[_OfCard, _OfCard] | None


class StoredSeen(_Struct, frozen=True):
    """See `Seen` and `Hardware`."""

    gpus: _Small
    bfloat16: bool
    float16: bool
    fault: _Words
    memory: tuple[_OfCard, _OfCard] | None
    capability: _Pair | None
    unshared: _Words


class StoredTorch(_Struct, frozen=True):
    """See `Torch`."""

    version: _Words
    cuda: _Version | None


class StoredVllm(_Struct, frozen=True):
    """See `VllmBuild`."""

    name: _Words
    version: _Words
    on_cpu: bool
    torch: _Words | None


class StoredFacts(_Struct, frozen=True):
    """The part of `Facts` that a model's fit depends on."""

    system: _Words
    python: _Pair
    card: StoredCard | None
    smi_fault: _Words
    torch: StoredTorch | None
    seen: StoredSeen
    vllm: StoredVllm | None
    bitsandbytes: bool
    compiler: bool
    headers: bool
    memory: _Bytes
    shared: _Bytes | None
    temporary: _Bytes
    disk: _Bytes
    products: tuple[_Seconds, _Seconds] | None = None


class FactsFile(msgspec.Struct, frozen=True):
    """The part of `doctor --json` that is read again."""

    schema: int
    facts: StoredFacts


def to_stored(facts: Facts) -> StoredFacts:
    """Return the facts to write."""
    probe_result, card = facts.probe, facts.card
    return StoredFacts(
        system=facts.system,
        python=facts.python,
        card=None if card is None else StoredCard(*card),
        smi_fault=facts.smi_fault,
        torch=None if facts.torch is None else StoredTorch(*facts.torch),
        seen=StoredSeen(
            probe_result.hardware.gpus,
            probe_result.hardware.bfloat16,
            probe_result.hardware.float16,
            *probe_result[1:],
        ),
        vllm=None if facts.vllm is None else StoredVllm(*facts.vllm),
        bitsandbytes=facts.bitsandbytes,
        compiler=facts.compiler is not None,
        headers=facts.headers,
        memory=facts.memory,
        shared=facts.shared_memory,
        temporary=facts.temp_space,
        disk=facts.disk,
        products=facts.products,
    )


def read_facts(path: Path, home: Path) -> Facts:
    """Read what `doctor --json` wrote on another machine. What depends on a home, here `home`, and
    on a swarm is neither known nor checked.

    Raises:
        ConfigError: the file is missing, too large, or not of this version.
    """
    try:
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the facts in {path}: {reason_of(error)}") from error
    remedy = "write it with the `doctor --json > FILE` of this version"
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES:,} bytes: {remedy}")
    try:
        facts_file = msgspec.json.decode(text, type=FactsFile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} has no facts of a machine ({error}): {remedy}") from error
    if facts_file.schema != SCHEMA:
        raise ConfigError(f"{path} has schema {facts_file.schema}, not {SCHEMA}: {remedy}")
    return _facts(facts_file.facts, home)


def _facts(facts: StoredFacts, home: Path) -> Facts:
    card, probe_result, torch, vllm, now = (
        facts.card,
        facts.seen,
        facts.torch,
        facts.vllm,
        time.time(),
    )
    return Facts(
        system=facts.system,
        python=facts.python,
        card=Card(card.name, card.driver, card.cuda, _memory(card.memory)) if card else None,
        smi_fault=facts.smi_fault,
        holders=(),
        torch=Torch(torch.version, torch.cuda) if torch else None,
        probe=Seen(
            Hardware(probe_result.gpus, probe_result.bfloat16, probe_result.float16),
            probe_result.fault,
            _memory(probe_result.memory),
            probe_result.capability,
            probe_result.unshared,
        ),
        vllm=VllmBuild(vllm.name, vllm.version, vllm.on_cpu, vllm.torch) if vllm else None,
        bitsandbytes=facts.bitsandbytes,
        libp2p=True,
        extras=frozenset(),
        compiler="a C compiler" if facts.compiler else None,
        headers=facts.headers,
        memory=facts.memory,
        shared_memory=facts.shared,
        temp_space=facts.temporary,
        disk=facts.disk,
        now=now,
        installed_at=now,
        synchronized=None,
        home=home,
        is_running=False,
        busy_addresses=(),
        ticket=None,
        membership=None,
        products=ProductTimes(*facts.products) if facts.products else None,
    )


def _memory(pair: tuple[int, int] | None) -> GpuMemory | None:
    return None if pair is None else GpuMemory(*pair)
