"""Every file of a real home, damaged in every way: it starts and says what is lost, or it names the
file and what restores it. Nothing starts silently wrong, and nothing is written before."""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgpack
import pytest
from running import COMMAND, RunningNode
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.doctor import find
from swarm_node.config import Settings, load_settings
from swarm_node.errors import HomeError, MachineError
from swarm_node.node.home import file_checks
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.doctor import examine, refuse
from swarm_node.node.preflight.facts import gather
from swarm_node.node.start.join import belong
from swarm_node.node.start.resolve_names import ticket_text
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.policy.training.checkpoints.stored import newest_valid
from swarm_node.storage import LAYOUT, Storage

pytestmark = pytest.mark.slow(reason="a real node makes two updates in the home that is damaged")

ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"
FILES = (*file_checks.FILES, file_checks.RECORD)
DAMAGES = ("missing", "empty", "cut", "first bit", "middle bit", "last bit", "older", "newer")
_VERSIONS, _BITS = {"older", "newer"}, {"first bit", "middle bit", "last bit"}
#: Digests cover all bits alike, so `make test` flips the one in the middle.
OTHER_BITS = ("first bit", "last bit")
OTHER_BIT = pytest.mark.nightly(reason="another bit of the same file")
#: Damages that a file cannot have, or that nothing here can tell.
UNTOLD = {
    # Keys have no version: 32 bytes are all that they ever hold.
    **dict.fromkeys(("node.key", "root.key", "issuer.key"), _VERSIONS),
    # Nothing in this home is signed with it: the other hosts refuse another key.
    "site.key": _VERSIONS | _BITS,
    # Lines without a version or a digest, of which a crash may cut the last.
    "metrics.jsonl": _VERSIONS | _BITS | {"cut"},
}
CASES = [
    (name, damage) for name in FILES for damage in DAMAGES if damage not in UNTOLD.get(name, ())
]


