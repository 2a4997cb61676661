"""The checks that admit a pulled group to training, the cheapest first.

size and hash → signature → author → schema → replay window → task → length → tokens → content →
verifier. Multi-turn rollouts are re-run there, and their observations derived. The fields of an
announcement are checked before the group is pulled. The result is a `VerifiedGroup` whose rewards
this node computed, or a `Rejected` with the reason to count.

A signature proves the sender of a group, not its maker: a member can sign groups that others made,
or repeat one task. So the digests of accepted groups are kept (`Storage.accept`), own groups
included. Nobody can prove which of two authors of equal texts was first, because times are claims.
So only one finding counts against an author: a task that this node chose for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import msgspec

from swarm_node.errors import HomeError, Rejected, SlowTaskError, UnknownTaskError
from swarm_node.p2p.limits.gates import SizeGate, Windows
from swarm_node.p2p.peers.peers import Offer
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, content_id, open_sealed
from swarm_node.p2p.wire.groups import GroupHeader, unpack_group
from swarm_node.rollout import (
    Completion,
    Finish,
    PolicyRef,
    Provenance,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
)
from swarm_node.storage import MAX_AUTHORS, Storage, StoredGroup, WindowRow


class ScoredTexts(Protocol):
    """The result of scoring a group: the derived prompt and one reward per text. `loss_reason` says
    how the texts ended the scoring worker, `unscored` how this node failed to score. Both are ""
    if nothing failed."""

    @property
    def prompt(self) -> str: ...
    @property
    def rewards(self) -> tuple[float, ...]: ...
    @property
    def loss_reason(self) -> str: ...
    @property
    def unscored(self) -> str: ...


class RerunScores(ScoredTexts, Protocol):
    """The result of re-running the multi-turn rollouts of a group. `observations` has what the
    environment said in each. `flaws` has the reason why no honest author offers a multi-turn
    rollout: "ended", "short" or "observation", and "" for a sound one."""

    @property
    def observations(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def flaws(self) -> tuple[str, ...]: ...


#: Re-runs an author's multi-turn rollouts: for each the texts of the policy, and whether the last
#: was cut.
RerunTexts = Callable[[TaskRef, Sequence[tuple[Sequence[str], bool]], str], Awaitable[RerunScores]]
#: Scores an author's texts. The author's share of the scoring time is limited.
ScoreTexts = Callable[[TaskRef, Sequence[str], str], Awaitable[ScoredTexts]]
#: Checks that the token ids of a same-model group spell its texts. The policy knows the tokenizer.
TokenCheck = Callable[[RolloutGroup], Rejected | None]
#: Encodes a foreign answer in this node's tokens.
Encode = Callable[[str], Sequence[int]]
#: Prompt, rewards and observations.
_Found = tuple[str, tuple[float, ...], tuple[tuple[str, ...], ...]]


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """The part of the checks that only multi-turn rollouts need. `fits_context` returns false for a
    group if one of its multi-turn rollouts, prompt and all turns and observations together, exceeds
    the model's positions."""

    rerun: RerunTexts
    fits_context: Callable[[VerifiedGroup], bool]


@dataclass(frozen=True, slots=True)
class Expected:
    """Groups that this node trains on; others are refused. `peer_id` is this node's own: nobody
    else samples the tasks of its groups. `turns` is the most that a multi-turn rollout has, 1 for
    an answer to one question."""

    environment: str
    version: str
    families: frozenset[str]
    policy: PolicyRef
    sizes: SizeGate
    peer_id: str
    turns: int = 1


