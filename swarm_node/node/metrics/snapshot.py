"""The snapshot of a running node, which status, the demo and every other view render."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Self

import msgspec

from swarm_node.errors import CheckpointError
from swarm_node.node.metrics.history import GroupCounts, HistoryRow, UpdateRow
from swarm_node.node.metrics.samples import RecentRow, SampleRow
from swarm_node.p2p.membership.delegates import in_last_third
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.peers.causes import Cause
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.reach.reachability import Reachability
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.policy.experience.mixture import MixtureState

SCHEMA = 1
#: Seconds for which a peer that was heard counts as present.
SEEN_SECONDS = 60.0
#: Seconds for which a peer that failed to answer twice counts as present.
LOST_SECONDS = 20.0


class EvalPoint(msgspec.Struct, frozen=True):
    """Eval `reward` at one policy version: the mean over the held-out prompts of a family, then
    over families. `local` is that of the families that this node samples, `external_only` of those
    that it met only in external groups. `best_of_k` is the reward of the best of `k` completions of
    some of the prompts, by family. `isolated`: no external group was trained on until then.

    `train` is the mean reward on training prompts. `split_version` is the number of the rule by
    which prompts are held out. `main` are the families that the means are of, which stay the same
    along a curve; empty for all.
    """

    seconds: float
    version: int
    reward: float
    local: float
    external_only: float | None
    families: dict[str, float]
    best_of_k: dict[str, float] = {}
    k: int = 1
    isolated: bool = False
    train: float | None = None
    split_version: int = 0
    main: list[str] = []


class DroppedRow(msgspec.Struct, frozen=True):
    """A dropped peer. `offences` counts its drops; both times are in Unix seconds. It is asked for
    nothing until `off_until` and gets no answer until `cut_until`."""

    peer_id: str
    offences: int
    off_until: float
    cut_until: float


class TaughtRow(msgspec.Struct, frozen=True):
    """Counts of one author's groups of one family that were trained on: `groups`, and the
    `rollouts` with a positive advantage. They do not measure what the groups taught: the gain of a
    single group cannot be separated from that of the others in its step."""

    peer_id: str
    family: str
    groups: int
    rollouts: int


class Saved(msgspec.Struct):
    """A node's state in a checkpoint besides the training state."""

    steps: int
    groups: GroupCounts
    evals: list[EvalPoint]
    mixture: MixtureState | None = None
    dropped: list[DroppedRow] = []
    taught: list[TaughtRow] = []


def saved_in(extra: Mapping[str, Any]) -> Saved | None:
    """What a node stored in a checkpoint besides the trainer's state; None in a trainer's own.

    Raises:
        CheckpointError: it is no node's.
    """
    try:
        return msgspec.convert(extra, Saved) if extra else None
    except msgspec.ValidationError as error:
        raise CheckpointError(f"another program wrote the newest checkpoint: {error}") from None


class Said(msgspec.Struct, frozen=True):
    """One sentence for the owner, and the `remedy`, "" if there is none. `kind` names it for
    programs, `level` is "good", "warning" or "bad"."""

    kind: str
    level: str
    text: str
    remedy: str = ""


