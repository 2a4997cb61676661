"""The coordinator apart from HTTP and codes: callers, introductions, reports, batches.

It is no authority. Certificates decide membership, and signed lists end it. The coordinator checks
both as every node does, and can make neither.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import statistics
from collections import Counter, OrderedDict
from collections.abc import Mapping

import msgspec

from coordinator.introductions import Introductions
from coordinator.reputation import summarize_reputation, trust
from coordinator.routes import ExchangedGroups
from coordinator.store import MAX_MEMBERS, Store, StoredMember
from swarm_node.clock import Clock
from swarm_node.errors import Rejected
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.coordinator.coordination import (
    PeerCounts,
    Report,
    SignedBatch,
    next_batch,
    open_batch,
    open_call,
    open_report,
)
from swarm_node.p2p.limits.gates import PeerGates
from swarm_node.p2p.limits.round_robin import in_turn
from swarm_node.p2p.membership.credentials import Shelf
from swarm_node.p2p.membership.members import Keeper, Member, Members
from swarm_node.p2p.membership.membership import CLOCK_SKEW_SECONDS, SwarmInfo
from swarm_node.p2p.membership.statements import verify_revocations
from swarm_node.p2p.peers.standing import BLAMELESS
from swarm_node.p2p.wire.identity import Identity, peer_id_of
from swarm_node.page.event_log import EventLog, EventReport, Sight

#: Seconds between two writes of the time when a member was last seen.
_STORE_SECONDS = 600.0
#: Seconds for which a member that asked counts as present. It asks once a minute.
_PRESENT_SECONDS = 300.0
#: Least seconds between two reports of a member.
_REPORT_SECONDS = 30.0
#: Rate per second and burst of reports of an issuer's members. Each waits for the disk.
_ISSUER_REPORTS = 10.0, 300.0


class Service:
    """See the module. All state that matters after a restart is in `store`."""

    def __init__(
        self,
        swarm: SwarmInfo,
        key: Identity,
        store: Store,
        keeper: Keeper,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._swarm = swarm
        self._key = key
        self.store = store
        self._clock = clock
        self._rng = rng
        self._members = Members(swarm, clock.wall, keeper)
        self._lists = Shelf(
            "revoked",
            keeper,
            lambda raw, now: verify_revocations(raw, swarm, now),
            self._members.obey,
            clock.wall,
        )
        self._lists.refresh()
        self._began_ms = int(clock.wall() * 1000)
        #: Calls that were answered, with the Unix second: (author and nonce).
        self._calls: OrderedDict[bytes, float] = OrderedDict()
        self._introductions = Introductions(self._members.is_member)
        #: The newest reports, without figures of peers, of which only `_ratings` stay in memory.
        self._reports: dict[str, Report] = {}
        self._ratings: dict[str, dict[str, float]] = {}
        #: Groups refused for a fault of their author, by reporter and author; without zeros.
        self._rejections: dict[str, dict[str, int]] = {}
        self._report_times: dict[str, float] = {}
        self._events = EventLog()
        #: Epoch and addresses in the newest heartbeat of each member that left one.
        self._last_heartbeats: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._issuer_reports = PeerGates(*_ISSUER_REPORTS)
        self._seen_times: dict[str, float] = {}
        self._stored_times: dict[str, float] = {}
        #: Members that were seen and are not in the database yet.
        self._sightings: dict[str, StoredMember] = {}
        self._trusted_names: list[str] = []
        self._last: SignedBatch | None = None
        self._has_new_reports = False
        self._reputation = api.Reputation(0, 0.0, [])

    async def load(self) -> None:
        """Take up what an earlier run stored.

        Raises:
            HomeError: the database cannot be used.
        """
        for row in await self.store.run(self.store.members):
            if isinstance(self._members.admit(row.chain, row.peer_id), Rejected):
                continue
            self._seen_times[row.peer_id] = row.seen_at
            self._watch(row.peer_id, is_present=False)
            report = open_report(row.report or b"", self._swarm.swarm_id)
            if not isinstance(report, Rejected):
                self._note(row.peer_id, report.body, row.reported_at)
        raw = await self.store.run(self.store.last_batch)
        last = open_batch(raw or b"", self._swarm.swarm_id)
        self._last = None if isinstance(last, Rejected) else last
        self._trusted_names = await self.store.run(self.store.trusted_names)
        await self._weigh()

    async def authenticate(
        self, packed_call: bytes, method: str, target: str, body: bytes
    ) -> Member | Rejected:
        """Return the member that sealed a call for this request and no other. Besides the reasons
        of envelopes and `Members.admit`: "call" for another request than this, "outdated" and
        "duplicate"."""
        wall = self._clock.wall()
        call = open_call(packed_call, self._swarm.swarm_id)
        if isinstance(call, Rejected):
            return call
        call_body = call.body
        if (call_body.method, call_body.target, call_body.digest) != (
            *(method, target),
            hashlib.sha256(body).digest(),
        ):
            return Rejected("call", "the signature is for another request")
        is_late = abs(wall - call_body.issued_ms / 1000) > CLOCK_SKEW_SECONDS
        if is_late or call_body.issued_ms < self._began_ms:  # an earlier run may have answered it
            return Rejected("outdated", "check the clock of this machine, or ask again")
        member = self._members.admit(call.chain, call.author)
        if isinstance(member, Rejected):
            return member
        if not self._is_new(call.author_key + call_body.nonce, wall):
            return Rejected("duplicate", "the same request a second time")
        self._seen_times[call.author] = wall
        if wall - self._stored_times.get(call.author, 0.0) > _STORE_SECONDS:
            # With the next tick: a ticket makes any number of keys, and the disk is slow.
            self._stored_times[call.author] = wall
            self._sightings[call.author] = StoredMember(call.author, call.chain, wall)
        return member

    def _is_new(self, call: bytes, wall: float) -> bool:
        """Check that a call was not answered before. Calls too old to be answered are forgotten."""
        while self._calls and next(iter(self._calls.values())) < wall - 2 * CLOCK_SKEW_SECONDS:
            self._calls.popitem(last=False)
        if call in self._calls:
            return False
        self._calls[call] = wall
        return True

    def introduce(self, caller: Member, request: api.Introduction) -> api.Introduced | Rejected:
        """Keep the caller's presence, take its revocation list, and give it presences of others."""
        record = self._members.read_presence(request.peer_record, author_id=caller.peer_id)
        if isinstance(record, Rejected):
            return record
        if request.revocation_list:
            rejection = self._lists.offer(request.revocation_list)
            if rejection is not None:
                return rejection
            if not self._members.is_member(caller.peer_id):
                return Rejected("revoked", "the swarm's owner has revoked it")
        self._last_heartbeats[caller.peer_id] = record.head.epoch, record.head.addresses
        self._introductions.leave(
            caller.peer_id, request.peer_record, caller.admitted_by.hex(), record.head.issued_ms
        )
        is_newer = self._lists.number > request.revoked
        return api.Introduced(
            self._introductions.sample(self._rng, self._clock.wall(), caller.peer_id),
            self._lists.number,
            self._lists.raw if is_newer else b"",
            caller.peer_id not in self._reports,
        )

    async def report(self, caller: Member, request: api.Reported) -> api.ReportReceipt | Rejected:
        """Store the caller's report, unless a newer one is here."""
        report = open_report(request.report, self._swarm.swarm_id)
        if isinstance(report, Rejected):
            return report
        if report.author != caller.peer_id:
            return Rejected("author", "a report of another member")
        body, wall = report.body, self._clock.wall()
        if abs(wall - body.issued_ms / 1000) > CLOCK_SKEW_SECONDS:
            return Rejected("outdated", "check the clock of this machine")
        old_report = self._reports.get(caller.peer_id)
        if old_report is not None and old_report.issued_ms >= body.issued_ms:
            return Rejected("duplicate", "a report that is as new is here")
        if wall - self._report_times.get(caller.peer_id, 0.0) < _REPORT_SECONDS:
            return Rejected("rate", "a report every few minutes is enough")
        issuer = caller.admitted_by.hex()
        if not self._issuer_reports.take(issuer, self._clock.now()):
            return Rejected("rate", "too many reports of one ticket's members")
        rewards = [reward for _, reward in body.eval_reward]
        row = api.ReportRow(
            id=0,
            at=wall,
            peer_id=caller.peer_id,
            version=body.version,
            eval_reward=statistics.fmean(rewards) if rewards else None,
            sampled=body.sampled,
            accepted=body.accepted,
            trained_local=body.trained_local,
            trained_external=body.trained_external,
        )
        self._note(caller.peer_id, body, wall)
        self._has_new_reports = True
        await self.store.run(self.store.report, caller.peer_id, request.report, row, issuer)
        return api.ReportReceipt(self._last.body.number if self._last else 0)

    async def tick(self) -> None:
        """Sign a batch of the reports since the last one, weigh all reports, and tidy up. Called
        once a minute."""
        wall = self._clock.wall()
        self._introductions.expire(wall)
        self._members.dismiss()
        if self._has_new_reports:
            self._has_new_reports = False
            reports = await self.store.run(self.store.waiting)
            items = [hashlib.sha256(raw_report).digest() for _, raw_report in reports]
            raw = next_batch(self._key, self._swarm.swarm_id, self._last, items, int(wall * 1000))
            batch = open_batch(raw, self._swarm.swarm_id)
            assert isinstance(batch, SignedBatch)
            await self.store.run(self.store.add_batch, batch.body.number, raw, reports)
            self._last = batch
            await self._weigh()
        recent_ids = sorted(self._seen_times, key=self._seen_times.__getitem__, reverse=True)
        stay = set(in_turn(recent_ids, self._members.issuer, MAX_MEMBERS))
        removed_ids = [peer_id for peer_id in self._seen_times if peer_id not in stay]
        for peer_id in removed_ids:
            self._forget(peer_id)
        refusals: Counter[str] = Counter()
        for counts in self._rejections.values():
            refusals.update(counts)
        for peer_id, seen_at in self._seen_times.items():
            is_present = wall - seen_at < _PRESENT_SECONDS
            self._watch(peer_id, is_present=is_present, refusal_count=refusals[peer_id])
        sightings, self._sightings = self._sightings, {}
        await self.store.run(self.store.see, sightings.values())
        await self.store.run(self.store.tidy, wall, removed_ids)

    async def batches(self, start: int) -> api.Batches:
        return api.Batches(await self.store.run(self.store.batches, start))

    def members(self, last_id: str, limit: int) -> api.MemberRows:
        """A page of all members that were here."""
        peer_ids = sorted(peer_id for peer_id in self._seen_times if peer_id > last_id)
        rows = [row for peer_id in peer_ids[:limit] if (row := self._row(peer_id)) is not None]
        return api.MemberRows(rows, peer_ids[limit - 1] if len(peer_ids) > limit else "")

    def reputation(self) -> api.Reputation:
        return self._reputation

    async def report_of(self, peer_id: str) -> api.ReportView | Rejected:
        """The newest report of a member."""
        raw_report = await self.store.run(self.store.report_of, peer_id)
        report = open_report(raw_report or b"", self._swarm.swarm_id)
        if isinstance(report, Rejected):
            return Rejected("unknown_member", "it left no report here")
        peers = [
            api.FindingRow(peer_id_of(figures.key), figures.accepted, dict(figures.rejected))
            for figures in report.body.peers
        ]
        return api.ReportView(report.raw, peers)

    async def history(self, last_id: int, start_time: float, limit: int) -> api.History:
        rows = await self.store.run(self.store.history, last_id, start_time, limit)
        return api.History(rows, rows[-1].id if len(rows) == limit else 0)

    async def picture(self, last_id: int, start_time: float, limit: int) -> api.Picture:
        """Data of the page: history after a row. The last part also has the members that reported
        last, by issuer in turn: keys of one ticket push nobody off the page."""
        history = await self.history(last_id, start_time, limit)
        peers = [] if history.next else self._shown_members()
        rows = [row for peer in peers if (row := self._row(peer)) is not None]
        return api.Picture(
            swarm=self._swarm.name,
            swarm_id=self._swarm.swarm_id.hex(),
            time=self._clock.wall(),
            members=rows,
            reputation=self._reputation.rows,
            history=history.rows,
            next=history.next,
        )

    def _shown_members(self) -> list[str]:
        """Return the members that reported last, by issuer in turn."""
        recent_ids = sorted(
            self._seen_times, key=lambda peer: self._report_times.get(peer, 0.0), reverse=True
        )
        return in_turn(recent_ids, self._members.issuer, api.MAX_ROWS)

    def exchange(self) -> ExchangedGroups:
        """Return the groups between the members on the page."""
        peers = self._shown_members()
        place = {peer_id: number for number, peer_id in enumerate(peers)}
        rows = []
        for learner in peers:
            refusals = self._rejections.get(learner, {})
            for author, useful_count in self._ratings.get(learner, {}).items():
                if author in place and (useful_count or author in refusals):
                    refusal_count = refusals.get(author, 0)
                    rows.append((place[learner], place[author], int(useful_count), refusal_count))
        return ExchangedGroups(peers, rows)

    def log(self) -> EventReport:
        """Return the log of what happened to members."""
        return self._events.report()

    def trusted_members(self) -> api.Trusted:
        return api.Trusted(self._trusted_names)

    async def trust(self, request: api.Trusted) -> api.Trusted:
        """Replace the pre-trusted."""
        await self.store.run(self.store.trust, request.who)
        self._trusted_names = sorted(set(request.who))
        await self._weigh()
        return self.trusted_members()

    async def forget(self, peer_id: str) -> api.Forgotten:
        """Delete what a member reported."""
        rows = await self.store.run(self.store.forget, peer_id)
        for table in (self._reports, self._ratings, self._rejections, self._report_times):
            table.pop(peer_id, None)
        await self._weigh()
        return api.Forgotten(rows)

    def holders(self) -> dict[str, list[str]]:
        """Return the ids of the members that came here, by the issuer keys (hex) of their
        tickets."""
        member_ids: dict[str, list[str]] = {}
        for peer_id in sorted(self._seen_times):
            if (membership := self._members.presented_membership(peer_id)) is not None:
                member_ids.setdefault(membership[0].admitted_by.hex(), []).append(peer_id)
        return member_ids

    def counts(self) -> Mapping[str, float]:
        """Figures for metrics."""
        return {
            "members": len(self._seen_times),
            "introductions": len(self._introductions),
            "reports": len(self._reports),
            "batch_number": self._last.body.number if self._last else 0,
            "revocation_list_number": self._lists.number,
        }

    def _row(self, peer_id: str) -> api.MemberRow | None:
        membership = self._members.presented_membership(peer_id)
        if membership is None:
            return None
        member, status = membership
        row = api.MemberRow(
            peer_id=peer_id,
            name=member.name,
            issuer_key=member.admitted_by.hex(),
            until=member.until,
            standing=status,
            seen=self._seen_times[peer_id],
            reported=self._report_times.get(peer_id, 0.0),
            introduced=peer_id in self._introductions,
        )
        report = self._reports.get(peer_id)
        if report is None:
            return row
        return msgspec.structs.replace(
            row,
            agent=report.agent,
            model=report.model,
            reach=report.reach,
            version=report.version,
            steps=report.steps,
            sampled=report.sampled,
            sent=report.sent,
            accepted=report.accepted,
            trained_local=report.trained_local,
            trained_external=report.trained_external,
            eval_reward=dict(report.eval_reward),
        )

    async def _weigh(self) -> None:
        """Compute the reputation anew from the reports of present members. With the most members
        that there may be it takes a second, so no request waits for it."""
        issuer, names = {}, {}
        for peer_id in self._seen_times:
            member = self._members.check(peer_id)
            if isinstance(member, Member):
                issuer[peer_id], names[peer_id] = member.admitted_by.hex(), member.name
        ratings = {rater: scores for rater, scores in self._ratings.items() if rater in issuer}
        trusted_ids = {p for p in issuer if not {p, names[p]}.isdisjoint(self._trusted_names)}
        shares = await asyncio.to_thread(trust, ratings, issuer, trusted_ids)
        self._reputation = summarize_reputation(shares, issuer, ratings)

    def _forget(self, peer_id: str) -> None:
        self._introductions.drop(peer_id)
        for table in (self._reports, self._ratings, self._rejections, self._report_times):
            table.pop(peer_id, None)
        for state in (self._seen_times, self._stored_times, self._last_heartbeats):
            state.pop(peer_id, None)
        self._sightings.pop(peer_id, None)

    def _note(self, peer_id: str, report: Report, at: float) -> None:
        self._reports[peer_id] = msgspec.structs.replace(report, peers=())
        self._ratings[peer_id] = {
            peer_id_of(figures.key): _useful(figures) for figures in report.peers
        }
        faults = {peer_id_of(figures.key): _faults(figures) for figures in report.peers}
        self._rejections[peer_id] = {author: count for author, count in faults.items() if count}
        self._report_times[peer_id] = at

    def _watch(self, peer_id: str, *, is_present: bool, refusal_count: int = 0) -> None:
        """Log what happened to a member since the last look. `refusal_count` counts its groups that
        others refused for a fault of its own."""
        membership = self._members.presented_membership(peer_id)
        if membership is None:
            return
        member, status = membership
        epoch, addresses = self._last_heartbeats.get(peer_id, (0, ()))
        issuer = member.admitted_by.hex()
        groups = {"groups": refusal_count}
        sight = Sight(member.name, issuer, status, is_present, epoch, addresses, groups)
        self._events.see(peer_id, sight, self._clock.wall())


def _faults(figures: PeerCounts) -> int:
    """Groups that were refused for a fault of their author."""
    return sum(count for reason, count in figures.rejected if reason not in BLAMELESS)


def _useful(figures: PeerCounts) -> float:
    """Groups that were of use, less those that were refused for a fault of their author."""
    return float(max(0, figures.accepted - _faults(figures)))