class GroupVerifier:
    """Verifies pulled groups and keeps the replay windows, in memory and in storage."""

    def __init__(
        self,
        swarm_id: bytes,
        criteria: Expected,
        storage: Storage,
        score_texts: ScoreTexts,
        check_tokens: TokenCheck,
        encode: Encode,
        multi_turn: MultiTurn | None = None,
    ) -> None:
        """`multi_turn` is needed if the environment has several turns."""
        self._swarm_id = swarm_id
        self._criteria = criteria
        self._storage = storage
        self._score_texts = score_texts
        self._check_tokens = check_tokens
        self._encode = encode
        self._multi_turn = multi_turn
        self._windows = Windows(MAX_AUTHORS)
        for row in storage.windows():
            try:
                self._windows.restore(row.author, row.epoch, row.high, row.bitmap)
            except ValueError:
                storage.record_damaged_row(
                    f"groups of {row.author} are refused until it starts again"
                )

    @property
    def turns(self) -> int:
        """The most turns of a multi-turn rollout here, 1 for an answer to one question."""
        return self._criteria.turns

    def check_replay(self, author: str, epoch: int, seq: int) -> Rejected | None:
        """Check an announced (author, epoch, seq) for replay. Return the reason for not pulling it,
        None if it may be pulled."""
        return self._windows.check(author, epoch, seq)

    def refuse_announced(self, entry: wire.Announcement) -> Rejected | None:
        """Check the fields of an announcement of any author. Return the reason for not pulling its
        group."""
        place = entry.environment, entry.version, entry.family
        if self._elsewhere(*place) or entry.turns != self._criteria.turns:
            # The author broke no rule and cost nothing: it may be about to upgrade.
            return Rejected("elsewhere", f"{entry.environment} {entry.version} {entry.family}")
        return self._criteria.sizes.check_announced_size(entry.completions, entry.size)

    def accepts_tokens(self, group: RolloutGroup) -> bool:
        """Check that nodes with the same model would accept the token ids of an own group."""
        return self._check_tokens(group) is None

    async def verify(self, offer: Offer, blob: bytes, version: int) -> VerifiedGroup | Rejected:
        """Check `blob`, pulled for `offer`. Store it and return it ready for the replay buffer.

        `version` is this node's policy version now. One transaction stores the group and marks its
        number in the author's replay window, so no restart can admit the group again.
        """
        contents = self._open(offer, blob)
        if isinstance(contents, Rejected):
            return contents
        _, group = contents
        rejection = (
            self._refuse_task(group)
            or self._refuse_tokens(group)
            or await self._refuse_content(group, offer)
        )
        if rejection is not None:
            return rejection
        scores = await self._score_group(group, offer.author)
        if isinstance(scores, Rejected):
            return scores
        prompt, rewards, observations = scores
        verified_group = VerifiedGroup(
            id=offer.id,
            author=offer.author,
            provenance=self._provenance(group.policy),
            group=group,
            prompt=prompt,
            rewards=rewards,
            arrival_version=version,
            observations=observations,
        )
        if self._multi_turn is not None and not self._multi_turn.fits_context(verified_group):
            return Rejected("too_long", "a multi-turn rollout exceeds this model's context length")
        return await self._admit(verified_group, offer, blob)

    async def rescore(self, group: VerifiedGroup) -> VerifiedGroup | None:
        """Check a stored group again. The observations of multi-turn rollouts are derived again,
        because they are not stored. Return None if the group would be refused now: the environment
        may have gained or lost its turns."""
        if self._multi_turn is None:
            return (
                None
                if any(completion.earlier_turns for completion in group.group.completions)
                else group
            )
        scores = await self._score_group(group.group, group.author)
        if isinstance(scores, Rejected):
            return None
        return replace(group, prompt=scores[0], rewards=scores[1], observations=scores[2])

    async def _score_group(self, group: RolloutGroup, author: str) -> _Found | Rejected:
        """The prompt, the rewards and the observations of a group, as this node finds them."""
        observations: tuple[tuple[str, ...], ...] = ()
        try:
            if self._multi_turn is None:
                rejection = _refuse_flaws(
                    ["ended" for completion in group.completions if completion.earlier_turns]
                )
                if rejection is not None:
                    return rejection
                texts = [completion.text for completion in group.completions]
                scores = await self._score_texts(group.task, texts, author)
                return _reject_lost(scores) or (scores.prompt, scores.rewards, observations)
            if (flaw := _refuse_cut(group)) is not None:
                return flaw
            transcripts = [
                (completion.turn_texts, completion.finish is not Finish.STOP)
                for completion in group.completions
            ]
            rerun = await self._multi_turn.rerun(group.task, transcripts, author)
        except SlowTaskError as error:  # its author may have a faster machine
            return Rejected("slow_task", str(error))
        except UnknownTaskError as error:
            return Rejected("task", str(error))
        rejection = _reject_lost(rerun) or _refuse_flaws(rerun.flaws)
        return rejection or (rerun.prompt, rerun.rewards, rerun.observations)

    def _open(self, offer: Offer, blob: bytes) -> tuple[GroupHeader, RolloutGroup] | Rejected:
        if content_id(blob) != offer.id:
            return Rejected("hash", "not the bytes that were announced")
        if len(blob) != offer.size:
            return Rejected("size", "the announcement states another size")
        envelope = open_sealed(blob, self._swarm_id, Kind.ROLLOUT)
        if isinstance(envelope, Rejected):
            return envelope
        if envelope.author != offer.author:
            return Rejected("author", "signed by another key than the announcement")
        contents = unpack_group(envelope.body)
        if isinstance(contents, Rejected):
            return contents
        header, _ = contents
        if (header.epoch, header.seq) != (offer.epoch, offer.seq):
            return Rejected("sequence", "its epoch or number is not the announced one")
        return self.check_replay(offer.author, header.epoch, header.seq) or contents

    def _refuse_task(self, group: RolloutGroup) -> Rejected | None:
        task = group.task
        if self._elsewhere(task.environment, task.version, task.family):
            return Rejected("environment", f"{task.environment} {task.version} {task.family}")
        if task.held_out:
            return Rejected("held_out", "the task is reserved for evaluation")
        return None

    def _elsewhere(self, environment: str, version: str, family: str) -> bool:
        """Check that a task is not among those that this node trains on."""
        criteria = self._criteria
        is_same_env = (environment, version) == (criteria.environment, criteria.version)
        return not is_same_env or family not in criteria.families

    def _refuse_tokens(self, group: RolloutGroup) -> Rejected | None:
        same_model = self._provenance(group.policy) is Provenance.SAME_MODEL
        lengths = [
            completion.token_ids.size if same_model else self._length(completion)
            for completion in group.completions
        ]
        rejection = self._criteria.sizes.check_completion_lengths(lengths)
        return self._check_tokens(group) if rejection is None and same_model else rejection

    def _length(self, completion: Completion) -> int:
        """The length of a foreign completion in this node's tokens. Each turn but the last counts
        one token more, for its end."""
        return sum(len(self._encode(text)) for text in completion.turn_texts) + len(
            completion.earlier_turns
        )

    async def _refuse_content(
        self, group: RolloutGroup, offer: Offer, prompt: str = ""
    ) -> Rejected | None:
        return await self._storage.run(self.refuse_known, group, offer, prompt)

    def refuse_known(self, group: RolloutGroup, offer: Offer, prompt: str) -> Rejected | None:
        """Refuse a group that was accepted before, from any author."""
        author, task = offer.author, group.task
        local_digest, author_digest = (
            task_digest(task, self._criteria.peer_id),
            task_digest(task, author),
        )
        content = content_digest(group, prompt)
        stored_digests = self._storage.authors_of(local_digest, author_digest, content)
        if local_digest in stored_digests:
            return Rejected("own_copied", "a task that this node chose for itself")
        if author_digest in stored_digests:
            if self._windows.begins(author, offer.epoch):
                return Rejected("anew", "its author may have lost what it had made")
            return Rejected("repeated", "its author made a group of this task before")
        if content in stored_digests:
            return Rejected("copied", "these completions of this prompt were received before")
        return None

    def _provenance(self, policy: PolicyRef) -> Provenance:
        local_policy = self._criteria.policy
        is_same_model = (policy.model, policy.tokenizer) == (
            local_policy.model,
            local_policy.tokenizer,
        )
        return Provenance.SAME_MODEL if is_same_model else Provenance.CROSS_MODEL

    async def _admit(
        self, verified_group: VerifiedGroup, offer: Offer, blob: bytes
    ) -> VerifiedGroup | Rejected:
        # Scoring takes time: another pull of the same number may have finished meanwhile. No await
        # may stand between the check of the window and its mark.
        rejection = await self._refuse_content(
            verified_group.group, offer, verified_group.prompt
        ) or self.check_replay(verified_group.author, offer.epoch, offer.seq)
        if rejection is not None:
            return rejection
        window = self._windows.mark(verified_group.author, offer.epoch, offer.seq)
        row = WindowRow(verified_group.author, offer.epoch, *window)
        if not verified_group.informative:
            # All its advantages are zero, so no update can learn from it. Only its number is kept.
            await self._storage.run(self._storage.save_window, row)
            return Rejected("zero_advantage", "all rewards are equal")
        group_row = stored_group(verified_group, offer.epoch, offer.seq, blob)
        if not await self._storage.run(self._storage.accept, group_row, row):
            return Rejected("duplicate", "stored already")
        return verified_group


