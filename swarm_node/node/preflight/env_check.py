"""Checks of an environment, for `swarm-node env check`: two processes make the same tasks,
observations and rewards, and a model answers some of its tasks right and some wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import Sampling
from swarm_node.environments.host import SAID_TEXTS, EnvironmentInfo, ProcessEnvironmentHost
from swarm_node.environments.scores import GroupScores, Rerun
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.errors import SwarmNodeError
from swarm_node.node.loops.sampling.fit import check_groups
from swarm_node.node.loops.sampling.multi_turn import TOO_LONG, MultiTurnRollout, Player
from swarm_node.node.loops.sampling.tasks import chosen_families
from swarm_node.node.metrics.snapshot import Said
from swarm_node.node.preflight.dataset_checks import check_questions
from swarm_node.node.preflight.right_answers import Tell, score_family, verdict_on
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.rollout import Completion, Finish, TaskRef

#: Tasks of each family that both processes make.
_TASKS = 8
#: A scorer that takes longer than this for an answer holds the node up, unless its environment says
#: that it needs more.
_SLOW_SECONDS = 0.05
_SHOWN_CHARS = 60
#: Groups of answers between two signs of progress.
_GROUPS_AT_ONCE = 4
#: If one group in twenty had mixed rewards, fewer than one draw of so many groups in twenty would
#: have none: .95 ** 59 < .05. Fewer groups without any are no evidence.
ENOUGH_GROUPS = 59
#: With a larger share of answers cut, no other advice is given; some are named.
_MANY_CUT, _SOME_CUT = 0.5, 0.1


class ScoredCompletions(NamedTuple):
    """A task with a model's answers to it, scored. If it takes several turns, `answers` are the
    last turns, and `rollouts` has all turns. `truncated_count` of them ran out of tokens."""

    ref: TaskRef
    answers: Sequence[str]
    scores: GroupScores
    rollouts: Sequence[MultiTurnRollout] = ()
    truncated_count: int = 0

    @property
    def is_mixed(self) -> bool:
        """Check that the answers' rewards differ."""
        return max(self.scores.rewards) - min(self.scores.rewards) > 1e-6


async def check_environment(
    name: str,
    options: Mapping[str, Any],
    families: Sequence[str],
    model: Path,
    sampling: Sampling,
    answers: int,
    *,
    accept: bool = False,
    tell: Tell = lambda *_: None,
) -> list[Said]:
    """Check an environment, in the order of the checks. `model` is the directory of the model that
    gives about `answers` answers, with the group size of `sampling`. A failed check ends the list
    if the next check depends on it. For `accept` see `right_answers.verdict_on`; `tell` hears how
    many right answers are scored, and how many answers of the model."""
    findings: list[Said] = []
    async with AsyncExitStack() as stack:
        hosts = [ProcessEnvironmentHost(name, options, families) for _ in range(2)]
        for host in hosts:
            stack.push_async_callback(host.close)
        try:
            info = await hosts[0].start()
            async for finding in _alike(hosts, info, families):
                findings.append(finding)
            if any(finding.level == "bad" for finding in findings):
                return findings
            family_names = chosen_families(families, info)
            async for finding in _questions(hosts[0], info, family_names, accept, tell):
                findings.append(finding)
            async for finding in _answers(
                hosts, info, family_names, model, sampling, answers, tell
            ):
                findings.append(finding)
        except SwarmNodeError as error:
            findings.append(Said("error", "bad", *error.split_remedies()))
    return findings


async def _alike(
    hosts: Sequence[ProcessEnvironmentHost], info: EnvironmentInfo, families: Sequence[str]
) -> AsyncIterator[Said]:
    """Compare what two processes make."""
    first, second = hosts
    second_info = await second.start()
    listing = ", ".join(info.families)
    yield Said("imports", "good", f"imports as {info.name} {info.version}, families: {listing}")
    if (info.name, info.version, info.families) != (
        second_info.name,
        second_info.version,
        second_info.families,
    ):
        yield Said(
            "version",
            "bad",
            "its name, version or families differ between two processes",
            "they must not depend on the time, a set's order or a random generator",
        )
        return
    family_names = chosen_families(families, info)
    refs = [_ref(info, family, index) for family in family_names for index in range(_TASKS)]
    prompts, second_prompts = await first.render(refs), await second.render(refs)
    unlike = sorted(
        {r.family for r, a, b in zip(refs, prompts, second_prompts, strict=True) if a != b}
    )
    if unlike:
        yield Said(
            "derive",
            "bad",
            f"derive() makes other tasks in another process: {', '.join(unlike)}",
            "it may depend on the reference alone: no clock, no global random generator, no set's "
            "order",
        )
    else:
        yield Said("derive", "good", f"derive repeats in 2 processes, {len(refs)} tasks")


