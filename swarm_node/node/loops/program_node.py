"""A node without sampler and trainer of its own: a program outside has both.

The program takes tasks, publishes its answers to them, and draws groups of peers. All other loops
are those of a node, and so are all checks. What only a trainer can find, such as answers that the
policy would hardly give, is left to the program.
"""

from __future__ import annotations

import asyncio
import math
import operator
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from swarm_node.errors import (
    CheckpointError,
    CompletionError,
    ConfigError,
    Rejected,
    SwarmNodeError,
)
from swarm_node.node.home.home import Home
from swarm_node.node.loops.node import Node
from swarm_node.node.metrics.groups import DrawnCompletion, DrawnGroup, MemberTask, PublishedGroup
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.p2p.exchange.verify import task_digest
from swarm_node.p2p.wire.groups import MAX_LOGPROB
from swarm_node.p2p.wire.wire import MAX_COMPLETIONS
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.experience.mixture import Mixture
from swarm_node.policy.models.text.codec import Codec, check_tokens
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.training.processes.messages import UpdateResult
from swarm_node.recent import Recent
from swarm_node.rollout import (
    Completion,
    Finish,
    PolicyRef,
    Provenance,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
    VersionSpan,
)

_FILE = "member"
_VERSION_LIMIT = 1 << 62
#: Tasks that were given out and may be answered.
_OPEN_TASKS = 8192
#: Calls of the task chooser for one request: tasks that exceed the model's positions are left out.
_TASK_TRIES = 16
#: Rewards that differ by less are equal: a wire's float32 has seven digits.
_EQUAL_WITHIN = 1e-6
_SHOWN_CHARS = 60
_OUTSIDE = "this node has neither sampler nor trainer: the program that opened it has both"


class PolicyState(msgspec.Struct):
    """The content of the file `member`."""

    version: int
    extra: dict[str, Any]