def _reject_lost(scores: ScoredTexts) -> Rejected | None:
    """The reason against a group that has no rewards."""
    if scores.loss_reason == "asleep":
        return Rejected("asleep", "its completions make the scoring worker sleep")
    if scores.loss_reason:
        return Rejected(
            "scoring", f"its completions ended the scoring worker ({scores.loss_reason})"
        )
    if scores.unscored:
        return Rejected("unscored", f"this node could not score it ({scores.unscored})")
    return None


def _refuse_cut(group: RolloutGroup) -> Rejected | None:
    """Refuse a group that calls a last turn cut although it was not. An author cuts all turns of a
    group at the same number of its tokens, so no turn is longer than a cut one."""
    max_length, turn_limits = 0, set[int]()
    for completion in group.completions:
        lengths = [end - begin for begin, end in pairwise((0, *completion.ends))]
        max_length = max(max_length, *lengths)
        if completion.finish is Finish.LENGTH:
            turn_limits.add(lengths[-1])
    if turn_limits and min(turn_limits) < max_length:
        return Rejected(
            "rerun_mismatch", f"a turn of {min(turn_limits)} tokens is called cut, another has more"
        )
    return None


def _refuse_flaws(flaws: Sequence[str]) -> Rejected | None:
    """Refuse a group if one of its multi-turn rollouts has a flaw. An author that could go on after
    the end, or stop before it, would choose by itself which multi-turn rollouts count."""
    if "ended" in flaws:
        return Rejected("rerun_mismatch", "a rollout goes on after its end")
    if "short" in flaws:
        return Rejected("rerun_mismatch", "a rollout stops before its end")
    if "observation" in flaws:
        return Rejected(
            "no_observation", "the environment raised, or gave no observation that can be sent"
        )
    return None


