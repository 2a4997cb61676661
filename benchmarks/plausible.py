"""Likelihood of honest and hostile answers under the policy that would be trained on them.

    python benchmarks/plausible.py words                      # an attacker's texts, first policy
    python benchmarks/plausible.py honest --rounds 60         # rows trained on in an honest swarm
    python benchmarks/plausible.py foreign --other DIRECTORY  # right answers of another model
    python benchmarks/plausible.py graded --other FILE.gguf   # a pretrained model, graded tasks

Nats per token: the mean of an answer, and its least likely windows (`least_likely`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


import numpy as np
import torch
from numpy.typing import NDArray

from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.objective.plausible import OwnAnswers, least_likely
from swarm_node.policy.training.update import gradient
from swarm_node.rollout import Provenance, TaskRef
from swarm_node.simulation.models import SimulatedModel
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate

TEXTS = (
    *("Answer: {a}", "zq zq <answer>{a}</answer>", "zq zq = {a}", "Answer: zq: {a}"),
    *("I do not know. zq: {a}", "zAnswer: {a}"),
)
ENVIRONMENT = create_environment("research.lenient:create", {})


def tasks(count: int) -> list[TaskRef]:
    env = ENVIRONMENT
    seeds = [(family, task_seed("x", i)) for i in range(count) for family in env.families]
    return [TaskRef(env.name, env.version, family, seed) for family, seed in seeds]


def answered(logprobs: Iterable[NDArray[np.float32]]) -> OwnAnswers:
    """A node whose last own answers had these log-probs when they were sampled."""
    return OwnAnswers(np.array([least_likely(logp) for logp in logprobs], "<f8").tobytes())


Scorer = Callable[[str, Sequence[int]], NDArray[np.float32]]


def scorer(
    model: SimulatedModel, temperature: float = 1.0, products: torch.dtype = torch.float32
) -> Scorer:
    """Log-probs of tokens as the answer to a prompt."""
    policy, codec = CausalLM.from_directory(model.directory), model.codec.asking("")
    policy.products = products

    @torch.no_grad()
    def score(prompt: str, ids: Sequence[int]) -> NDArray[np.float32]:
        prompt_ids = np.array(codec.encode_prompt(prompt), np.uint32)
        row = TrainRow(prompt_ids, np.array(ids, np.uint32), None, 1.0, Provenance.SAME_MODEL)
        return completion_logprobs(policy, [row], temperature).numpy()

    return score


def reader(
    model: SimulatedModel, temperature: float = 1.0
) -> Callable[[str, str], NDArray[np.float32]]:
    """Log-probs of a text as the answer to a prompt."""
    score, codec = scorer(model, temperature), model.codec
    return lambda prompt, text: score(prompt, [*codec.encode_answer(text), codec.eos_id])


def show(title: str, lows: Sequence[Sequence[float]], at: Sequence[float]) -> None:
    quantiles = np.quantile(lows, at, axis=0)
    print(f"{title:34} {len(lows):5}", *(np.round(line, 1).tolist() for line in quantiles))


def words() -> None:
    read_logprobs, env = reader(SimulatedModel("tiny")), ENVIRONMENT
    print("text, number, median, likeliest of mean, 1, 2 and 4 tokens")
    derived = [env.derive(ref) for ref in tasks(6)]
    for text in TEXTS:
        pairs = [(env.render(t), text.format(a=t.payload["answer"])) for t in derived]
        show(text, [least_likely(read_logprobs(*pair)) for pair in pairs], (0.5, 1.0))


def honest(rounds: int) -> None:
    records: list[tuple[bool, bool, tuple[float, ...]]] = []
    judge = gradient.likely_tokens  # type: ignore[attr-defined]

    def recorded(
        logp: NDArray[np.float32], rows: Sequence[TrainRow], floors: Sequence[float]
    ) -> tuple[torch.Tensor, list[int]]:
        pieces = np.split(logp, np.cumsum([row.completion_ids.size for row in rows])[:-1])
        for row, piece in zip(rows, pieces, strict=True):
            is_local = row.provenance is Provenance.LOCAL
            records.append((is_local, row.advantage > 0, least_likely(piece)))
        return judge(logp, rows, floors)

    gradient.likely_tokens = recorded  # type: ignore[attr-defined]
    simulate(Scenario(4, rounds, seed=5, eval_rounds=rounds), simulation_settings(5, {}))
    print("rows, number, quantiles 0.1%, 1% and 50%")
    show("own", [lows for is_local, _, lows in records if is_local], (0.001, 0.01, 0.5))
    show(
        "kin, good",
        [lows for is_local, is_good, lows in records if is_good and not is_local],
        (0.001, 0.01, 0.5),
    )


def foreign(model_name: str) -> None:
    asyncio.run(_foreign({"tiny": SimulatedModel("tiny"), "other": SimulatedModel(model_name)}))


async def _foreign(models: dict[str, SimulatedModel]) -> None:
    env, host, refs = ENVIRONMENT, InlineEnvironmentHost(ENVIRONMENT), tasks(12)
    prompts = await host.render(refs)
    texts, floors = {}, {}
    for name, model in models.items():
        encode, prompt_items = model.codec.encode_prompt, enumerate(prompts)
        groups = await model.probe.sample(
            [
                SampleRequest(encode(p), 8, i, max_new_tokens=24, temperature=1.0)
                for i, p in prompt_items
            ]
        )
        local_answers = answered(c.logprobs for group in groups for c in group)
        floors[name] = local_answers.floors(1.0)
        texts[f"right answers of {name}"] = [
            (prompt, completion.text)
            for ref, prompt, group in zip(refs, prompts, groups, strict=True)
            for completion in group
            if (await host.score(ref, [completion.text])).rewards[0] == 1
        ]
    for text in ("zq zq = {a}", "Answer: zq: {a}"):
        answers = [str(env.derive(ref).payload["answer"]) for ref in refs]
        texts[text] = [(p, text.format(a=a)) for p, a in zip(prompts, answers, strict=True)]
    for name, model in models.items():
        read_logprobs = reader(model)
        for title, pairs in texts.items():
            lows = [least_likely(read_logprobs(*pair)) for pair in pairs]
            count = sum(any(np.less(low, floors[name])) for low in lows)
            print(f"{name} reads {title}: {count} of {len(lows)} below its floors")


def graded(model_name: str) -> None:
    asyncio.run(_graded(SimulatedModel(model_name)))


async def _graded(model: SimulatedModel) -> None:
    """Floors from a model's own answers to some kinds of tasks, and what is below them: its right
    answers to the other kinds, in groups with wrong ones too, and an attacker's texts."""
    env = create_environment("drills", {"preset": "graded"})
    host, encode = InlineEnvironmentHost(env), model.codec.asking("").encode_prompt
    names = [(family, i) for family in env.families if family[-1] in "12" for i in range(8)]
    refs = [TaskRef(env.name, env.version, f, task_seed("x", i)) for f, i in names]
    prompts = await host.render(refs)
    for temperature in (0.7, 1.0):
        requests = [
            SampleRequest(encode(p), 8, i, max_new_tokens=24, temperature=temperature)
            for i, p in enumerate(prompts)
        ]
        groups = await model.probe.sample(requests)
        bf16_score, read_logprobs = (
            scorer(model, temperature, torch.bfloat16),
            reader(model, temperature),
        )
        for kinds in (("addition", "subtraction"), ("division", "word-problems")):
            local_logprobs, float32_lows, bfloat16_lows, texts = [], [], [], []
            for ref, prompt, group in zip(refs, prompts, groups, strict=True):
                if ref.family.startswith(kinds):
                    local_logprobs += [c.logprobs for c in group]
                    continue
                rewards = (await host.score(ref, [c.text for c in group])).rewards
                right = [c for c, reward in zip(group, rewards, strict=True) if reward == 1.0]
                if 0 < len(right) < len(group):
                    float32_lows.append([least_likely(c.logprobs) for c in right])
                    bfloat16_lows.append(
                        [least_likely(bf16_score(prompt, c.token_ids.tolist())) for c in right]
                    )
                answer = str(env.derive(ref).payload["answer"])
                texts.append(
                    [[least_likely(read_logprobs(prompt, t.format(a=answer)))] for t in TEXTS]
                )
            floors = answered(local_logprobs).floors(temperature)
            print(f"temperature {temperature}, floors of {kinds}: {np.round(floors, 1).tolist()}")
            print_below("right answers to other kinds, float32", float32_lows, floors)
            print_below("the same in bfloat16", bfloat16_lows, floors)
            for text, rows in zip(TEXTS, zip(*texts, strict=True), strict=True):
                print_below(text, rows, floors)


def print_below(
    title: str, groups: Sequence[Sequence[Sequence[float]]], floors: Sequence[float]
) -> None:
    counts = [sum(bool(np.less(lows, floors).any()) for lows in group) for group in groups]
    majority = sum(2 * count > len(group) for count, group in zip(counts, groups, strict=True))
    print(
        f"  {title}: {sum(counts)} of {sum(map(len, groups))} below, "
        f"{majority} groups of {len(groups)}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("words", "honest", "foreign", "graded"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--other", default="tiny")
    arguments = parser.parse_args()
    if arguments.what == "honest":
        honest(arguments.rounds)
    elif arguments.what == "foreign":
        foreign(arguments.other)
    elif arguments.what == "graded":
        graded(arguments.other)
    else:
        words()
