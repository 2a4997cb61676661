"""TRL's GRPOTrainer in a swarm: it publishes what it samples, and trains on peers' groups as well.

    python trl_member.py --ticket-file team.ticket --families sorting reversal

TRL 1.16 takes samples from a `rollout_func`, which it calls experimental; nothing else of TRL is
used, and none of its private names. The function draws verified groups of peers, samples as many
own groups as fill the batch, and publishes those. The swarm's scoring worker gives all rewards.
Each update treats all tokens as its own (ratio 1), and leaves out peers' answers that are no better
than their group's mean, as nodes do: lowering what this policy hardly says has no bound.

With `--peers 0` it trains alone, on the same tasks and with the same scoring worker; with `--lora
16`, an adapter as nodes train it."""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import swarm_node


class SwarmRollouts:
    """Fills TRL's batches with own groups and with those of peers."""

    def __init__(self, swarm, peers):
        """`peers` is the most groups of peers in a batch."""
        self.swarm, self.peers = swarm, peers
        self.drawn = self.published = 0

    def __call__(self, prompts, trainer):
        size, version = trainer.num_generations, trainer.state.global_step
        count = len(prompts) // size
        rows = []
        peers = min(self.peers, count)
        for group in self.swarm.draw(peers, version=version) if peers else []:
            rows += peers_rows(group, size)
        self.drawn += len(rows) // size
        missing = count - len(rows) // size
        tasks = self.swarm.tasks(missing) if missing else []
        answers = sample(trainer, [task.prompt_ids for task in tasks], size)
        for number, task in enumerate(tasks):
            ids, logprobs = zip(*answers[number * size : (number + 1) * size], strict=True)
            group = self.swarm.publish(task, ids, logprobs, version)
            self.published += group.announced
            rows += [
                (task.prompt_ids, answer, reward, 1)
                for answer, reward in zip(ids, group.rewards, strict=True)
            ]
        return {
            "prompt_ids": [list(prompt) for prompt, *_ in rows],
            "completion_ids": [list(answer) for _, answer, *_ in rows],
            "logprobs": None,  # TRL reads them for vLLM alone
            "env_mask": [[learnt] * len(answer) for _, answer, _, learnt in rows],
            "reward": [reward for _, _, reward, _ in rows],
        }


def peers_rows(group, size):
    """Prompt, answer, reward and mask of `size` answers of a peer; none of a smaller group."""
    answers = [answer for answer in group.completions if answer.token_ids]
    if len(answers) < size:
        return []
    answers = random.sample(answers, size)
    mean = sum(answer.reward for answer in answers) / size
    return [
        (group.prompt_ids, answer.token_ids, answer.reward, int(answer.reward > mean))
        for answer in answers
    ]


@torch.no_grad()
def sample(trainer, prompts, size):
    """Token ids and their log-probs of `size` answers to each prompt."""
    if not prompts:
        return []
    tokenizer, model, args = trainer.processing_class, trainer.model, trainer.args
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    model.eval()
    made = model.generate(
        input_ids=ids.repeat_interleave(size, 0).to(model.device),
        attention_mask=mask.repeat_interleave(size, 0).to(model.device),
        do_sample=True,
        temperature=args.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=args.max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
        return_dict_in_generate=True,
        output_scores=True,  # after the temperature, as peers expect it
    )
    model.train()
    answers = made.sequences[:, longest:]
    logprobs = torch.stack(made.scores, 1).float().log_softmax(-1)
    logprobs = logprobs.gather(-1, answers[..., None])[..., 0]
    ends = answers == tokenizer.eos_token_id
    lengths = torch.where(ends.any(1), ends.int().argmax(1) + 1, answers.shape[1])
    return [
        (answer[:length].tolist(), each[:length].tolist())
        for answer, each, length in zip(answers, logprobs, lengths, strict=True)
    ]


def swarm_reward(completions, reward, **_):
    """Return the rewards that the swarm's scoring worker gave when the groups were published or
    drawn."""
    return reward