class PeerRow(msgspec.Struct, frozen=True):
    """One peer. `name` comes from its ticket, `issuer` signed its certificate, `issuer_key` (hex)
    admitted it, and its membership ends at `until` (Unix seconds). `standing` is "member", or the
    reason why it is none.

    `announced` counts its groups, and `accepted` those of them that this node verified.
    `useful_fraction` is a 95% lower bound of the fraction that was useful here. `rejected` counts
    its rejected messages, also by reason. `trained_fraction` is its part of the groups trained on
    recently. `sent` counts the groups that it pulled here. It is asked for nothing for
    `suspended_seconds` more. `via` is the relay
    that brought its last answer, "" for a direct link and None without a recent answer.
    `environment` is that of its groups, "" if it is this node's; `model` is the beginning of its
    model's digest, "" if model and tokenizer are this node's. It is `lost` if it failed to answer
    twice.

    `address` is the other end of the direct link, "" without one. `bytes_in` and `bytes_out` count
    the payload of requests and replies since the start. `round_trip` is the shortest recent time
    from a request to its reply, in seconds; None without a recent one. `reason` says why there is
    no connection, or why the peer is asked for nothing; None otherwise."""

    peer_id: str
    version: int
    seconds_since_seen: float
    announced: int
    accepted: int
    rejected: int
    addresses: list[str]
    name: str = ""
    issuer: str = ""
    issuer_key: str = ""
    until: int = 0
    standing: str = ""
    useful_fraction: float = 0.0
    rejected_by_reason: dict[str, int] = {}
    trained_fraction: float = 0.0
    suspended_seconds: float = 0.0
    sent: int = 0
    environment: str = ""
    via: str | None = None
    model: str = ""
    lost: bool = False
    address: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    round_trip: float | None = None
    reason: Said | None = None

    @property
    def present(self) -> bool:
        """True if it was heard lately and answers."""
        return self.seconds_since_seen <= (LOST_SECONDS if self.lost else SEEN_SECONDS)

    @classmethod
    def of(
        cls,
        peer: Peer,
        now: float,
        members: Members,
        share: float = 0.0,
        relay_id: str | None = None,
        environment: str = "",
        model: str = "",
    ) -> Self:
        """Return the row of `peer` at `now`, a time of the node's monotonic clock."""
        row = cls(
            peer_id=peer.peer_id,
            version=peer.version,
            seconds_since_seen=now - peer.last_seen,
            announced=peer.head,
            accepted=peer.accepted_groups,
            rejected=peer.rejected.total(),
            addresses=list(peer.addresses),
            standing="unknown_member",
            useful_fraction=peer.standing.score,
            rejected_by_reason=dict(peer.rejected),
            trained_fraction=share,
            suspended_seconds=max(0.0, peer.standing.left_until - now),
            sent=peer.sent_groups,
            environment=environment,
            via=relay_id,
            model=model,
            lost=peer.retry.failures > 1,
        )
        membership = members.presented_membership(peer.peer_id)
        if membership is None:
            return row
        member, standing = membership
        name, issuer = members.names(member)
        return msgspec.structs.replace(
            row,
            name=name,
            issuer=issuer,
            issuer_key=member.admitted_by.hex(),
            until=member.until,
            standing=standing,
        )


class UnmetRow(msgspec.Struct, frozen=True):
    """A member that this node heard of and has not met, and the `reason`. The other fields are as
    in `PeerRow`; `name` is "" if nobody showed its certificate here. `addresses` are those that it
    states."""

    peer_id: str
    name: str
    issuer_key: str
    addresses: list[str]
    reason: Said


class MembershipRow(msgspec.Struct, frozen=True):
    """This node's own membership. Fields are as in `PeerRow`. `begins` and `revoked`, the time of
    the list that names this node, are in Unix seconds; `revoked` is 0 without such a list."""

    name: str
    issuer: str
    begins: int
    until: int
    standing: str
    revoked: int = 0

    @classmethod
    def of(cls, members: Members, peer_id: str) -> Self | None:
        """Return this node's own membership, None before the node has presented its chain to
        itself."""
        membership = members.presented_membership(peer_id)
        if membership is None:
            return None
        member, standing = membership
        start_time, revoked_at = member.body.not_before, members.expelled_at(peer_id)
        return cls(*members.names(member), start_time, member.until, standing, revoked_at)

    def alarms(self, wall: float) -> list[str]:
        """Return the alarms about this membership at the Unix second `wall`."""
        day = _day(self.until)
        if self.standing == "expired":
            return [
                f"membership ended on {day}: peers refuse this node; ask for a new ticket and "
                "start it with --ticket-file"
            ]
        if self.standing != "member":
            on = f" on {_day(self.revoked)}" if self.revoked else ""
            sentences = {"revoked": f"the owner of the swarm revoked this node's membership{on}"}
            text = sentences.get(self.standing, f"this node is no member ({self.standing})")
            return [f"{text}: ask for a new ticket, and start this node with --ticket-file"]
        if not in_last_third(self.begins, self.until, wall):
            return []
        days = max(0.0, self.until - wall) / 86_400
        return [
            f"membership ends on {day}, in {days:.0f} days, and was not renewed: a delegate renews "
            "it when both run; else ask for a new ticket"
        ]


