"""Builds the tiny models that ship with the program: 0.17 million weights, in three minutes. It
also builds smaller and larger variants, for swarms of unlike nodes.

A node runs one of them by default: it is small enough for one CPU core, and reinforcement learning
can improve it. Its warm start is a *noisy* corpus. Most answers there are right but end in a mark
that scores nothing, and only a few have the ending that their family asks for. So the model has the
skill but seldom uses it, and reinforcement learning makes it use the skill more often. In
multi-turn rollouts the last turns are noisy in the same way: most listen and end in a mark, or do
not listen. Earlier turns are mostly right, so that the model hears observations."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from swarm_node.errors import ConfigError
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM

PAD, BOS, EOS, SEP = range(4)
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<sep>")
FIRST_BYTE_ID = len(SPECIAL_TOKENS)
STEPS = 2500
MULTI_TURN_STEPS = 3000
MAX_POSITIONS = 1024
#: A conversation is its contents between <bos> and <sep>; there are no roles.
CHAT_TEMPLATE = (
    "{{ '<bos>' }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<sep>' }}{% endif %}"
)
#: The roles of a multi-turn rollout, in the same tokens: a question and an observation end in
#: <sep>, what the model says in <eos>.
MULTI_TURN_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ message['content'] + '<eos>' }}{% else %}{{ '<bos>' + message['content'] }}"
    "{% if add_generation_prompt or not loop.last %}{{ '<sep>' }}{% endif %}{% endif %}{% endfor %}"
)

_PHRASE_ITEMS = 1024
_PHRASE_QUESTIONS = 60
_MIN_PHRASE = 5
_WORD = re.compile(" ?[A-Za-z]{3,}")
_BATCH = 64
_LEARNING_RATE = 3e-3
_WARMUP_STEPS = 50
_EVASIONS = ("I do not know.", "Sorry.", "?")
#: A wrapped answer ends in another of these than the right one.
_ENDINGS = ("", ".", "!", ";")


@dataclass(frozen=True, slots=True)
class Noise:
    """Shares of answers in the warm start's corpus. `bare_share` answers are right and score;
    `wrong_share` and `evasive_share` ones do not. The others are right but for their ending, and
    score nothing. The smaller `bare_share` is, the sparser is the reward at the start of
    reinforcement learning.

    Raises:
        ConfigError: a share is negative, or their sum is more than 1.
    """

    bare_share: float = 0.04
    wrong_share: float = 0.05
    evasive_share: float = 0.15

    def __post_init__(self) -> None:
        shares = (self.bare_share, self.wrong_share, self.evasive_share)
        if not (min(shares) >= 0 and sum(shares) <= 1):
            raise ConfigError("the shares of bare, wrong and evasive answers add up to at most 1")


SHIPPED_NOISE = Noise()
#: Of a multi-turn rollout: turns that an observation follows, and last turns.
EARLIER_NOISE = Noise(bare_share=0.9, wrong_share=0.03, evasive_share=0.03)
LAST_NOISE = Noise(bare_share=0.12, wrong_share=0.45, evasive_share=0.03)

#: (hidden, intermediate, layers) by name; all sizes have four heads on two key/value heads. With
#: the phrases as tokens they have 69, 166 and 824 thousand weights.
_SIZES = {"small": (48, 144, 2), "tiny": (64, 192, 3), "medium": (128, 384, 4)}
_TOKENIZERS = ("phrases", "words")
_CORPORA = ("single-turn", "multi-turn")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe of a model; the default is the shipped one for answers. Both tokenizers have a token
    for each byte. "phrases" adds one for each fixed part of a question or observation, "words" one
    for each common word and each pair of digits. So one text has different ids and lengths in the
    two tokenizers. The chat template of a model for the corpus "multi-turn" has roles.

    Raises:
        ConfigError: there is no such size, tokenizer or corpus, or nothing to train.
    """

    size: str = "tiny"
    tokenizer: str = "phrases"
    noise: Noise = SHIPPED_NOISE
    steps: int = STEPS
    seed: int = 0
    corpus: str = "single-turn"

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("size", self.size, tuple(_SIZES)),
            ("tokenizer", self.tokenizer, _TOKENIZERS),
            ("corpus", self.corpus, _CORPORA),
        ):
            if value not in choices:
                raise ConfigError(
                    f"there is no {name} {value}", f"choose from {', '.join(choices)}"
                )
        if self.steps < 1:
            raise ConfigError("a warm start takes 1 step or more")


SHIPPED = Recipe()
SHIPPED_TALK = Recipe(noise=LAST_NOISE, steps=MULTI_TURN_STEPS, corpus="multi-turn")


