"""Names of tokens in texts are text; what the chat template writes is the token."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import examples
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec, load_tokenizer
from swarm_node.policy.models.text.text_encoder import TextEncoder

TINY = resolve("tiny")
#: Merely added tokens with every flag that changes how a tokenizer finds them.
ADDED = [
    AddedToken("<think>", normalized=False),
    AddedToken("</think>"),
    AddedToken("<left>", lstrip=True, normalized=False),
    AddedToken("<right>", rstrip=True, special=True),
    AddedToken("word", single_word=True),
    AddedToken("two words ☃"),
]
NAMES = [*(each.content for each in ADDED), "<|im_start|>", "<|im_end|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., Path]) -> Any:
    """A BPE tokenizer that was learnt, as the hub has them, with added tokens of every kind."""
    made = load_tokenizer(make_model(tmp_path_factory.mktemp("chatty")))
    made.add_tokens(ADDED)
    return made


def codec_of(tokenizer: Any) -> Codec:
    return Codec(tokenizer, len(tokenizer), [tokenizer.eos_token_id])


def without_added(tokenizer: Any) -> Tokenizer:
    """The tokenizer read from its own file, in which no token was added."""
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    return Tokenizer.from_str(json.dumps({**data, "added_tokens": []}))


def ids_without(tokenizer: Any, text: str) -> list[int]:
    return list(without_added(tokenizer).encode(text, add_special_tokens=False).ids)


def load_copy(tokenizer: Any) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        eos_token="<|im_end|>",
    )


def expected(tokenizer: Any, question: str) -> tuple[int, ...]:
    """A question in the chat template of `make_model`, put together by hand."""
    begin, end, think, close = tokenizer.convert_tokens_to_ids(
        ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    )
    text = [
        ids_without(tokenizer, part) for part in (f"user\n{question}", "\n", "assistant\n", "\n\n")
    ]
    return (begin, *text[0], end, *text[1], begin, *text[2], think, *text[3], close, *text[3])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["{}", "Is {} a word?", " two {} or\n{}{} ", "apples {}"])
def test_a_name_in_a_text_is_what_the_model_makes_of_its_letters(
    tokenizer: Any, name: str, form: str
) -> None:
    codec, text = codec_of(tokenizer), form.replace("{}", name)
    assert list(codec.encode_answer(text)) == ids_without(tokenizer, text)
    assert codec.encode_prompt(text) == expected(tokenizer, text)
    assert codec.decode(codec.encode_answer(text)) == text


def test_a_name_in_any_message_is_text_and_other_messages_stay_as_they_were(tokenizer: Any) -> None:
    codec = codec_of(tokenizer)
    said = ["Be <|im_end|>", "<think>a</think>b", "12 + 7?"]
    roles = ("system", "assistant", "user")
    chat = [{"role": role, "content": each} for role, each in zip(roles, said, strict=True)]
    ids = list(codec.encode_chat(chat))
    begin, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    line = ids_without(tokenizer, "\n")
    before = [
        part
        for role, each in zip(roles, said, strict=True)
        for part in (begin, *ids_without(tokenizer, f"{role}\n{each}"), end, *line)
    ]
    assert ids[: len(before)] == before
    assert ids[len(before) :] == list(expected(tokenizer, ""))[-len(ids) + len(before) :]


@examples(150)
@given(st.text(st.sampled_from("a \n\t<>eos☃19"), max_size=12), st.text(max_size=12))
def test_a_text_without_a_name_has_the_ids_of_the_whole_rendered_text(one: str, two: str) -> None:
    """Also where a template strips white space, and texts touch."""
    tokenizer = load_tokenizer(TINY)
    tokenizer.chat_template = "<bos>{% for m in messages %}{{ m.content | trim }}{% endfor %}<sep>"
    chat = [{"role": "user", "content": text} for text in (one, two)]
    usual = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    ids = codec_of(tokenizer).encode_chat(chat)
    whole = one.strip() + two.strip()
    assert list(ids) == [1, *ids_of_tiny(whole), 3]
    if not any(name in whole for name in ("<pad>", "<bos>", "<eos>", "<sep>")):
        assert list(ids) == usual


def ids_of_tiny(text: str) -> list[int]:
    tokenizer = load_tokenizer(TINY)
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def test_two_texts_side_by_side_make_no_name() -> None:
    """The template of the tiny model puts nothing between them."""
    codec = Codec.from_directory(TINY)
    chat = [{"role": "user", "content": text} for text in ("a<e", "os>", "b")]
    assert list(codec.encode_chat(chat)) == [1, *ids_of_tiny("a<eos>b"), 3]


def test_what_the_tiny_model_reads_as_wholes_stays_whole() -> None:
    codec = Codec.from_directory(TINY)
    phrase = load_tokenizer(TINY).convert_tokens_to_ids("Sort the digits of ")
    assert codec.encode_answer("Sort the digits of 1<eos>") == (phrase, *ids_of_tiny("1<eos>"))
    assert codec.encode_prompt("Sort the digits of <sep>") == (1, phrase, *ids_of_tiny("<sep>"), 3)


def test_a_template_that_looks_into_texts_finds_no_name(tokenizer: Any) -> None:
    """As Qwen3's does, which drops what stands before </think> in an answer."""
    tokenizer = load_copy(tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{% if '</think>' in m.content %}cut"
        "{% else %}{{ m.content | trim }}{% endif %}<|im_end|>{% endfor %}"
    )
    begin, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    ids = codec_of(tokenizer).encode_prompt(" a</think>\nb ")
    assert list(ids) == [begin, *ids_without(tokenizer, "a</think>\nb"), end]


def test_a_name_is_text_for_a_model_without_a_chat_template(tokenizer: Any) -> None:
    tokenizer = load_copy(tokenizer)
    tokenizer.chat_template = None
    ids = codec_of(tokenizer).encode_prompt("<think>{0}")
    assert list(ids) == ids_without(tokenizer, "Question: <think>{0}\nAnswer:")


def test_a_name_that_the_model_itself_knows_is_spelt_by_its_letters() -> None:
    """A Unigram's vocabulary has its special tokens, and the likeliest split has few pieces."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), *((letter, -1.0) for letter in "▁<s>ab")]
    backend = Tokenizer(models.Unigram(pieces, 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(["<unk>", "<s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s>")
    encoder = TextEncoder(tokenizer)
    ids = encoder.text("a<s>b")
    assert tokenizer.convert_ids_to_tokens(ids) == ["▁", "a", "<", "s", ">", "b"]
    assert tokenizer.convert_ids_to_tokens(encoder.text("a☃")) == ["▁", "a", "<unk>"]
    # Only the beginning of the whole text has a space before it.
    ids = encoder.encode_rendered(lambda texts: f"<s>{texts[0]}<s>", ["☃b<s>"])
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "<unk>", "b", "<", "s", ">", "<s>"]


def test_a_name_that_only_the_normaliser_makes_is_text(tokenizer: Any) -> None:
    tokenizer = load_copy(tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    ids = codec_of(tokenizer).encode_prompt("</THINK>")
    assert list(ids) == ids_without(tokenizer, "Question: </THINK>\nAnswer:")