class ProgramPolicy:
    """The policy of the program, in the place of a node's trainer and sampler. It has a version,
    and a file with the node's counts. A node with a trainer has these counts in its checkpoints."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.version = 0
        self.extra: Mapping[str, Any] = {}
        self.faults: Mapping[str, int] = {}

    def set_version(self, version: int) -> None:
        """Take in a version that the program names. The last one counts: a trainer that goes back
        to a checkpoint has an older version than before."""
        self.version = version

    async def start(self) -> tuple[Path, int]:
        """Go on from the file of an earlier start."""
        raw = self._home.load(_FILE)
        if raw is not None:
            try:
                state = msgspec.msgpack.decode(raw, type=PolicyState)
            except (msgspec.DecodeError, RecursionError) as error:
                path = self._home.path / _FILE
                raise CheckpointError(f"{path} is damaged", "delete it, it has counts") from error
            self.version, self.extra = state.version, state.extra
        return self._home.path, self.version

    async def checkpoint(self, extra: Mapping[str, Any], *, wait: bool = True) -> Path:
        self._home.save(_FILE, msgspec.msgpack.encode(PolicyState(self.version, dict(extra))))
        return self._home.path / _FILE

    async def load(self, weights: Path, version: int) -> None:
        """Load nothing: the program has the weights."""

    async def update(self, batch: Batch) -> UpdateResult:
        raise SwarmNodeError(_OUTSIDE)

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        raise SwarmNodeError(_OUTSIDE)

    async def close(self) -> None:
        """Do nothing: no resource is held."""


class ProgramNode(Node):
    """A member of a swarm for one program. Its methods are called while `run` runs, in its loop."""

    def __init__(self, *, policy: ProgramPolicy, rng: random.Random, **parts: Any) -> None:
        """`rng` draws groups. The other arguments are those of a node."""
        super().__init__(**parts)
        self._policy = policy
        self._rng = rng
        self._open_tasks: Recent[tuple[str, int], str] = Recent(_OPEN_TASKS)
        self._publishing = asyncio.Lock()

    async def tasks(self, count: int) -> list[MemberTask]:
        """Return `count` new tasks of the chosen families. A restart repeats none of them.

        Raises:
            ConfigError: the count is impossible, or prompts do not fit the model.
            ChildError: the environment's process cannot be kept alive.
        """
        if not (_whole(count) and 1 <= count <= _OPEN_TASKS):
            raise ConfigError(f"tasks gives 1 to {_OPEN_TASKS} at a time, not {count!r}")
        new_tasks: list[MemberTask] = []
        for _ in range(_TASK_TRIES):
            for ref, question, prompt_ids in await self._work.tasks.next(count - len(new_tasks)):
                self._open_tasks[ref.family, ref.seed] = question
                new_tasks.append(MemberTask(ref.family, ref.seed, question, prompt_ids))
            if len(new_tasks) == count:
                return new_tasks
        raise ConfigError(
            "nearly all prompts are too long for the model",
            "take shorter questions, choose environment.families, or lower sampling.max_new_tokens",
        )

    async def score(self, task: MemberTask, texts: Sequence[str]) -> tuple[float, ...]:
        """Return the rewards of answers to `task`, as every node computes them.

        Raises:
            UnknownTaskError: it is no task of this environment.
            ChildError: the environment's process cannot be kept alive.
        """
        count = _length(texts, "score takes a list of texts")
        if not 1 <= count <= MAX_COMPLETIONS:
            raise CompletionError(f"score takes 1 to {MAX_COMPLETIONS} texts, not {count}")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise CompletionError(
                    f"text {number} for score is a {type(text).__name__}, no text"
                )
        return (await self._work.scoring.score_local(self._ref(task), texts)).rewards

    async def publish(
        self,
        task: MemberTask,
        completions: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        version: int,
        rewards: Sequence[float] | None = None,
    ) -> PublishedGroup:
        """Sign, store and announce a group; see `library.member.SwarmMember.publish`.

        Raises:
            CompletionError: it cannot be published as it is. Nothing was published.
            StorageError: it could not be stored.
        """
        codec, version = self._parts.codec, _checked_version(version)
        max_tokens = self.settings.sampling.max_new_tokens
        all_completions = make_completions(codec, completions, logprobs, version, max_tokens)
        ref, texts = self._ref(task), [completion.text for completion in all_completions]
        async with self._publishing:
            await self._refuse_task(ref)
            scores = await self._work.scoring.score_local(ref, texts)
            check_rewards(texts, rewards, scores.rewards, f"{ref.family}/{ref.seed}")
            policy = PolicyRef(self._parts.policy.model, self._parts.policy.tokenizer, version)
            group = RolloutGroup(ref, policy, all_completions, scores.rewards)
            self._policy.set_version(version)
            publisher = self._work.exchange.publisher
            previous_count, too_large = publisher.announced, publisher.oversize
            await self._share([LocalGroup(group, scores.prompt)])
            if publisher.oversize > too_large:
                raise CompletionError(
                    f"the completions of {ref.family}/{ref.seed} exceed what peers accept: publish "
                    "fewer or shorter ones. Nothing was published"
                )
            is_announced = publisher.announced > previous_count
        self._tally.record_sampled_group(group, scores.prompt)
        rejection = check_tokens(codec, group)
        reason = "" if is_announced else rejection.detail if rejection else "all rewards are equal"
        return PublishedGroup(tuple(texts), scores.rewards, is_announced, reason)

    async def draw(self, count: int, version: int | None, wait: float) -> list[DrawnGroup]:
        """Take up to `count` groups of peers out of the replay buffer, and wait up to `wait`
        seconds until there are as many. An author has as many places as groups were published
        since the last draw, or an equal part of `count` if that is more (`ReplayBuffer.draw`).

        Raises:
            ConfigError: the buffer is not made for as many groups.
        """
        buffer, limit = self._buffer, self._buffer.settings.external
        if not (_whole(count) and 1 <= count <= limit):
            raise ConfigError(
                f"draw takes 1 to {limit} groups, not {count!r}: experience.external is the most"
            )
        if version is not None:
            self._policy.set_version(_checked_version(version))
        if wait > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._until(lambda: buffer.held_external() >= count)
        now = self._policy.version
        buffer.expire(now)
        buffer.aim(Mixture(min(buffer.held_own(), buffer.settings.local), count))
        batch = buffer.draw(now, self._rng)
        if batch is None:
            return []
        storage, tally = self._parts.storage, self._tally
        await storage.run(storage.record_use, [group.id for group in batch.fresh])
        groups = batch.groups[batch.own_count : batch.own_count + batch.external_count]
        records = self._records(groups, now)
        tally.steps += 1
        tally.updated_at = self._parts.clock.now()
        tally.groups.trained_local += batch.own_count
        tally.groups.trained_external += batch.external_count
        tally.trained_by.update(group.author for group in groups)
        for group in groups:
            tally.trained_groups.add(group)
        await self._notify()
        return records

    def _records(self, groups: Sequence[VerifiedGroup], now: int) -> list[DrawnGroup]:
        """The records of those groups that the model can take. In a node with a trainer, the
        trainer decides that."""
        codec, records = self._parts.codec, []
        for group in groups:
            record = drawn_record(codec, group, now)
            author = self._shared_state.directory.get(group.author)
            answer_tokens = max(len(answer.token_ids) for answer in record.completions)
            if not codec.fits(record.prompt_ids, answer_tokens):
                rejection = Rejected("too_long", "it exceeds this model's context length")
                self._work.exchange.asker.reject(rejection, group.author)
                continue
            records.append(record)
            if author is not None:
                author.standing.count_useful_group()
        return records

    def _ref(self, task: MemberTask) -> TaskRef:
        if not isinstance(task, MemberTask):
            raise CompletionError(f"a task is one that tasks() returned, not {task!r}")
        info = self._info
        assert info is not None, "loops start after _open"
        return TaskRef(info.name, info.version, task.family, task.seed)

    async def _refuse_task(self, ref: TaskRef) -> None:
        if (ref.family, ref.seed) not in self._open_tasks:
            raise CompletionError(
                f"{ref.family}/{ref.seed} is none of the {_OPEN_TASKS:,} tasks that this member "
                "gave last: take tasks from tasks(), because peers reject those of others"
            )
        storage, digest = self._parts.storage, task_digest(ref, self._shared_state.local.peer_id)
        if digest in await storage.run(storage.authors_of, digest):
            raise CompletionError(
                f"a group of {ref.family}/{ref.seed} was published before, and peers refuse a "
                "second one",
                "take new tasks()",
            )

    def _loops(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        outside = {"sample", "train", "evaluate"}
        return {name: loop for name, loop in super()._loops().items() if name not in outside}


def make_completions(
    codec: Codec,
    completions: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    version: int,
    max_tokens: int,
) -> tuple[Completion, ...]:
    """Make completions of token ids, each of at most `max_tokens` tokens, and their log-probs.

    Raises:
        CompletionError: they cannot be a group's; the message says which.
    """
    count = _length(completions, "completions are a list of lists of token ids")
    if not 2 <= count <= MAX_COMPLETIONS:
        raise CompletionError(f"a group has 2 to {MAX_COMPLETIONS} completions, not {count}")
    if _length(logprobs, "log-probs are a list of lists") != count:
        raise CompletionError(f"{count} completions and log-probs of {len(logprobs)}")
    return tuple(
        _completion(codec, f"completion {number}", ids, values, version, max_tokens)
        for number, (ids, values) in enumerate(zip(completions, logprobs, strict=True))
    )


def _completion(
    codec: Codec,
    name: str,
    ids: Sequence[int],
    values: Sequence[float],
    version: int,
    max_tokens: int,
) -> Completion:
    count = _length(ids, f"{name} is no list of token ids")
    if not 1 <= count <= max_tokens:
        raise CompletionError(
            f"{name} has {count} tokens: a completion has 1 to {max_tokens} with its end token "
            "(sampling.max_new_tokens)"
        )
    if (logprob_count := _length(values, f"{name} has no list of log-probs")) != count:
        raise CompletionError(f"{name} has {count} tokens and {logprob_count} log-probs")
    try:
        tokens = [operator.index(value) for value in ids]
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
            logprobs = np.asarray([float(value) for value in values], np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise CompletionError(f"{name} is no list of ids with a log-prob each: {error}") from error
    if not bool((np.isfinite(logprobs) & (logprobs <= MAX_LOGPROB)).all()):
        raise CompletionError(f"{name} has a log-prob that is above 0 or not finite")
    has_eos = tokens[-1] in codec.eos_ids
    try:
        text = codec.decode(tokens[:-1] if has_eos else tokens)
    except ValueError as error:
        raise CompletionError(f"{name} is not in the tokens of this model: {error}") from error
    span = VersionSpan(version, 0, len(tokens))
    finish = Finish.STOP if has_eos else Finish.LENGTH
    return Completion(text, np.asarray(tokens, np.uint32), logprobs, (span,), finish)


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _length(sequence: Sequence[Any], words: str) -> int:
    """The length of a sequence that a program gives. An iterable without a length may never end, so
    it is refused. A text is refused too.

    Raises:
        CompletionError: it is no sequence.
    """
    if isinstance(sequence, str | bytes):
        raise CompletionError(f"{words}, and not one text")
    try:
        return len(sequence)
    except TypeError as error:
        raise CompletionError(f"{words}: {error}") from error


def _checked_version(version: int) -> int:
    try:
        number = operator.index(version)
    except TypeError:
        number = None
    if number is None or isinstance(version, bool):
        raise CompletionError(f"a version is a number of updates, not {version!r}")
    if not 0 <= number < _VERSION_LIMIT:
        raise CompletionError(f"a version is 0 to {_VERSION_LIMIT - 1}, not {number}")
    return number


def check_rewards(
    texts: Sequence[str], claims: Sequence[float] | None, rewards: Sequence[float], task: str
) -> None:
    """Compare the program's rewards with the scoring worker's.

    Raises:
        CompletionError: they differ.
    """
    if claims is None:
        return
    if (count := _length(claims, "rewards are a list of numbers")) != len(rewards):
        raise CompletionError(f"{len(rewards)} completions and {count} rewards")
    try:
        numbers = [float(value) for value in claims]
    except (TypeError, ValueError, OverflowError) as error:
        raise CompletionError(f"rewards are a list of numbers: {error}") from error
    for number, (claim, reward) in enumerate(zip(numbers, rewards, strict=True)):
        if not math.isclose(claim, reward, rel_tol=0.0, abs_tol=_EQUAL_WITHIN):
            raise CompletionError(
                f"completion {number} of {task}, {texts[number][:_SHOWN_CHARS]!r}, has reward "
                f"{claim:g} in this program and {reward:g} by the swarm's environment, as for all "
                "peers: take the rewards of score(). Nothing was published"
            )


def drawn_record(codec: Codec, group: VerifiedGroup, version: int) -> DrawnGroup:
    """Make the record of a peer's group at policy `version`. Answers of other models are encoded in
    this model's tokens."""
    same_model = group.provenance is Provenance.SAME_MODEL
    completions = []
    for completion, reward in zip(group.group.completions, group.rewards, strict=True):
        is_finished = completion.finish is Finish.STOP
        if same_model:
            ids = tuple(completion.token_ids.tolist())
        else:
            ids = (*codec.encode_answer(completion.text), *([codec.eos_id] if is_finished else []))
        logprobs = tuple(completion.logprobs.tolist()) if same_model else None
        completions.append(DrawnCompletion(completion.text, ids, reward, is_finished, logprobs))
    return DrawnGroup(
        family=group.group.task.family,
        seed=group.group.task.seed,
        prompt=group.prompt,
        prompt_ids=codec.encode_prompt(group.prompt),
        completions=tuple(completions),
        provenance="same_model" if same_model else "cross_model",
        age=max(0, version - group.arrival_version),
        author=group.author,
    )
