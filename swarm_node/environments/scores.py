"""Results of scoring: what comes of the texts or multi-turn rollouts of one group. Pure.

The host cuts what it sends to a scoring worker, and puts together what the scoring worker said of
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm_node.environments.answers.final import MAX_SCORED_CHARS
from swarm_node.environments.workers.scoring_worker import RerunLine, TextVerdict, Transcript

MAX_TEXTS = 64
_FLAWS = frozenset({"ended", "observation"})


@dataclass(frozen=True, slots=True)
class Rerun:
    """A multi-turn rollout re-run: what the environment said to each turn, and, once it `is_over`,
    the reward in [0, 1]. `fault` is "" or the reason why the multi-turn rollout ended with zero:
    one of those of `GroupScores`, "observation" for an observation that cannot be sent or raised,
    "ended" if the model said more after the end. `exception` is as in `GroupScores`."""

    observations: tuple[str, ...] = ()
    is_over: bool = True
    reward: float = 0.0
    fault: str = ""
    exception: str = ""


@dataclass(frozen=True, slots=True)
class GroupScores:
    """Prompt and rewards (one per text, each in [0, 1]) of a group.

    `faults` counts the rewards that are zero because scoring failed. `fault_reason` is the reason
    of the first: "out_of_range", "unsendable", "abandoned", a reason of `fault_attribution.Reason`,
    or "" for none. `exception` names the first exception of a scorer, "" for none; such a text is a
    wrong answer. `loss_reason` is the reason why peers' texts ended their scoring worker, "asleep"
    if they made it sleep, "" if they did not; `unscored` is the reason why this node could not
    score them, which is nobody's fault. With either, none of them was scored. `seconds` are those
    that the scoring worker took, without the time that the group waited for it."""

    prompt: str
    rewards: tuple[float, ...]
    faults: int = 0
    fault_reason: str = ""
    exception: str = ""
    loss_reason: str = ""
    unscored: str = ""
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class GroupRerun:
    """The prompt and the multi-turn rollouts of a group, re-run. `loss_reason`, `unscored` and
    `seconds` are as in `GroupScores`; with one of the first two there are no multi-turn
    rollouts."""

    prompt: str
    reruns: tuple[Rerun, ...]
    loss_reason: str = ""
    unscored: str = ""
    seconds: float = field(compare=False, kw_only=True)

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(rerun.reward for rerun in self.reruns)

    @property
    def observations(self) -> tuple[tuple[str, ...], ...]:
        """Observations in each multi-turn rollout."""
        return tuple(rerun.observations for rerun in self.reruns)

    @property
    def flaws(self) -> tuple[str, ...]:
        """For each multi-turn rollout the reason why no honest peer offers it: "short" if the model
        could say more, "ended" or "observation" as in `Rerun.fault`. "" for a sound multi-turn
        rollout."""
        return tuple(
            (rerun.fault if rerun.fault in _FLAWS else "") if rerun.is_over else "short"
            for rerun in self.reruns
        )


def check_count(texts: Sequence[object]) -> None:
    if len(texts) > MAX_TEXTS:
        raise ValueError(f"{len(texts)} texts at once: send at most {MAX_TEXTS}")


def cut(text: str) -> str | None:
    """The part of a text that is scored; None for lone surrogates, which no frame can carry."""
    end = text[-MAX_SCORED_CHARS:]
    try:
        end.encode()
    except UnicodeEncodeError:
        return None
    return end


def cut_transcript(transcript: Transcript) -> Transcript | None:
    """The scored part of a multi-turn rollout; None if no frame can carry one of its texts."""
    parts = [part for text in transcript.texts if (part := cut(text)) is not None]
    return Transcript(parts, transcript.cut) if len(parts) == len(transcript.texts) else None


def reruns_of(
    parts: Sequence[Transcript | None], lines: Sequence[RerunLine | str]
) -> tuple[Rerun, ...]:
    """All multi-turn rollouts re-run. `parts` are their scored parts. `lines` are the scoring
    worker's words on the multi-turn rollouts that were sent, or the reasons why it said nothing."""
    results = iter(lines)
    reruns: list[Rerun] = []
    for part in parts:
        line = "unsendable" if part is None else next(results)
        if isinstance(line, str):
            reruns.append(Rerun(fault=line))
            continue
        verdict = line.verdict or TextVerdict(0.0)
        lacks_verdict = line.over and line.verdict is None
        reruns.append(
            Rerun(
                tuple(line.observations),
                line.over,
                verdict.reward,
                "ended" if lacks_verdict else verdict.fault,
                verdict.raised,
            )
        )
    return tuple(reruns)


def group_scores(
    prompt: str, parts: Sequence[str | None], verdicts: Sequence[TextVerdict | str]
) -> GroupScores:
    """The scores of all texts. `parts` are their scored parts. `verdicts` are those on the texts
    that were sent, or the reasons why there are none."""
    results = iter(verdicts)
    outcomes = ["unsendable" if part is None else next(results) for part in parts]
    text_verdicts = [
        TextVerdict(0.0) if isinstance(verdict, str) else verdict for verdict in outcomes
    ]
    faults = [verdict if isinstance(verdict, str) else verdict.fault for verdict in outcomes]
    reasons = [fault for fault in faults if fault]
    return GroupScores(
        prompt=prompt,
        rewards=tuple(verdict.reward for verdict in text_verdicts),
        faults=len(reasons),
        fault_reason=next(iter(reasons), ""),
        exception=next((verdict.raised for verdict in text_verdicts if verdict.raised), ""),
    )
