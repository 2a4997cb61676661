"""Results of judging: what comes of the texts or dialogues of one group. Pure.

The host cuts what it sends to a judge, and puts together what the judge said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm_node.environments.answers.final import MAX_JUDGED_CHARS
from swarm_node.environments.workers.scoring_worker import ReplayedLine, TextVerdict, Transcript

MAX_TEXTS = 64
_FLAWS = frozenset({"ended", "reply"})


@dataclass(frozen=True, slots=True)
class ReplayedDialogue:
    """A dialogue replayed: what the environment said to each turn, and, once it `is_over`, the
    reward in [0, 1]. `fault` is "" or the reason why the dialogue ended with zero: one of those of
    `Judgement`, "reply" for a reply that cannot be sent or raised, "ended" if the model said more
    after the end. `exception` is as in `Judgement`."""

    replies: tuple[str, ...] = ()
    is_over: bool = True
    reward: float = 0.0
    fault: str = ""
    exception: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Prompt and rewards (one per text, each in [0, 1]) of a group.

    `faults` counts the rewards that are zero because scoring failed. `fault_reason` is the reason
    of the first: "out_of_range", "unsendable", "abandoned", a reason of `fault_attribution.Reason`,
    or "" for none. `exception` names the first exception of a scorer, "" for none; such a text is a
    wrong answer. `loss_reason` is the reason why peers' texts ended their judge, "asleep" if they
    made it sleep, "" if they did not; `unjudged` is the reason why this node could not score them,
    which is nobody's fault. With either, none of them was scored. `seconds` are those that the
    judge took, without the time that the group waited for it."""

    prompt: str
    rewards: tuple[float, ...]
    faults: int = 0
    fault_reason: str = ""
    exception: str = ""
    loss_reason: str = ""
    unjudged: str = ""
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class JudgedDialogues:
    """The prompt and the dialogues of a group, replayed. `loss_reason`, `unjudged` and `seconds`
    are as in `Judgement`; with one of the first two there are no dialogues."""

    prompt: str
    dialogues: tuple[ReplayedDialogue, ...]
    loss_reason: str = ""
    unjudged: str = ""
    seconds: float = field(compare=False, kw_only=True)

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(dialogue.reward for dialogue in self.dialogues)

    @property
    def replies(self) -> tuple[tuple[str, ...], ...]:
        """Replies in each dialogue."""
        return tuple(dialogue.replies for dialogue in self.dialogues)

    @property
    def flaws(self) -> tuple[str, ...]:
        """For each dialogue the reason why no honest peer offers it: "short" if the model could say
        more, "ended" or "reply" as in `ReplayedDialogue.fault`. "" for a sound dialogue."""
        return tuple(
            (dialogue.fault if dialogue.fault in _FLAWS else "") if dialogue.is_over else "short"
            for dialogue in self.dialogues
        )


def check_count(texts: Sequence[object]) -> None:
    if len(texts) > MAX_TEXTS:
        raise ValueError(f"{len(texts)} texts in one judgement: send at most {MAX_TEXTS}")


def cut(text: str) -> str | None:
    """The part of a text that is judged; None for lone surrogates, which no frame can carry."""
    end = text[-MAX_JUDGED_CHARS:]
    try:
        end.encode()
    except UnicodeEncodeError:
        return None
    return end


def cut_transcript(transcript: Transcript) -> Transcript | None:
    """The judged part of a dialogue; None if no frame can carry one of its texts."""
    parts = [part for text in transcript.texts if (part := cut(text)) is not None]
    return Transcript(parts, transcript.cut) if len(parts) == len(transcript.texts) else None


def replayed(
    parts: Sequence[Transcript | None], lines: Sequence[ReplayedLine | str]
) -> tuple[ReplayedDialogue, ...]:
    """All dialogues replayed. `parts` are their judged parts. `lines` are the judge's words on the
    dialogues that were sent, or the reasons why it said nothing."""
    results = iter(lines)
    replays: list[ReplayedDialogue] = []
    for part in parts:
        line = "unsendable" if part is None else next(results)
        if isinstance(line, str):
            replays.append(ReplayedDialogue(fault=line))
            continue
        verdict = line.verdict or TextVerdict(0.0)
        lacks_verdict = line.over and line.verdict is None
        replays.append(
            ReplayedDialogue(
                tuple(line.replies),
                line.over,
                verdict.reward,
                "ended" if lacks_verdict else verdict.fault,
                verdict.raised,
            )
        )
    return tuple(replays)


def judgement(
    prompt: str, parts: Sequence[str | None], verdicts: Sequence[TextVerdict | str]
) -> Judgement:
    """The judgement of all texts. `parts` are their judged parts. `verdicts` are those on the texts
    that were sent, or the reasons why there are none."""
    results = iter(verdicts)
    outcomes = ["unsendable" if part is None else next(results) for part in parts]
    text_verdicts = [
        TextVerdict(0.0) if isinstance(verdict, str) else verdict for verdict in outcomes
    ]
    faults = [verdict if isinstance(verdict, str) else verdict.fault for verdict in outcomes]
    reasons = [fault for fault in faults if fault]
    return Judgement(
        prompt=prompt,
        rewards=tuple(verdict.reward for verdict in text_verdicts),
        faults=len(reasons),
        fault_reason=next(iter(reasons), ""),
        exception=next((verdict.raised for verdict in text_verdicts if verdict.raised), ""),
    )