def stored_group(verified_group: VerifiedGroup, epoch: int, seq: int, blob: bytes) -> StoredGroup:
    """Make the row of a group with its position in its author's log. `restored_group` is the
    inverse."""
    return StoredGroup(
        id=verified_group.id,
        author=verified_group.author,
        epoch=epoch,
        seq=seq,
        provenance=verified_group.provenance,
        blob=blob,
        prompt=verified_group.prompt,
        rewards=verified_group.rewards,
        arrival_version=verified_group.arrival_version,
        digests=digests(verified_group.group, verified_group.prompt, verified_group.author),
    )


def restored_groups(storage: Storage, environment: str, version: str) -> list[VerifiedGroup]:
    """Load the stored groups of this environment that were not trained on, oldest first. Damaged
    ones are deleted. Those of another environment or version are retired: their texts may be held
    out now."""
    groups: list[VerifiedGroup] = []
    retired_ids: list[bytes] = []
    for row in storage.live(1):
        try:
            group = restored_group(row)
        except HomeError:  # one group is no reason to stop
            storage.forget(row.id)
            continue
        is_current = (group.group.task.environment, group.group.task.version) == (
            environment,
            version,
        )
        if is_current:
            groups.append(group)
        else:
            retired_ids.append(group.id)
    storage.retire(retired_ids)
    return groups


def restored_group(row: StoredGroup) -> VerifiedGroup:
    """Rebuild a stored group, which passed all checks before it was stored. Replies are not stored:
    see `GroupVerifier.rescore`.

    Raises:
        HomeError: the stored bytes are damaged.
    """
    if content_id(row.blob) != row.id:
        raise HomeError("a stored group is damaged: its bytes have another hash")
    contents = unpack_group(msgspec.msgpack.decode(row.blob)[1])
    if isinstance(contents, Rejected):
        raise HomeError(f"a stored group is of another version of the program: {contents.detail}")
    return VerifiedGroup(
        id=row.id,
        author=row.author,
        provenance=row.provenance,
        group=contents[1],
        prompt=row.prompt,
        rewards=row.rewards,
        arrival_version=row.arrival_version,
    )


def task_digest(task: TaskRef, author: str) -> bytes:
    """The digest of "this author made a group of this task"."""
    return _digest("task", *_task_key(task), author)


def content_digest(group: RolloutGroup, prompt: str = "") -> bytes:
    """The digest of a group's task and texts, regardless of their order and white space. With
    `prompt`, the digest of the prompt and the texts: several seeds of a data set may have the same
    prompt."""
    # A folded text has no line break, so one joins the turns of a multi-turn rollout.
    texts = sorted(
        "\n".join(" ".join(text.split()) for text in completion.turn_texts)
        for completion in group.completions
    )
    return _digest("content", *([prompt] if prompt else _task_key(group.task)), *texts)


def digests(group: RolloutGroup, prompt: str, author: str) -> tuple[bytes, ...]:
    """All digests that are stored for a group accepted from `author`."""
    return task_digest(group.task, author), content_digest(group), content_digest(group, prompt)


def _task_key(task: TaskRef) -> tuple[str, str, str, str]:
    return task.environment, task.version, task.family, str(task.seed)


def _digest(*parts: str) -> bytes:
    # A text may hold lone surrogates, which have no UTF-8 encoding.
    chunks = [part.encode(errors="surrogatepass") for part in parts]
    return hashlib.sha256(msgspec.msgpack.encode(chunks)).digest()