async def _questions(
    host: ProcessEnvironmentHost,
    info: EnvironmentInfo,
    families: Sequence[str],
    accept: bool,
    tell: Tell,
) -> AsyncIterator[Said]:
    """Check questions and right answers, before a model is asked."""
    for note in info.notes:
        yield Said("rows", "good", note)
    for warning in info.warnings:
        yield Said("rows", "warning", warning)
    for family in families:
        if info.turns == 1:
            verdict = verdict_on(await score_family(host, info, family, tell=tell), accept)
            if verdict is not None:
                yield verdict
        for finding in await check_questions(host, info, family):
            yield finding


async def _answers(
    hosts: Sequence[ProcessEnvironmentHost],
    info: EnvironmentInfo,
    families: Sequence[str],
    model: Path,
    sampling: Sampling,
    answers: int,
    tell: Tell,
) -> AsyncIterator[Said]:
    """Check what a model answers."""
    first, second = hosts
    groups = await _answers_of(first, info, families, model, sampling, answers, tell)
    if info.turns > 1:
        for family in families:
            yield await _rerun_check(second, info, _of(groups, family))
    else:
        yield await _scoring(second, info, groups)
    for family in families:
        yield learnable(_of(groups, family), groups, family, sampling, len(families))


def _ref(info: EnvironmentInfo, family: str, index: int) -> TaskRef:
    return TaskRef(info.name, info.version, family, task_seed("check", family, index))


async def _answers_of(
    host: ProcessEnvironmentHost,
    info: EnvironmentInfo,
    families: Sequence[str],
    model: Path,
    sampling: Sampling,
    answers: int,
    tell: Tell,
) -> list[ScoredCompletions]:
    """Return about `answers` answers of the model, to as many tasks of each family. If some
    families leave a doubt that more answers can end, there are as many again to those."""
    codec = Codec.from_directory(model).asking(host.system)
    check_groups(info, codec, sampling)
    asking = _Asking(host, TorchSampler.from_directory(model, codec=codec), codec, sampling)

    def some(families: Sequence[str], begin: int) -> list[TaskRef]:
        each = max(1, round(answers / sampling.group_size / len(families)))
        return [_ref(info, family, begin + at) for family in families for at in range(each)]

    async def sample_and_score(refs: Sequence[TaskRef], suffix: str) -> list[ScoredCompletions]:
        groups: list[ScoredCompletions] = []
        for begin in range(0, len(refs), _GROUPS_AT_ONCE):
            tell(f"the model's{suffix} completions", begin, len(refs))
            groups += await asking.sample_and_score(info, refs[begin : begin + _GROUPS_AT_ONCE])
        tell(f"the model's{suffix} completions", len(refs), len(refs))
        return groups

    try:
        groups = await sample_and_score(refs := some(families, 0), "")
        if doubtful := [each for each in families if in_doubt(_of(groups, each), groups)]:
            groups += await sample_and_score(some(doubtful, len(refs)), " further")
    finally:
        await asking.sampler.close()
    return groups


