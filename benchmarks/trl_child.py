"""TRL's GRPOTrainer: the child that `benchmarks/trl_grpo.py` starts.

Runs in the environment of `benchmarks/trl-requirements.txt`, with this repository on PYTHONPATH for
the tasks and their scorer alone. Writes one JSON line to stdout after the first update and one at
each mark: CPU seconds since then without those spent on saving, updates, samples, the mean length
of the newest answers, and the weights' file or the adapter's directory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from trl_member import adapter

from swarm_node.environments.base import Environment, Task
from swarm_node.environments.bundled import drills
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.rollout import TaskRef


def environment_of(name: str, **options: Any) -> Environment:
    """The environment that the node calls `name`, whose entry points are not installed here. It is
    split as the node's, so no held-out text is trained on."""
    if name == "drills":
        return SplitEnvironment(drills.create("short"))
    module, _, function = name.partition(":")
    return SplitEnvironment(getattr(import_module(module), function)(**options))


class Rewards:
    """Binary rewards of completions, by the same scorer as the node's."""

    __name__ = "reward"  # TRL asks for it

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.derive = lru_cache(maxsize=64)(self._derive)
        #: Mean length of the newest completions in tokens.
        self.tokens = 0.0

    def __call__(
        self,
        completions: list[str],
        completion_ids: list[list[int]],
        family: list[str],
        seed: list[int],
        **_: object,
    ) -> list[float]:
        self.tokens = sum(map(len, completion_ids)) / len(completion_ids)
        return [
            self._environment.score(self.derive(name, number), text)
            for name, number, text in zip(family, seed, completions, strict=True)
        ]

    def _derive(self, family: str, seed: int) -> Task:
        environment = self._environment
        return environment.derive(TaskRef(environment.name, environment.version, family, seed))


def tasks(
    environment: Environment,
    rewards: Rewards,
    tokenizer: Any,
    count: int,
    run_seed: int,
    families: Sequence[str] = (),
) -> Dataset:
    """Prompts as the node writes them, in the manner of its own stream of tasks. They are of these
    `families`, by default of all."""
    rows, chosen_families = [], families or environment.families
    for index in range(count):
        seed = task_seed("train", run_seed, "trl", index)
        family = chosen_families[seed % len(chosen_families)]
        question = environment.render(rewards.derive(family, seed))
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        rows.append({"prompt": prompt, "family": family, "seed": seed})
    return Dataset.from_list(rows)


class Marks(TrainerCallback):  # type: ignore[misc]
    """Reports each mark of CPU seconds, and ends the run at the last one. Saves the weights
    then."""

    def __init__(self, arguments: argparse.Namespace, rewards: Rewards) -> None:
        self._marks, self._directory = list(arguments.marks), arguments.directory
        self._samples = arguments.groups * arguments.group_size
        self._rewards = rewards
        self._lora = arguments.lora > 0
        self._started = 0.0

    def on_step_end(self, _args: object, state: Any, control: Any, **trainer_parts: Any) -> None:
        updates = state.global_step - 1
        if not updates:
            self._started = time.process_time()
            tell({"begin": self._started})
            return
        cpu_seconds = time.process_time() - self._started
        if cpu_seconds < self._marks[0]:
            return
        path = str(self._directory / f"trl-{self._marks.pop(0):g}.safetensors")
        if self._lora:
            trainer_parts["model"].save_pretrained(path)
        else:
            # The output matrix is the embedding's, and not stored twice.
            weights = trainer_parts["model"].state_dict()
            save_file({k: v.clone() for k, v in weights.items() if k != "lm_head.weight"}, path)
        tell(
            {
                "cpu": cpu_seconds,
                "updates": updates,
                "samples": updates * self._samples,
                "weights": path,
                "tokens": self._rewards.tokens,
            }
        )
        self._started = time.process_time() - cpu_seconds
        control.should_training_stop = not self._marks


def tell(message: dict[str, object]) -> None:
    print(json.dumps(message), file=sys.__stdout__, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--options", type=json.loads, required=True, help="of the environment")
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--lora", type=int, required=True, help="rank; 0 trains all weights")
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="of a forward and backward pass")
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--marks", type=float, nargs="+", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.model)
    environment = environment_of(arguments.environment, **arguments.options)
    rewards = Rewards(environment)
    dtype = getattr(torch, arguments.dtype)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype),
        processing_class=tokenizer,
        reward_funcs=rewards,
        train_dataset=tasks(environment, rewards, tokenizer, arguments.prompts, arguments.seed),
        callbacks=[Marks(arguments, rewards)],
        peft_config=adapter(arguments.lora),
        args=GRPOConfig(
            output_dir=str(arguments.directory / "trl"),
            use_cpu=True,
            bf16=dtype == torch.bfloat16,
            gradient_checkpointing=False,  # on by default; costs a second forward pass
            per_device_train_batch_size=arguments.rows,
            gradient_accumulation_steps=arguments.groups * arguments.group_size // arguments.rows,
            num_generations=arguments.group_size,
            max_completion_length=arguments.max_new_tokens,
            temperature=arguments.temperature,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",
            learning_rate=arguments.learning_rate,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=10,
            adam_beta1=0.9,
            adam_beta2=0.99,
            weight_decay=0.0,
            max_grad_norm=1.0,
            max_steps=1_000_000,
            seed=arguments.seed,
            save_strategy="no",
            logging_steps=100,
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries the marks alone
        main()
