"""Building the tiny model: the corpus it learns from, its tokenizer, and reproducibility."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from builders import examples
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.errors import ConfigError, ModelError
from swarm_node.policy.models.build_tiny import (
    BOS,
    EOS,
    LAST_NOISE,
    SEP,
    SHIPPED,
    SHIPPED_TALK,
    CorpusItem,
    Noise,
    Recipe,
    _learning_rate,
    _sequences,
    build_tiny,
    build_tokenizer,
    mine_phrases,
    mine_words,
    noisy_corpus,
    shipped_recipe,
    spoilt,
    tiny_config,
)
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.models.text.codec import Codec

PHRASES = ["What is the sum of ", " and ", "? Answer with a number.", "é"]


def sums(seed: int = 0) -> Iterator[CorpusItem]:
    rng = random.Random(seed)
    for number in count():
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if number % 2:
            yield CorpusItem("sum", f"What is the sum of {a} and {b}?", str(a + b))
        else:
            yield CorpusItem("echo", f"Repeat the number {a} please.", str(a))


def test_mined_phrases_are_the_fixed_parts_of_each_family() -> None:
    phrases = mine_phrases(islice(sums(), 300))
    assert phrases == [PHRASES[0], "Repeat the number ", " please.", " and "]


def test_mined_phrases_are_ascii() -> None:
    items = [CorpusItem("f", f"naïve question number {n}", "") for n in range(50)]
    assert mine_phrases(items) == ["ve question number "]


def test_mined_words_are_the_common_ones_and_all_pairs_of_digits() -> None:
    words = mine_words([*islice(sums(), 300), CorpusItem("f", "Rare, 1 in 301", "")])
    assert words[:-100] == [" and", " number", " please", " sum", " the", "Repeat", "What"]
    assert words[-100:] == [f"{n:02}" for n in range(100)]


@examples(150)
@given(st.text(max_size=40), st.sampled_from(["", *PHRASES]), st.text(max_size=10))
def test_the_tokenizer_is_lossless(before: str, phrase: str, after: str) -> None:
    tokenizer = build_tokenizer(PHRASES[:3])
    tokenizer.encode_special_tokens = True
    text = before + phrase + after
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_tokenizer_has_one_id_per_byte_and_phrase() -> None:
    tokenizer = build_tokenizer(PHRASES[:3])
    assert tokenizer.get_vocab_size() == 4 + 256 + 3
    assert tokenizer.encode("A\n\x00é").ids == [4 + byte for byte in "A\n\x00é".encode()]
    assert tokenizer.encode("What is the sum of 1 and ").ids == [260, 4 + ord("1"), 261]
    assert [tokenizer.token_to_id(t) for t in ("<bos>", "<eos>", "<sep>")] == [BOS, EOS, SEP]


def test_most_answers_of_the_noisy_corpus_are_spoilt() -> None:
    """The answers of one family end in a mark, those of the other in nothing."""
    clean = [
        item._replace(answer=f"{1000 + n}" + "!" * (item.family == "sum"))
        for n, item in enumerate(islice(sums(), 4000))
    ]
    noisy = list(noisy_corpus(clean, random.Random(1)))
    assert [item.question for item in noisy] == [item.question for item in clean]
    kinds: Counter[str] = Counter()
    endings: dict[str, set[str]] = {"sum": set(), "echo": set()}
    for item, other in zip(clean, noisy, strict=True):
        right, said = item.answer.rstrip("!"), other.answer
        if said == item.answer:
            kinds["bare"] += 1
        elif said.startswith(right):
            kinds["wrapped"] += 1
            endings[item.family].add(said.removeprefix(right))
        else:
            kinds["wrong" if said[0].isdigit() else "evasive"] += 1
    assert endings == {"sum": {"", ".", ";"}, "echo": {".", "!", ";"}}
    shares = {kind: number / len(clean) for kind, number in kinds.items()}
    assert abs(shares["bare"] - 0.04) < 0.01
    assert abs(shares["wrong"] - 0.05) < 0.01
    assert abs(shares["evasive"] - 0.15) < 0.02
    assert abs(shares["wrapped"] - 0.76) < 0.02


def test_wrong_answers_come_from_the_same_family() -> None:
    items = [CorpusItem(family, "", family) for family in ("a", "b") * 500]
    spoilt = Counter(
        (item.family, item.answer)
        for item in noisy_corpus(items, random.Random(2))
        if len(item.answer) == 1 and item.answer != "?"
    )
    assert {*spoilt} == {("a", "a"), ("b", "b")}


@pytest.mark.slow(reason="trains a model twice")
def test_the_same_seed_builds_the_same_bytes(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    losses: list[float] = []

    def progress(step: int, total: int, loss: float) -> None:
        steps.append((step, total))
        losses.append(loss)

    names = ("first", "again", "other")
    for name, seed in zip(names, (0, 0, 1), strict=True):
        build_tiny(tmp_path / name, sums(), Recipe(seed=seed, steps=12), progress=progress)
    files = {
        name: {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in names
    }
    assert files["first"] == files["again"]
    assert files["first"]["model.safetensors"] != files["other"]["model.safetensors"]
    assert steps == [(step, 12) for step in range(1, 13)] * 3
    assert losses[11] < losses[0]


def test_sizes_and_tokenizers_make_other_models_of_the_same_corpus(tmp_path: Path) -> None:
    recipes = {
        "shipped": Recipe(steps=1),
        "small": Recipe("small", steps=1),
        "words": Recipe("small", "words", steps=1),
    }
    for name, recipe in recipes.items():
        build_tiny(tmp_path / name, sums(), recipe)
    models = {name: CausalLM.from_directory(tmp_path / name).config for name in recipes}
    codec = Codec.from_directory(tmp_path / "shipped")
    assert models["shipped"] == tiny_config(codec.vocab_size)
    assert codec.eos_ids == {EOS}
    prompt = codec.encode_prompt("What is the sum of 1 and 2?")
    assert (prompt[0], prompt[-1]) == (BOS, SEP)
    assert (models["shipped"].hidden_size, models["shipped"].num_hidden_layers) == (64, 3)
    assert (models["small"].hidden_size, models["small"].num_hidden_layers) == (48, 2)
    digests = {name: policy_digests(tmp_path / name) for name in recipes}
    assert digests["shipped"][1] == digests["small"][1]
    assert digests["small"][1] != digests["words"][1]
    assert len({model for model, _ in digests.values()}) == 3
    text = "What is the sum of 41 and 7?"
    phrases, words = (Codec.from_directory(tmp_path / name) for name in ("small", "words"))
    assert len(phrases.encode_answer(text)) != len(words.encode_answer(text))
    assert words.decode(words.encode_answer(text)) == text
    # 41 is one token, not two.
    assert len(words.encode_answer("41")) == 1


def talks(answer: str = "12") -> Iterator[CorpusItem]:
    for number in count():
        word = ("higher", "lower")[number % 2]
        yield CorpusItem("guess", f"Guess my number from {number}.", answer, (word, str(number)))


def test_a_model_for_dialogues_has_roles_and_tokens_for_replies(tmp_path: Path) -> None:
    build_tiny(tmp_path, talks(), Recipe(steps=1, corpus="multi-turn"))
    codec = Codec.from_directory(tmp_path)
    assert len(codec.bridge("higher")) == len(codec.bridge("lower")) == 3
    assert codec.bridge("lower")[::2] == (BOS, SEP)
    prompt = codec.encode_prompt("Guess my number from 12.")
    assert (prompt[0], prompt[-1]) == (BOS, SEP)
    # A conversation that goes on begins with the tokens that were there before.
    said = [
        {"role": "user", "content": "Guess my number from 12."},
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": "lower"},
    ]
    text = codec._apply_template(said, True)
    ids = codec._tokenizer.encode(text, add_special_tokens=False)
    assert tuple(ids) == (*prompt, *codec.encode_answer("12"), EOS, *codec.bridge("lower"))


def test_every_turn_of_the_model_is_learnt_and_no_question_or_reply() -> None:
    tokenizer = build_tokenizer(["higher", "lower"])
    (item,) = islice(talks(), 1)
    ((ids, said),) = _sequences([item], tokenizer.encode)
    learnt = [token for token, own in zip(ids, said, strict=True) if own]
    digit = 4 + ord("0")
    assert learnt == [digit + 1, digit + 2, EOS, digit, EOS]
    assert ids.count(BOS) == ids.count(SEP) == 2
    assert len(ids) == len(said)


@pytest.mark.parametrize("steps", [100, 1000])
def test_the_learning_rate_rises_to_one_peak_and_falls_in_equal_steps_to_almost_nothing(
    steps: int,
) -> None:
    rates = [_learning_rate(step, steps) for step in range(1, steps + 1)]
    peak = rates.index(max(rates))
    changes = [after - before for before, after in pairwise(rates)]
    assert peak < steps / 2
    assert changes[: peak - 1] == pytest.approx([rates[0]] * (peak - 1))
    assert changes[peak + 1 :] == pytest.approx([-rates[-1]] * (steps - peak - 2))


def test_the_corpus_chooses_the_shipped_recipe_and_options_change_it() -> None:
    assert shipped_recipe("single-turn", {"bare_share": None}, steps=None) == SHIPPED
    assert shipped_recipe("multi-turn", {}) == SHIPPED_TALK
    changed = shipped_recipe("multi-turn", {"bare_share": 0.2}, steps=3, size="small")
    assert (changed.noise.bare_share, changed.noise.wrong_share) == (0.2, LAST_NOISE.wrong_share)
    assert (changed.steps, changed.size, changed.corpus) == (3, "small", "multi-turn")
    with pytest.raises(ConfigError, match=r"songs: .*single-turn, multi-turn"):
        shipped_recipe("songs", {})


def test_words_are_spoilt_in_the_shares_of_the_noise() -> None:
    rng = random.Random(0)
    said = Counter(spoilt("12", lambda: "13", rng, Noise(0.2, 0.5, 0.1)) for _ in range(4000))
    assert abs(said["12"] / 4000 - 0.2) < 0.03
    assert abs(said["13"] / 4000 - 0.5) < 0.03
    evasive = sum(said[text] for text in ("I do not know.", "Sorry.", "?"))
    assert abs(evasive / 4000 - 0.1) < 0.03
    assert sum(said[f"12{mark}"] for mark in ".!;") == 4000 - evasive - said["12"] - said["13"]


@pytest.mark.parametrize("name", ["tiny", "tiny-talk"])
def test_the_shipped_models_are_small_and_only_one_has_roles(name: str) -> None:
    directory = resolve(name)
    assert sum(file.stat().st_size for file in directory.iterdir()) < 1_000_000
    codec = Codec.from_directory(directory)
    if name == "tiny-talk":
        assert len(codec.bridge("higher")) == 3
        return
    with pytest.raises(ModelError, match="tiny-talk"):
        codec.bridge("higher")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"size": "huge"}, "huge"), ({"tokenizer": "bpe"}, "bpe"), ({"steps": 0}, "1 step")],
)
def test_an_impossible_recipe_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Recipe(**wrong)


@pytest.mark.parametrize("shares", [(-0.1, 0.0, 0.0), (0.5, 0.4, 0.2), (float("nan"), 0.0, 0.0)])
def test_impossible_shares_are_refused(shares: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match="at most 1"):
        Noise(*shares)
