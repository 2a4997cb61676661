"""TRL's GRPOTrainer alone: the child that `benchmarks/trl_swarm.py` starts beside a member.

Settings, progress and end are those of `examples/trl_member.py`. Tasks are of the same families,
and the scorer is that of the swarm's scoring workers, in this process. TRL samples by itself. Runs
in the environment of `make .venv-trl/.ready-with-member`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from trl_child import Rewards, environment_of, tasks
from trl_member import Progress, adapter, grpo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--families", nargs="+", required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--lora", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--save", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.model)
    environment = environment_of(arguments.environment, **arguments.options)
    rewards = Rewards(environment)
    count = arguments.updates * arguments.groups
    alone = SimpleNamespace(drawn=0, published=0)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=rewards,
        train_dataset=tasks(
            environment, rewards, tokenizer, count, arguments.seed, arguments.families
        ),
        callbacks=[Progress(alone, arguments.seconds, arguments.save)],
        peft_config=adapter(arguments.lora),
        args=grpo(arguments.save / "trl", arguments),
    )
    trainer.train()


if __name__ == "__main__":
    main()