def _day(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d")


class MixtureRow(msgspec.Struct, frozen=True):
    """Groups in a step now: `local` (I) and `external` (J). `mixed_reward_ratio` (p) is the
    fraction of local groups with mixed rewards, and `mixed_reward_error` its standard error.
    `offered_per_local` is the number of peers' groups with mixed rewards for each local one.
    `allowance` is below 1 after eval reward fell. None: not known, or not estimated."""

    local: int
    external: int
    adaptive: bool
    mixed_reward_ratio: float | None
    mixed_reward_error: float | None
    offered_per_local: float | None
    allowance: float


class BusyRow(msgspec.Struct, frozen=True):
    """Seconds that the sampler spent on local rollouts and the trainer on steps, of the `seconds`
    since the node began to run. Both work at once, so the two may add up to more."""

    sampler: float
    trainer: float
    seconds: float


class TokensRow(msgspec.Struct, frozen=True):
    """Tokens since the start, `sampled` for local groups and `trained` on."""

    sampled: int
    trained: int


class WorkRow(msgspec.Struct, frozen=True):
    """What the node does now. Its `sampler` is "sampling" local groups or "evaluating", or "" while
    it has nothing to do; `done` of the `completions` of that call are complete (None: it does not
    count), and estimated `left` seconds remain. `training` are the seconds since the current step
    began. `first_step` and `end` are estimated seconds until the first step since the start begins,
    and until the last one of `run.max_steps` is done. None: not known (yet), or not the case."""

    sampler: str = ""
    done: int | None = None
    completions: int = 0
    tokens_per_second: float | None = None
    left: float | None = None
    training: float | None = None
    first_step: float | None = None
    end: float | None = None


class LevelRow(msgspec.Struct, frozen=True):
    """The `level` of the families of a ladder that the node samples, of `levels`, from 1 on, and
    the mean `reward` of its newest groups, None before the first. `placed`: the first groups have
    been measured. `measured` are the mean rewards by family."""

    ladder: str
    level: int
    levels: int
    placed: bool
    measured: dict[str, float]
    reward: float | None = None


class RelayingRow(msgspec.Struct, frozen=True):
    """Relays in both directions. `kept` are the relays that hold a link to this node. `relayed` of
    the `asked` own requests went through relays. If it `serves`, this node forwarded `requests` of
    others, with `bytes` in both directions. `refused` counts refused requests by reason."""

    kept: list[str]
    asked: int
    relayed: int
    serves: bool
    requests: int
    bytes: int
    refused: dict[str, int]

    @classmethod
    def of(cls, reaching: ReachingTransport) -> Self:
        """Return the counters of a node's transport."""
        usage, traffic = reaching.usage, reaching.forwarding_metrics
        return cls(
            kept=list(reaching.relays.relay_addresses()),
            asked=usage.total_requests,
            relayed=usage.relayed_requests,
            serves=reaching.serves,
            requests=traffic.requests,
            bytes=traffic.bytes,
            refused=dict(traffic.refusals),
        )


class CoordinatorRow(msgspec.Struct, frozen=True):
    """The exchange between this node and its coordinator. `answers`: it answered the last request
    (None before the first). `fault` is the reason if not. The coordinator gave `introduced`
    heartbeats of peers and took the newest report at `reported` (Unix seconds, 0 for none). Its
    reputation lowers the weight of `lowered` peers now."""

    url: str
    answers: bool | None = None
    fault: str = ""
    introduced: int = 0
    reported: float = 0.0
    lowered: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """Everything worth showing of a node at one moment."""

    schema: int
    peer_id: str
    swarm: str
    swarm_id: str
    model: str
    state: str
    seconds: float
    version: int
    steps: int
    skipped_batches: int
    trainer_restarts: int
    groups: GroupCounts
    rejected: dict[str, int]
    faults: dict[str, int]
    evals: list[EvalPoint]
    families: list[str]
    local_families: list[str]
    peers: list[PeerRow]
    buffer: dict[str, int]
    last_step: UpdateRow | None
    addresses: list[str]
    processes: dict[str, int]
    mixture: MixtureRow | None = None
    busy: BusyRow | None = None
    #: Sandbox of the scoring workers: "confined", or what this machine lacks.
    sandbox: str = ""
    #: The sampling engine: "vllm", "torch", or the built-in one with the fault of vLLM.
    engine: str = ""
    membership: MembershipRow | None = None
    #: Former peers: their membership ended or was revoked, or they are blocked here.
    former: list[PeerRow] = []
    #: Members that this node heard of and has not met, 64 at most, and the number of all of them.
    unmet: list[UnmetRow] = []
    unmet_total: int = 0
    #: Ways in which members reach this node, by their findings.
    reach: Reachability | None = None
    relaying: RelayingRow | None = None
    #: Alarms for the owner, one sentence each.
    alarms: list[str] = []
    #: The newest row of the history.
    latest: HistoryRow | None = None
    taught: list[TaughtRow] = []
    tokens: TokensRow | None = None
    #: Unix seconds; seconds since the newest step (before the first, since the node runs), and
    #: between two steps on average.
    time: float = 0.0
    seconds_since_step: float | None = None
    seconds_between_steps: float | None = None
    #: The environment's name for people. A peer's row has that of the peer if it differs.
    environment: str = ""
    recent: RecentRow | None = None
    work: WorkRow | None = None
    #: What helps a model whose first groups taught nothing; "" otherwise.
    advice: str = ""
    #: Ladders of several levels among the families that this node samples.
    levels: list[LevelRow] = []
    examples: list[SampleRow] = []
    coordinator: CoordinatorRow | None = None
    #: Addresses in settings and ticket; what keeps this node from others; whom it refused.
    configured: int = 0
    causes: list[Cause] = []
    refused_callers: list[Cause] = []
    #: The health of the node, then the other findings for its owner: `health.findings`.
    findings: list[Said] = []


class Ended(msgspec.Struct, frozen=True):
    """The end of a node. It made `steps` steps. Its last checkpoint took `seconds`, and is
    `stored` unless that failed."""

    steps: int
    seconds: float
    stored: bool


class TriedRow(msgspec.Struct, frozen=True):
    """One try of `doctor --network`: of an address in settings or ticket, of a known peer, of a
    relay or of a coordinator (`kind`), by its `name`. It took `seconds`. `cause` is that of its
    failure, None if it answered."""

    kind: Literal["address", "peer", "relay", "coordinator"]
    name: str
    seconds: float
    cause: Cause | None = None


class PingReport(msgspec.Struct, frozen=True):
    """One round trip to a peer. It took `seconds`, None without an answer; `reason` then says the
    reason. `address` is the other end of a direct link. `via` is the relay, "" for a direct link,
    and `relay` its name for people."""

    peer_id: str
    name: str
    seconds: float | None
    address: str = ""
    via: str = ""
    relay: str = ""
    reason: Said | None = None


class NetworkReport(msgspec.Struct, frozen=True):
    """Data of `doctor --network` on a running node: how it is reached, its announced addresses, and
    the number of peers that answer. `heartbeats` were found in the transport's table within
    `seconds` (None: it has no table), or `fault` is the reason for none. `tried` are the tries made
    for this report, `findings` and `causes` those of the snapshot after them."""

    reach: Reachability
    addresses: list[str]
    peers: int
    heartbeats: int | None
    seconds: float
    fault: str = ""
    tried: list[TriedRow] = []
    findings: list[Said] = []
    causes: list[Cause] = []