def _run(home: Path, *arguments: str) -> None:
    done = CliRunner().invoke(app, [*arguments, "--home", str(home)])
    assert done.exit_code == 0, done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a founder that did everything that leaves a file, and trained."""
    place = tmp_path_factory.mktemp("damages")
    home = place / "home"
    _run(home, "init", "team a")
    for name in ("alice", "bob"):
        _run(home, *("invite", "--name", name, "--address", ADDRESS, "--out", f"{place / name}"))
    _run(home, "revoke", "alice")
    _run(home, "rotate-secret")
    _run(home, "block", "bob")
    _run(home, "delegate", "create", "--name", "hq", "--tickets", "2", "--out", f"{place / 'hq'}")
    _run(home, "delegate", "import", f"{place / 'hq'}")
    often = ("--set", "run.save_steps=1", "--set", "run.eval_tasks=1")
    node = RunningNode(home, ["--model", "tiny", "--steps", "2", *often])
    node.start()
    try:
        assert node.process.wait(250) == 0, node.log()
    finally:
        node.end()
    # A member of a ticket with few uses, and the addresses of a ticket, as a node keeps them.
    Home(home).save("admitted", msgpack.packb([(b"i" * 32, [b"s" * 32])]))
    Home(home).save("bootstrap", ADDRESS.encode())
    # A host of its trainer, a coordinator's batch, and the figures of a longer run.
    Home(home).site_key()
    Home(home).save("coordinator", b"batch")
    Home(home).metrics.write_text("{}\n")
    Home(home).record()
    assert not [name for name in FILES if not (home / name).exists()]
    yield home
    shutil.rmtree(place)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Home:
    shutil.copytree(whole, tmp_path / "home")
    return Home(tmp_path / "home")


def _settings(home: Home) -> Settings:
    flags = {"home": home.path, "run.device": "cpu", "network.listen": ["/ip4/127.0.0.1/tcp/0"]}
    return load_settings(flags, environ={})


def start(home: Home) -> tuple[list[str], str]:
    """The start of a node up to the moment at which it would train: what it says of the home, and
    why it is refused, "" if it is not."""
    settings = _settings(home)
    facts = gather(home, "cpu", settings.network.listen)
    findings = examine(facts, settings, None)
    said = [f"{item.found}: {item.remedy}" for item in findings if item.subject == "home"]
    try:
        refuse(findings)
    except MachineError as error:
        return said, str(error)
    with home.lock(), home.using_database():
        _, founded = belong(ticket_text(settings), home)
        assert not founded, "another swarm was founded over this one"
        storage = Storage(home.database)
        storage.live(1)
        storage.windows()
        storage.close()
        newest_valid(home.checkpoints)
        home.record()
    return said, ""


def doctor(home: Home) -> list[str]:
    """What `swarm-node doctor` says of the home. It writes nothing."""
    before = _tree(home)
    found = [item for item in find(_settings(home))[1] if item.subject == "home"]
    assert _tree(home) == before
    return [f"{item.found}: {item.remedy}" for item in found]


def _tree(home: Home) -> dict[str, str]:
    """Everything that lies in a home but locks, with digests."""
    return {
        str(path.relative_to(home.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(home.path.rglob("*"))
        if path.is_file() and path.name not in ("lock", "editing", "recording")
    }


def _flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 8
    path.write_bytes(raw)


def _age(home: Home, name: str, step: int) -> None:
    """Write the version before or after this one into a file."""
    path = home.path / name
    if name == "node.db":
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"PRAGMA user_version = {LAYOUT + step}")
    elif name == "checkpoints":
        for manifest in path.glob("*/manifest.msgpack"):
            stated = msgpack.unpackb(manifest.read_bytes())
            manifest.write_bytes(msgpack.packb({**stated, "format": stated["format"] + step}))
    elif name == "swarm.json":
        path.write_text(path.read_text().replace('"version": 2', f'"version": {2 + step}'))
    else:
        head, line, rest = path.read_bytes().partition(b"\n")
        path.write_bytes(head.replace(b" 1 ", f" {1 + step} ".encode()) + line + rest)


def _damage(home: Home, name: str, damage: str) -> None:
    path = home.path / name
    if damage in ("older", "newer"):
        _age(home, name, 1 if damage == "newer" else -1)
    elif damage in ("missing", "empty") and path.is_dir():
        shutil.rmtree(path)
        if damage == "empty":
            path.mkdir()
    elif damage == "missing":
        path.unlink()
    else:
        path = max(path.iterdir()) / "model.safetensors" if path.is_dir() else path
        size = path.stat().st_size
        places = {"first bit": 0, "middle bit": size // 2, "last bit": size - 1}
        if damage in places:
            _flip(path, places[damage])
        else:
            path.write_bytes(b"" if damage == "empty" else path.read_bytes()[: size // 2])


@pytest.mark.parametrize(
    ("name", "damage"),
    [pytest.param(*case, marks=OTHER_BIT if case[1] in OTHER_BITS else ()) for case in CASES],
    ids=lambda value: value.replace(" ", "-"),
)
def test_nothing_starts_silently_wrong(copy: Home, name: str, damage: str) -> None:
    key, swarm = copy.identity().peer_id, copy.swarm()
    _damage(copy, name, damage)
    before = _tree(copy)
    if damage in ("missing", "middle bit"):
        told = doctor(copy)
    said, refused = start(copy)
    if damage in ("missing", "middle bit"):
        assert told == said, "doctor and the start agree"
    if refused:
        assert _tree(copy) == before, "a refused start writes nothing"
        assert name in refused
        assert re.search("backup|upgrade|join|move|go on", refused)
        return
    # root.key belongs offline, so it may be gone; `invite` says that it is not here.
    assert any(name in text for text in said) or (name, damage) == ("root.key", "missing")
    assert copy.identity().peer_id == key
    assert copy.swarm().swarm_id == swarm.swarm_id
    assert copy.state(deep=True).state == "whole"


def test_a_whole_home_starts_without_a_word(copy: Home) -> None:
    assert start(copy) == ([f"{copy.path}: "], "")


@pytest.mark.parametrize("lost", ["swarm.json", "membership", "secret"])
@pytest.mark.parametrize("damage", ["missing", "middle bit"])
def test_a_ticket_of_the_same_swarm_restores_what_every_member_has(
    copy: Home, tmp_path: Path, lost: str, damage: str
) -> None:
    before, other = copy.membership(), Home(tmp_path / "other")
    now = time.time()
    other.found_swarm("other", now)
    limits = {"now": now, "valid_seconds": 600, "member_seconds": 600}
    same, foreign = (place.invite([ADDRESS], name="x", uses=1, **limits) for place in (copy, other))
    _damage(copy, lost, damage)
    tree = _tree(copy)
    invite = ["invite", "--name", "x", "--address", ADDRESS, "--out", str(tmp_path / "x")]
    for verb in (["init", "again"], ["id"], invite):
        done = CliRunner().invoke(app, [*verb, "--home", str(copy.path)])
        assert done.exit_code == 1
        assert lost in done.stderr or "already belongs" in done.stderr
    with pytest.raises(HomeError, match=r"--home|fit"):
        copy.join_swarm(parse_ticket(foreign, now), now)
    assert _tree(copy) == tree, "a ticket of another swarm changes nothing"
    copy.join_swarm(parse_ticket(same, now), now)
    assert copy.identity().peer_id == before.identity.peer_id
    assert copy.swarm() == before.swarm
    assert start(copy) == ([f"{copy.path}: "], "")


def test_real_processes_refuse_a_damaged_database_and_a_lost_swarm_file(copy: Home) -> None:
    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*COMMAND, *arguments, "--home", str(copy.path)], capture_output=True, text=True
        )
        assert done.returncode == 1
        return " ".join((done.stdout + done.stderr).split())

    _damage(copy, "node.db", "middle bit")
    before = _tree(copy)
    for verb in (["join", "--model", "tiny"], ["doctor"]):
        assert "node.db" in run(*verb)
    (copy.path / "swarm.json").unlink()
    del before["swarm.json"]
    said = run("join", "--model", "tiny")
    assert "swarm.json is" in said
    assert "node.db is" in said
    assert _tree(copy) == before
