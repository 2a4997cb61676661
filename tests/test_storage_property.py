"""The database against a plain model, over any order of calls and reopenings."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from builders import examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swarm_node.rollout import Provenance
from swarm_node.storage import Storage, StoredGroup, WindowRow


class StorageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "node.db"
        self.storage = Storage(self.path, wall=lambda: 1.0)
        self.groups: dict[bytes, StoredGroup] = {}  # in order of arrival
        self.retired: set[bytes] = set()
        self.log: dict[int, bytes] = {}
        self.head = 0
        self.windows: dict[str, WindowRow] = {}
        self.tasks = 0
        self.epoch, self.published = 1000, 0

    @rule(count=st.integers(0, 4))
    def publish(self, count: int) -> None:
        entries = []
        for seq in range(self.head + 1, self.head + 1 + count):
            row = _group("me", self.storage.epoch, seq, Provenance.LOCAL)
            entries.append((row, b"entry %d" % seq))
            self.groups[row.id] = row
            self.log[seq] = row.id
        self.storage.publish(entries)
        self.head += count
        self.published += count

    @rule(author=st.sampled_from(["a", "b"]), seq=st.integers(1, 12))
    def accept(self, author: str, seq: int) -> None:
        row = _group(author, 1, seq, Provenance.SAME_MODEL)
        window = WindowRow(author, 1, seq, bytes([seq]) * 128)
        is_new = row.id not in self.groups
        assert self.storage.accept(row, window) is is_new
        if is_new:
            self.groups[row.id] = row
            self.windows[author] = window

    @rule(author=st.sampled_from(["a", "b"]), high=st.integers(1, 20))
    def save_window(self, author: str, high: int) -> None:
        self.windows[author] = WindowRow(author, 2, high, bytes(128))
        self.storage.save_window(self.windows[author])

    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        for identifier in (chosen := self._some(data)):
            self.groups[identifier] = replace(
                self.groups[identifier], uses=self.groups[identifier].uses + 1
            )
        self.storage.record_use([*chosen, b"forgotten"])

    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        chosen = self._some(data)
        self.retired.update(chosen)
        self.storage.retire(chosen)

    @rule(count=st.integers(0, 5))
    def advance(self, count: int) -> None:
        assert self.storage.advance("tasks", count) == self.tasks
        self.tasks += count

    @rule(keep_log=st.integers(0, 5), keep_received=st.integers(0, 5))
    def prune(self, keep_log: int, keep_received: int) -> None:
        self.storage.prune(keep_log, keep_received)
        for own, keep in ((True, keep_log), (False, keep_received)):
            held = [i for i, g in self.groups.items() if (g.provenance is Provenance.LOCAL) is own]
            for identifier in held[: max(0, len(held) - keep)]:
                del self.groups[identifier]
                assert self.storage.blob(identifier) is None
                self.retired.discard(identifier)
        self.log = {
            seq: identifier
            for seq, identifier in self.log.items()
            if seq > self.head - keep_log and identifier in self.groups
        }

    @rule()
    def reopen(self) -> None:
        self.storage.close()
        self.storage = Storage(self.path, wall=lambda: 99.0)

    @rule()
    def start_again(self) -> None:
        self.storage.close()
        self.storage = Storage(self.path, wall=lambda: 0.9)  # a clock that was put back
        self.storage.begin_epoch()
        self.epoch, self.head = self.epoch + 1, 0
        self.log.clear()

    @invariant()
    def tells_what_the_model_tells(self) -> None:
        storage = self.storage
        assert storage.epoch == self.epoch
        assert storage.published_count() == self.published
        assert storage.next_seq() == self.head + 1
        assert storage.counter("tasks") == self.tasks
        assert {row.author: row for row in storage.windows()} == self.windows
        listed = tuple(b"entry %d" % seq for seq in sorted(self.log))
        assert storage.announcements(storage.epoch, 0, 1000) == (
            *(storage.epoch, self.head, 0),
            listed,
        )
        assert all(map(storage.blob, self.groups)), "also those that are used up are served"
        for limit in (1, 3):
            assert storage.live(limit) == [
                group
                for identifier, group in self.groups.items()
                if group.uses < limit and identifier not in self.retired
            ]

    def _some(self, data: st.DataObject) -> list[bytes]:
        if not self.groups:
            return []
        return data.draw(st.lists(st.sampled_from(list(self.groups)), unique=True, max_size=4))

    def teardown(self) -> None:
        self.storage.close()
        self.folder.cleanup()


def _group(author: str, epoch: int, seq: int, provenance: Provenance) -> StoredGroup:
    return StoredGroup(
        id=f"{author}/{epoch}/{seq}".encode(),
        author=author,
        epoch=epoch,
        seq=seq,
        provenance=provenance,
        blob=b"sealed",
        prompt="q",
        rewards=(seq / 7, 0.0),
        arrival_version=seq,
    )


TestStorage = StorageMachine.TestCase
TestStorage.settings = examples(100, stateful_step_count=25)