class _Asking(NamedTuple):
    """What answers tasks: an environment, and a model with its codec."""

    host: ProcessEnvironmentHost
    sampler: TorchSampler
    codec: Codec
    sampling: Sampling

    async def sample_and_score(
        self, info: EnvironmentInfo, refs: Sequence[TaskRef]
    ) -> list[ScoredCompletions]:
        """Return the answers to tasks whose prompt and answer fit the model's positions."""
        sampling, codec = self.sampling, self.codec
        texts = await self.host.render(refs)
        requests = {
            ref: SampleRequest(
                ids,
                sampling.group_size,
                ref.seed,
                sampling.max_new_tokens,
                sampling.temperature,
            )
            for ref, ids in zip(refs, map(codec.encode_prompt, texts), strict=True)
            if codec.fits(ids, info.turns * sampling.max_new_tokens)
        }
        if info.turns > 1:
            return await self._sample_multi_turn(requests, dict(zip(refs, texts, strict=True)))
        groups = await self.sampler.sample([*requests.values()])
        scored_groups = []
        for ref, group in zip(requests, groups, strict=True):
            texts = [completion.text for completion in group]
            scores = await self.host.score(ref, texts)
            scored_groups.append(ScoredCompletions(ref, texts, scores, truncated_count=_cut(group)))
        return scored_groups

    async def _sample_multi_turn(
        self, requests: Mapping[TaskRef, SampleRequest], prompts: Mapping[TaskRef, str]
    ) -> list[ScoredCompletions]:
        """Return the model's multi-turn rollouts of each task."""
        played_groups, _ = await Player(self.sampler, self.codec, self._rerun, SYSTEM_CLOCK).play(
            requests.items()
        )
        scored_groups = []
        for ref, rollouts in zip(requests, played_groups, strict=True):
            rewards = tuple(item.last_rerun.reward for item in rollouts)
            last = [item.turns[-1] for item in rollouts]
            texts, scores = [item.text for item in last], GroupScores(prompts[ref], rewards)
            scored_groups.append(ScoredCompletions(ref, texts, scores, rollouts, _cut(last)))
        return scored_groups

    async def _rerun(self, ref: TaskRef, transcripts: Sequence[Transcript]) -> Sequence[Rerun]:
        return (await self.host.rerun(ref, transcripts)).reruns


def _cut(answers: Sequence[Completion]) -> int:
    return sum(answer.finish is Finish.LENGTH for answer in answers)


def _of(groups: Sequence[ScoredCompletions], family: str) -> list[ScoredCompletions]:
    return [group for group in groups if group.ref.family == family]


async def _rerun_check(
    host: ProcessEnvironmentHost, info: EnvironmentInfo, groups: Sequence[ScoredCompletions]
) -> Said:
    """Re-run every multi-turn rollout of a family in another process, and compare."""
    family = groups[0].ref.family if groups else "none"
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    for group in groups:
        result = await host.rerun(group.ref, [rollout.transcript for rollout in group.rollouts])
        for rollout, rerun in zip(group.rollouts, result.reruns, strict=True):
            original = rollout.last_rerun
            if not original.fault and rerun != original:
                turn = _unlike(original.observations, rerun.observations)
                subject = f"the observation after turn {turn}" if turn else "the reward"
                return Said(
                    "rerun",
                    "bad",
                    f"{family}: {subject} is another one in another process",
                    "observation() and reward() may depend on the task and on what was said alone",
                )
    faults = [
        rollout.last_rerun for rollout in rollouts if rollout.last_rerun.fault not in ("", TOO_LONG)
    ]
    if faults:
        reason = f"{faults[0].fault} {faults[0].exception}".strip()
        return Said(
            "rerun",
            "bad",
            f"{family}: {len(faults)} of {len(rollouts)} rollouts failed ({reason})",
            "an observation is at most 1,024 characters, always the same; a reward is in [0, 1]",
        )
    if not any(rollout.observations for rollout in rollouts):
        return Said(
            "rerun",
            "warning",
            f"{family}: no observation in {len(rollouts)} rollouts, so none was compared",
            "with --model, take a model whose completions observation() responds to",
        )
    turns = sum(len(rollout.turns) for rollout in rollouts) / (len(rollouts) or 1)
    text = f"{family}: at most {info.turns} turns, {turns:.1f} on average; "
    return Said("rerun", "good", text + f"{len(rollouts)} re-runs agree in 2 processes")


def _unlike(observations: Sequence[str], other_observations: Sequence[str]) -> int:
    """The first turn whose observation differs, 0 if none does."""
    for turn in range(max(len(observations), len(other_observations))):
        if observations[turn : turn + 1] != other_observations[turn : turn + 1]:
            return turn + 1
    return 0