def shipped_recipe(
    corpus: str, shares: Mapping[str, float | None], **changes: str | int | None
) -> Recipe:
    """The recipe of the shipped model of a corpus, with other `shares` of its noise and `changes`
    where they are not None.

    Raises:
        ConfigError: as `Recipe` and `Noise`.
    """
    base = SHIPPED_TALK if corpus == "multi-turn" else replace(SHIPPED, corpus=corpus)
    noise = replace(base.noise, **{name: of for name, of in shares.items() if of is not None})
    overrides: dict[str, Any] = {name: of for name, of in changes.items() if of is not None}
    return replace(base, noise=noise, **overrides)


class CorpusItem(NamedTuple):
    """A question with its right answer; `family` names the kind of task. In a multi-turn rollout
    `answer` is what an author said first. `later_turns` has the observation to it, what the author
    said next, and so on. These words are spoilt already, because what is said decides what
    follows."""

    family: str
    question: str
    answer: str
    later_turns: tuple[str, ...] = ()


def build_tiny(
    out: Path,
    corpus: Iterator[CorpusItem],
    recipe: Recipe = SHIPPED,
    *,
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> None:
    """Train a model on an endless `corpus` and write its complete directory to `out`.

    The same corpus and recipe give the same bytes on one machine and torch version.
    `progress` is called with the step, the number of steps and the loss (nats per token).
    """
    from safetensors.torch import save_file

    first = list(islice(corpus, _PHRASE_ITEMS))
    miner = mine_phrases if recipe.tokenizer == "phrases" else mine_words
    tokenizer = build_tokenizer(miner([*first, *_observations(first)]))
    config = tiny_config(tokenizer.get_vocab_size(), recipe.size)
    model = CausalLM(config, generator=torch.Generator().manual_seed(recipe.seed))
    threads = torch.get_num_threads()
    # One thread is reproducible; sums over several depend on how the work was split.
    torch.set_num_threads(1)
    try:
        items: Iterator[CorpusItem] = chain(first, corpus)
        if recipe.corpus == "single-turn":
            rng = random.Random(recipe.seed)  # noqa: S311 - reproducible, not secret
            items = noisy_corpus(items, rng, recipe.noise)
        _warm_start(model, _sequences(items, tokenizer.encode), recipe.steps, progress)
    finally:
        torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    _write_json(out / "config.json", {**config.to_hf(), **ids, "dtype": "float32"})
    _write_json(out / "generation_config.json", {**ids, "do_sample": True, "temperature": 1.0})
    _write_json(out / "tokenizer_config.json", _tokenizer_config(recipe.corpus))
    tokenizer.save(str(out / "tokenizer.json"))
    weights = out / "model.safetensors"
    save_file(model.hf_state(), weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # made private by default, which an installed package must not be


def tiny_config(vocab_size: int, size: str = SHIPPED.size) -> ModelConfig:
    """The architecture of a size; the shipped one has 166 thousand weights at 284 tokens."""
    hidden_size, intermediate, layers = _SIZES[size]
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
    )


def mine_phrases(items: Iterable[CorpusItem]) -> list[str]:
    """The fixed parts of each family's question template, longest first.

    A part is the longest string that all questions of a family share; the search continues left and
    right of it. Only ASCII counts, because a byte-level decoder reads other characters of an added
    token as bytes."""
    questions: dict[str, list[str]] = {}
    for item in items:
        questions.setdefault(item.family, []).append(item.question)
    phrases: set[str] = set()
    queue = [texts[:_PHRASE_QUESTIONS] for _, texts in sorted(questions.items())]
    while queue:
        texts = queue.pop()
        substring = _longest_shared(texts)
        if len(substring) < _MIN_PHRASE:
            continue
        phrases.add(substring)
        halves = [text.split(substring, 1) for text in texts]
        queue += [[left for left, _ in halves], [right for _, right in halves]]
    return sorted(phrases, key=lambda phrase: (-len(phrase), phrase))


def mine_words(items: Sequence[CorpusItem]) -> list[str]:
    """The words of at least one question in a hundred, in alphabetical order and with the space
    before them, and then the pairs of digits."""
    counts = Counter(word for item in items for word in {*_WORD.findall(item.question)})
    words = sorted(word for word, count in counts.items() if count * 100 >= len(items))
    return [*words, *(f"{pair:02}" for pair in range(100))]


def build_tokenizer(phrases: Sequence[str]) -> Any:
    """A byte-level `tokenizers.Tokenizer` with one token per phrase; lossless on all of UTF-8.

    Ids: 0-3 pad, bos, eos, sep; 4-259 the bytes in order; then the phrases. A phrase is an added
    token, because no merges make it, and an entry of the vocabulary, so that texts consist of it
    (see `TextEncoder`)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    symbols = {byte: chr(symbol) for byte, symbol in enumerate(_byte_symbols())}
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    vocabulary |= {symbols[byte]: FIRST_BYTE_ID + byte for byte in range(256)}
    vocabulary |= {phrase: len(vocabulary) + place for place, phrase in enumerate(phrases)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return tokenizer


def noisy_corpus(
    items: Iterable[CorpusItem], rng: random.Random, noise: Noise = SHIPPED_NOISE
) -> Iterator[CorpusItem]:
    """The items, with most answers made wrong, evasive, or right but for their ending.

    A wrong answer is the right one of an earlier question of the same family, so that it teaches
    the family's form of answer but not its content."""
    last_answers: dict[str, str] = {}

    def another(item: CorpusItem) -> str:
        answer = last_answers.get(item.family, item.answer)
        last_answers[item.family] = item.answer
        return answer

    for item in items:
        yield item._replace(answer=spoilt(item.answer, partial(another, item), rng, noise))


def spoilt(right: str, wrong_answer: Callable[[], str], rng: random.Random, noise: Noise) -> str:
    """The `right` words, or, in the shares of `noise`, wrong or evasive ones or another ending."""
    draw = rng.random()
    if draw < noise.bare_share:
        return right
    if draw < noise.bare_share + noise.wrong_share:
        return wrong_answer()
    if draw < noise.bare_share + noise.wrong_share + noise.evasive_share:
        return rng.choice(_EVASIONS)
    stem = right.rstrip("".join(_ENDINGS))
    return stem + rng.choice([ending for ending in _ENDINGS if ending != right[len(stem) :]])


def _observations(items: Iterable[CorpusItem]) -> Iterator[CorpusItem]:
    """The observations of multi-turn rollouts as questions; those with the same letters are of one
    family."""
    for item in items:
        for observation in item.later_turns[::2]:
            yield CorpusItem(
                f"{item.family} {''.join(filter(str.isalpha, observation))}", observation, ""
            )


def _longest_shared(texts: list[str]) -> str:
    shortest_text = min(texts, key=len)
    substring = ""
    for start in range(len(shortest_text)):
        end = start + len(substring) + 1
        while end <= len(shortest_text) and shortest_text[start:end].isascii():
            if not all(shortest_text[start:end] in text for text in texts):
                break
            substring = shortest_text[start:end]
            end += 1
    return substring


def _byte_symbols() -> list[int]:
    # GPT-2's printable stand-ins for the 256 bytes, which ByteLevel expects: printable bytes stand
    # for themselves, the others for the code points from 256 on, in order.
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    symbols, code_point = [], 256
    for byte in range(256):
        symbols.append(byte if byte in printable else code_point)
        code_point += byte not in printable
    return symbols


def _sequences(
    items: Iterable[CorpusItem], encode: Callable[..., Any]
) -> Iterator[tuple[list[int], list[bool]]]:
    """Pairs of token ids, and of True where the model is to say the token."""
    for item in items:
        ids: list[int] = []
        loss_mask: list[bool] = []
        for place, text in enumerate((item.question, item.answer, *item.later_turns)):
            is_answer, part = place % 2 == 1, encode(text, add_special_tokens=False).ids
            part = [*part, EOS] if is_answer else [BOS, *part, SEP]
            ids += part
            loss_mask += [is_answer] * len(part)
        yield ids, loss_mask


def _batch(rows: list[tuple[list[int], list[bool]]]) -> tuple[Tensor, Tensor]:
    """Right-padded ids i64[B, T], and bool[B, T] that is True at what the model is to say."""
    width = max(len(ids) for ids, _ in rows)
    pad_counts = [width - len(ids) for ids, _ in rows]
    ids = torch.tensor([ids + [PAD] * n for (ids, _), n in zip(rows, pad_counts, strict=True)])
    loss_mask = torch.tensor(
        [mask + [False] * n for (_, mask), n in zip(rows, pad_counts, strict=True)]
    )
    return ids, loss_mask


def _warm_start(
    model: CausalLM,
    sequences: Iterator[tuple[list[int], list[bool]]],
    steps: int,
    progress: Callable[[int, int, float], None],
) -> None:
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    for step in range(1, steps + 1):
        ids, answers = _batch(list(islice(sequences, _BATCH)))
        predicted = answers[:, 1:]
        logits = model.logits(model.hidden(ids[:, :-1])[predicted])
        loss = F.cross_entropy(logits, ids[:, 1:][predicted])
        for group in optimiser.param_groups:
            group["lr"] = _learning_rate(step, steps)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        progress(step, steps, loss.item())


def _learning_rate(step: int, steps: int) -> float:
    """The learning rate: it rises over _WARMUP_STEPS and then falls linearly to 0 at the last step,
    which trains better than a constant rate with the same compute."""
    left = (steps + 1 - step) / steps
    return _LEARNING_RATE * min(step / _WARMUP_STEPS, left)


def _tokenizer_config(corpus: str) -> dict[str, Any]:
    # Written here, not by transformers: its newer versions name classes that older ones lack.
    pad, bos, eos, sep = SPECIAL_TOKENS
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "bos_token": bos,
        "eos_token": eos,
        "additional_special_tokens": [sep],
        # No byte is unknown. Without this entry, transformers' Qwen2Tokenizer would add a token.
        "unk_token": pad,
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE if corpus == "single-turn" else MULTI_TURN_TEMPLATE,
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
