"""A machine as `doctor` sees it, from which tests make others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from swarm_node.config import Settings, load_settings
from swarm_node.node.preflight.facts import Facts, Torch
from swarm_node.node.preflight.probe import Seen
from swarm_node.policy.placement import Hardware

GB, DAY = 10**9, 86_400
NOW = 1_795_000_000.0
NO_GPU = Seen(Hardware(0, False))
LAPTOP = Facts(
    system="Linux",
    python=(3, 11),
    card=None,
    smi_fault="",
    holders=(),
    torch=Torch("2.13.0+cpu", None),
    probe=NO_GPU,
    vllm=None,
    bitsandbytes=False,
    libp2p=False,
    extras=frozenset({"reasoning_gym"}),
    compiler=None,
    headers=False,
    memory=12 * GB,
    shared_memory=6 * GB,
    temp_space=50 * GB,
    disk=50 * GB,
    now=NOW,
    installed_at=NOW - 30 * DAY,
    synchronized=True,
    home=Path("/home/somebody/swarm-node"),
    is_running=False,
    busy_addresses=(),
    ticket=None,
    membership=None,
)


def put_smi_first(place: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a program in `place` be found as nvidia-smi before any other, with all cards visible."""
    program = place / "nvidia-smi"
    program.write_text(text)
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def settings_of(**flags: Any) -> Settings:
    """Settings with these flags, whose names have `__` for a dot, and none of the environment."""
    keys = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(keys, environ={})