class Progress(TrainerCallback):
    """Prints a JSON line from time to time, and ends the run when its time is over."""

    def __init__(self, rollouts, seconds, save):
        self.rollouts, self.seconds, self.save = rollouts, seconds, save
        self.began = self.told = time.monotonic()

    def on_step_end(self, args, state, control, model=None, **kept):
        now = time.monotonic()
        control.should_training_stop |= now - self.began > self.seconds
        if now - self.told > 10 or control.should_training_stop:
            self.told = now
            print(
                json.dumps(
                    {
                        "updates": state.global_step,
                        "seconds": round(now - self.began, 1),
                        "cpu": round(time.process_time(), 1),
                        "drawn": self.rollouts.drawn,
                        "published": self.rollouts.published,
                    }
                ),
                flush=True,
            )

    def on_train_end(self, args, state, control, model=None, **kept):
        if self.save is not None:
            model.save_pretrained(self.save)


def adapter(rank):
    """Return peft's settings of a node's adapter, None for all weights."""
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    modules = [*attention, "gate_proj", "up_proj", "down_proj"]
    if not rank:
        return None
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=modules, task_type="CAUSAL_LM")


def grpo(directory, arguments):
    """Return TRL's settings for the `arguments` of a command: those of a node."""
    return GRPOConfig(
        output_dir=str(directory),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=arguments.groups * arguments.group_size,
        num_generations=arguments.group_size,
        max_completion_length=arguments.tokens,
        temperature=arguments.temperature,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        adam_beta2=0.99,
        weight_decay=0.0,
        max_steps=arguments.updates,
        seed=arguments.seed,
        save_strategy="no",
        logging_steps=100,
        report_to="none",
        disable_tqdm=True,
    )


def member_settings(arguments):
    """Return the settings of the member in the swarm."""
    settings = {
        "environment.name": arguments.environment,
        **{f"environment.options.{key}": value for key, value in arguments.options.items()},
        "environment.families": arguments.families,
        "sampling.group_size": arguments.group_size,
        "sampling.max_new_tokens": arguments.tokens,
        "sampling.temperature": arguments.temperature,
        "experience.local": arguments.groups,
        "experience.external": max(1, arguments.peers),
        "run.seed": arguments.seed,
    }
    if arguments.listen:
        settings["network.listen"] = arguments.listen
    return settings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ticket-file", type=Path, help="needed by a home that joined no swarm")
    parser.add_argument("--home", type=Path, help="kept; without one a temporary home")
    parser.add_argument("--model", default="tiny", help="as of `swarm-node join --model`")
    parser.add_argument("--environment", default="drills", help="of the swarm's tasks")
    parser.add_argument("--options", type=json.loads, default={}, help="its options, as JSON")
    parser.add_argument("--families", nargs="*", default=[], help="of own tasks; all by default")
    parser.add_argument("--groups", type=int, default=8, help="groups of a batch")
    parser.add_argument("--peers", type=int, default=4, help="the most of them that peers made")
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24, help="longest answer")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--lora", type=int, default=0, help="rank of an adapter; 0: all weights")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--listen", nargs="*", help="addresses, as of `swarm-node join --listen`")
    parser.add_argument("--save", type=Path, help="a directory for the trained model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with swarm_node.member(
        arguments.ticket_file,
        member_settings(arguments),
        model=arguments.model,
        home=arguments.home,
    ) as swarm:
        directory = swarm.model_directory
        rollouts = SwarmRollouts(swarm, arguments.peers)
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32),
            processing_class=PreTrainedTokenizerFast.from_pretrained(directory),
            reward_funcs=swarm_reward,
            rollout_func=rollouts,
            # Tasks come from the swarm: the rows only say how many there are in a batch.
            train_dataset=Dataset.from_list([{"prompt": ""}] * arguments.groups),
            callbacks=[Progress(rollouts, arguments.seconds, arguments.save)],
            peft_config=adapter(arguments.lora),
            args=grpo(swarm.home / "trl", arguments),
        )
        trainer.train()


if __name__ == "__main__":
    main()
