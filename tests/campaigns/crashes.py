"""Cuts the power at every step of every writer of small files and of checkpoints.

    PYTHONPATH=tests python -m campaigns.crashes

In every state that `power.py` makes, a start must find a whole old or a whole new state, and the
new one if the writer had returned. SQLite has a crash test of its own; weights of the sampler are
gone with the process.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaigns.kill_child import NOW, state
from campaigns.power import DiskRecorder

from swarm_node.durable import LEFTOVERS, create_private, replace_private
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.wire.identity import Identity
from swarm_node.policy.training.checkpoints import checkpoint
from swarm_node.policy.training.checkpoints.stored import newest_valid


@dataclass(frozen=True)
class Writer:
    """`prepare` makes what is there before, `write` is what the power cut interrupts, and `look`
    raises unless what is left is sound. Its second argument is true if `write` had returned."""

    name: str
    prepare: Callable[[Path], object]
    write: Callable[[Path], object]
    look: Callable[[Path, bool], object]


OLD, NEW = b"old " * 2000, b"new!" * 3000


def writers() -> list[Writer]:
    owner = tempfile.mkdtemp(prefix="swarm-node-crashes-")
    founder = Home(Path(owner))
    founder.found_swarm("team", NOW)
    invitation = founder.invite([], now=NOW, valid_seconds=600, member_seconds=600)
    ticket = parse_ticket(invitation, NOW)
    return [
        Writer(
            "a file replaced",
            lambda place: replace_private(place / "file", OLD),
            lambda place: replace_private(place / "file", NEW),
            lambda place, done: _is((place / "file").read_bytes(), NEW if done else (OLD, NEW)),
        ),
        Writer(
            "a file made",
            lambda place: None,
            lambda place: create_private(place / "file", NEW),
            lambda place, done: _is(
                (place / "file").read_bytes() if (place / "file").exists() else None,
                NEW if done else (None, NEW),
            ),
        ),
        Writer("a key", lambda place: None, _make_key, _find_key),
        Writer("a swarm founded", lambda place: None, _found, _find_founded),
        Writer("a swarm founded in a home of its own", _make_home, _found, _find_founded),
        Writer(
            "a swarm joined",
            lambda place: None,
            lambda place: Home(place / "home").join_swarm(ticket, NOW),
            lambda place, done: _find_joined(place, done, ticket),
        ),
        Writer(
            "a swarm joined again",
            lambda place: Home(place / "home").join_swarm(ticket, NOW),
            lambda place: Home(place / "home").join_swarm(ticket, NOW + 60),
            lambda place, done: Home(place / "home").membership(),
        ),
        Writer("a port", _make_home, lambda place: Home(place / "home").port(), _find_port),
        Writer("a first checkpoint", lambda place: None, _save(1), _find_checkpoint(0, 1)),
        Writer("a second checkpoint", _save(1), _save(2), _find_checkpoint(1, 2)),
        Writer("the same checkpoint again", _save(2), _save(2), _find_checkpoint(2, 2)),
        Writer(
            "a checkpoint that makes others go",
            lambda place: [_save(version)(place) for version in (1, 2)],
            lambda place: checkpoint.save(place / "checkpoints", state(3), limit=2),
            _find_checkpoint(2, 3),
        ),
    ]


def _is(found: object, wanted: object) -> None:
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert found in wanted, "neither the old nor the new content"


def _make_home(place: Path) -> None:
    Home(place / "home").create()


def _make_key(place: Path) -> None:
    key = Identity.load_or_create(place / "node.key")
    (place.parent / f"{place.name}.peer").write_text(key.peer_id)


def _find_key(place: Path, done: bool) -> None:
    had = (place / "node.key").exists()
    key = Identity.load_or_create(place / "node.key")
    written = place.parent / "work.peer"
    if done:
        assert had, "the key is lost"
    if had and written.exists():
        assert key.peer_id == written.read_text()


def _found(place: Path) -> None:
    Home(place / "home").found_swarm("team", NOW)


def _find_founded(place: Path, done: bool) -> None:
    home = Home(place / "home")
    with home.lock():
        assert not list(home.path.glob(LEFTOVERS))
    if done:
        assert home.is_owner, "the root's key is lost"
        home.membership()
        home.invite([], now=NOW, valid_seconds=60, member_seconds=60)
    elif home.has_swarm:
        home.membership()
    else:
        home.found_swarm("team", NOW)


def _find_joined(place: Path, done: bool, ticket: object) -> None:
    home = Home(place / "home")
    assert home.has_swarm or not done, "the membership is lost"
    if not home.has_swarm:
        home.join_swarm(ticket, NOW)  # type: ignore[arg-type]
    home.membership()
    home.bootstraps()


def _find_port(place: Path, done: bool) -> None:
    home = Home(place / "home")
    if done:
        assert home.kept_port(), "the port is lost"
    assert home.port() == home.kept_port()


def _save(version: int) -> Callable[[Path], object]:
    return lambda place: checkpoint.save(place / "checkpoints", state(version))


def _find_checkpoint(before: int, after: int) -> Callable[[Path, bool], None]:
    def look(place: Path, done: bool) -> None:
        root = place / "checkpoints"
        checkpoint.remove_leftovers(root)
        newest = newest_valid(root)
        version = 0 if newest is None else checkpoint.read(newest).version
        assert version == after or (not done and version == before), f"found version {version}"
        checkpoint.save(root, state(after + 1))  # training goes on

    return look


def enumerate_states(writer: Writer, seed: int, most: int) -> tuple[int, list[str]]:
    """(states, what was wrong with them)."""
    wrong = []
    states = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        writer.prepare(work)
        recorder = DiskRecorder(work)
        recorder.record(lambda: writer.write(work))
        for done, make in recorder.states(random.Random(seed), most):
            states += 1
            with tempfile.TemporaryDirectory(dir=folder) as found:
                make(Path(found))
                try:
                    writer.look(Path(found), done)
                except Exception as error:  # noqa: BLE001 - every one is what this program looks for
                    wrong.append(f"{type(error).__name__}: {error}".replace(found, "."))
    return states, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=300, help="states after one step")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    total = defects = 0
    for writer in writers():
        states, wrong = enumerate_states(writer, options.seed, options.most)
        total, defects = total + states, defects + len(wrong)
        print(f"{states:7,} states, {len(wrong)} bad: {writer.name}")
        for what in sorted(set(wrong))[:5]:
            print(f"  DEFECT {wrong.count(what)} times: {what}")
    print(f"{total:,} states, {defects} defects")
    return min(1, defects)


if __name__ == "__main__":
    sys.exit(main())
