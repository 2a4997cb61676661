"""TRL's GRPOTrainer on the tiny model: the child that `benchmarks/trl_grpo.py` starts.

Runs in the environment of `benchmarks/trl-requirements.txt`, with this repository on PYTHONPATH for
the tasks and their scorer alone. Writes one JSON line to stdout when training begins and one at
each mark: CPU seconds since then without those spent on saving, steps, samples, and the weights'
file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from swarm_node.environments.base import Task
from swarm_node.environments.reasoning_gym.environment import create
from swarm_node.environments.seeds import task_seed
from swarm_node.rollout import TaskRef

#: More than TRL takes on any machine of today; making them is not measured.
PROMPTS_PER_SECOND = 400
ENVIRONMENT = create(preset="short")


@lru_cache(maxsize=64)
def derive(family: str, seed: int) -> Task:
    return ENVIRONMENT.derive(TaskRef(ENVIRONMENT.name, ENVIRONMENT.version, family, seed))


def reward(completions: list[str], family: list[str], seed: list[int], **_: object) -> list[float]:
    """Binary reward of each completion, by the same scorer as the node's."""
    tasks = [derive(name, number) for name, number in zip(family, seed, strict=True)]
    return [ENVIRONMENT.score(task, text) for task, text in zip(tasks, completions, strict=True)]


def tasks(tokenizer: Any, count: int, run_seed: int) -> Dataset:
    """Prompts as the node writes them, in the manner of its own stream of tasks."""
    rows = []
    for index in range(count):
        seed = task_seed("train", run_seed, "trl", index)
        family = ENVIRONMENT.families[seed % len(ENVIRONMENT.families)]
        question = ENVIRONMENT.render(derive(family, seed))
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        rows.append({"prompt": prompt, "family": family, "seed": seed})
    return Dataset.from_list(rows)


class Marks(TrainerCallback):
    """Saves the weights when so many CPU seconds are spent, and ends the run at the last mark."""

    def __init__(self, marks: list[float], directory: Path, samples: int) -> None:
        self._marks, self._directory, self._samples = list(marks), directory, samples
        self._started = 0.0

    def on_train_begin(self, *_: object, **__: object) -> None:
        self._started = time.process_time()
        tell({"begin": self._started})

    def on_step_end(self, _args: object, state: Any, control: Any, **kept: Any) -> None:
        spent = time.process_time() - self._started
        if spent < self._marks[0]:
            return
        path = self._directory / f"trl-{self._marks.pop(0):g}.safetensors"
        # The output matrix is the embedding's, and not stored twice.
        weights = kept["model"].state_dict()
        save_file({k: v.clone() for k, v in weights.items() if k != "lm_head.weight"}, path)
        steps = state.global_step
        tell({"cpu": spent, "steps": steps, "samples": steps * self._samples, "weights": str(path)})
        self._started += time.process_time() - self._started - spent
        control.should_training_stop = not self._marks


def tell(message: dict[str, object]) -> None:
    print(json.dumps(message), file=sys.__stdout__, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--marks", type=float, nargs="+", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.model)
    samples = arguments.groups * arguments.group_size
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=tasks(
            tokenizer, int(max(arguments.marks) * PROMPTS_PER_SECOND), arguments.seed
        ),
        callbacks=[Marks(arguments.marks, arguments.directory, samples)],
        args=GRPOConfig(
            output_dir=str(arguments.directory / "trl"),
            use_cpu=True,
            bf16=False,  # slower than float32 on most CPUs
            gradient_checkpointing=False,  # on by default; costs a second forward pass
            per_device_train_batch_size=samples,
            num_generations=arguments.group_size,
            max_completion_length=arguments.max_new_tokens,
            temperature=1.0,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",
            learning_rate=3e-4,
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