async def _scoring(
    host: ProcessEnvironmentHost, info: EnvironmentInfo, groups: Sequence[ScoredCompletions]
) -> Said:
    """Score every answer again, in another process, and compare."""
    count = sum(len(group.answers) for group in groups) or 1
    seconds = sum(group.scores.seconds for group in groups) / count
    for group in groups:
        scores = await host.score(group.ref, group.answers)
        if scores.rewards != group.scores.rewards:
            return Said(
                "score",
                "bad",
                f"score() gives the same completions different rewards ({group.ref.family})",
                "it may depend on the task and the text alone",
            )
    error = next((group.scores.exception for group in groups if group.scores.exception), "")
    faults = sum(group.scores.faults for group in groups)
    if faults:
        reason = next(group.scores.fault_reason for group in groups if group.scores.faults)
        return Said(
            "score",
            "bad",
            f"score() failed on {faults} completions ({reason})",
            "a reward is in [0, 1]",
        )
    text = f"score deterministic, {milliseconds(seconds)} per completion"
    if error:
        remedy = "a completion on which it raises gets reward 0"
        return Said("score", "warning", f"{text}; it raised {error}", remedy)
    if seconds > max(_SLOW_SECONDS, info.score_seconds / SAID_TEXTS):
        return Said("score", "warning", text, "the node waits for it: make it faster")
    return Said("score", "good", text)


def milliseconds(seconds: float) -> str:
    """Return a time for people, never as 1e+02 ms."""
    return f"{1000 * seconds:{'.0f' if seconds >= 0.0995 else '.2g'}} ms"


def in_doubt(groups: Sequence[ScoredCompletions], all_groups: Sequence[ScoredCompletions]) -> bool:
    """Check that the answers `groups` to a family are too few to say whether it can be learnt: none
    of its groups has mixed rewards, and there are fewer than ENOUGH_GROUPS. Where no group of any
    family has some, the groups of all families count: `all_groups`."""
    if not groups or any(group.is_mixed for group in groups):
        return False
    is_uniform = not any(group.is_mixed for group in all_groups)
    return (len(all_groups) if is_uniform else len(groups)) < ENOUGH_GROUPS


def learnable(
    groups: Sequence[ScoredCompletions],
    all_groups: Sequence[ScoredCompletions],
    family: str,
    sampling: Sampling,
    families: int,
) -> Said:
    """Check the model's answers `groups` to one family of `families`: some right and some wrong can
    be learnt from. `all_groups` are its answers to all of them."""
    rewards = [reward for group in groups for reward in group.scores.rewards]
    if not rewards:
        remedy = "take shorter prompts or a model with a longer context, or leave it out"
        return Said("family", "bad", f"{family}: no prompt fits the model's context length", remedy)
    mixed, truncated_count = (
        sum(group.is_mixed for group in groups),
        sum(group.truncated_count for group in groups),
    )
    right = sum(reward > 0.5 for reward in rewards)
    text = f"{family}: {right} of {len(rewards)} completions right"
    text += f"; {mixed} of {len(groups)} groups of {sampling.group_size} have mixed rewards"
    if truncated_count > _SOME_CUT * len(rewards):
        limit = sampling.max_new_tokens
        text += f"; {truncated_count} were truncated at sampling.max_new_tokens ({limit})"
    if truncated_count > _MANY_CUT * len(rewards):
        # A scorer reads no answer whose end is missing, so nothing else is known.
        level = "warning" if mixed or right == len(rewards) else "bad"
        remedy = "raise it, or have the prompt ask for shorter completions"
        return Said("family", level, text, remedy)
    if mixed:
        return Said("family", "good", text)
    if in_doubt(groups, all_groups):
        required_count = ENOUGH_GROUPS * sampling.group_size * families
        return Said(
            "family",
            "warning",
            f"{text}: too few to say",
            f"take more: `--completions {required_count}`",
        )
    example = groups[0]
    prompt, answer = (" ".join(t.split()) for t in (example.scores.prompt, example.answers[0]))
    text += f'. E.g. "{prompt[-_SHOWN_CHARS:]}" → "{answer[-_SHOWN_CHARS:]}"'
    if right == len(rewards):
        return Said("family", "warning", text, "the model knows it all: take harder tasks")
    return Said(
        "family",
        "bad",
        text,
        "it will not learn: easier tasks, a larger model, or completions that score() can read",
    )
