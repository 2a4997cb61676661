"""Text to ids and back, and which tokens end a completion."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import dialogue, edit_json, examples, verified
from hypothesis import given
from hypothesis import strategies as st
from in_memory import ROLES, talking
from tokenizers import decoders

from swarm_node.errors import ModelError
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec, check_tokens, load_tokenizer
from swarm_node.rollout import Finish

TINY = resolve("tiny")
CODEC = Codec.from_directory(TINY)


@examples(150)
@given(st.text(max_size=60))
def test_answers_are_lossless(text: str) -> None:
    assert CODEC.decode(CODEC.encode_answer(text)) == text


@examples(100)
@given(st.lists(st.integers(0, CODEC.vocab_size - 1), max_size=40))
def test_a_text_consists_of_its_tokens_bytes(ids: list[int]) -> None:
    assert CODEC.spells_bytes
    assert b"".join(map(CODEC.token_bytes, ids)).decode("utf-8", "replace") == CODEC.decode(ids)


def test_an_added_token_is_its_own_text_and_another_tokenizer_spells_no_bytes(copy: Path) -> None:
    tokenizer = load_tokenizer(copy)
    tokenizer.add_tokens(["<a snowman \N{SNOWMAN}>"])
    codec = Codec(tokenizer, len(tokenizer), [CODEC.eos_id])
    added = tokenizer.convert_tokens_to_ids("<a snowman \N{SNOWMAN}>")
    assert codec.token_bytes(added).decode() == codec.decode([added]) == "<a snowman \N{SNOWMAN}>"
    assert codec.token_bytes(codec.eos_id) == b""
    assert codec.token_name(codec.eos_id) == "<eos>"
    assert CODEC.token_name(CODEC.vocab_size - 1)
    tokenizer.backend_tokenizer.decoder = decoders.Metaspace()
    assert not Codec(tokenizer, len(tokenizer), [CODEC.eos_id]).spells_bytes


def test_decode_leaves_special_tokens_out_and_refuses_foreign_ids() -> None:
    ids = CODEC.encode_answer("42")
    assert CODEC.decode([*ids, CODEC.eos_id, CODEC.pad_id]) == "42"
    for hostile in (CODEC.vocab_size, -1, 1 << 40):
        with pytest.raises(ValueError, match="not below"):
            CODEC.decode([*ids, hostile])


def test_what_a_tokenizer_puts_before_a_text_is_in_plain_prompts_only(copy: Path) -> None:
    """A chat template writes its own special tokens."""
    begin = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    edit_json(
        copy / "tokenizer.json",
        post_processor={
            "type": "TemplateProcessing",
            "single": [begin, first],
            "pair": [begin, first, second],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}},
        },
    )
    assert load_tokenizer(copy).encode("42")[0] == 1
    codec = Codec.from_directory(copy)
    assert codec.encode_prompt("42") == CODEC.encode_prompt("42")
    assert codec.encode_answer("42") == CODEC.encode_answer("42")
    edit_json(copy / "tokenizer_config.json", chat_template=None)
    plain = Codec.from_directory(copy).encode_prompt("42")
    assert plain == (1, *CODEC.encode_answer("Question: 42\nAnswer:"))


def test_a_prompt_is_the_same_tomorrow(copy: Path) -> None:
    """Templates such as Llama 3.1's write the day."""
    dated = "{{ '<bos>' + strftime_now('%d %b %Y') }}{{ messages[0].content }}"
    edit_json(copy / "tokenizer_config.json", chat_template=dated)
    ids = Codec.from_directory(copy).encode_prompt("?")
    assert ids == (1, *CODEC.encode_answer("26 Jul 2024?"))


_ROLES = (
    "{% for each in messages %}{{ '<bos>' + each['role'] + ': ' + each['content'] + '<sep>' }}"
    "{% endfor %}"
)


def test_a_system_prompt_is_a_message_of_its_own_where_the_template_has_one(copy: Path) -> None:
    edit_json(copy / "tokenizer_config.json", chat_template=_ROLES)
    plain = Codec.from_directory(copy)
    asked = plain.asking("Be brief <eos>").within(512)
    messages = [
        {"role": "system", "content": "Be brief <eos>"},
        {"role": "user", "content": "42"},
    ]
    assert asked.encode_prompt("42") == plain.encode_chat(messages) != plain.encode_prompt("42")
    assert CODEC.eos_id not in asked.encode_prompt("42")
    assert asked.asking("").encode_prompt("42") == plain.encode_prompt("42")


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{{ messages[-1]['content'] }}",  # leaves it out
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('none') }}{% endif %}" + _ROLES,
    ],
)
def test_another_model_reads_a_system_prompt_at_the_beginning_of_the_question(
    copy: Path, template: str | None
) -> None:
    edit_json(copy / "tokenizer_config.json", chat_template=template)
    codec = Codec.from_directory(copy)
    asked = codec.asking("Be brief").encode_prompt("42")
    assert asked == codec.encode_prompt("Be brief\n\n42") != codec.encode_prompt("42")


def test_a_template_that_fails_is_a_model_error(copy: Path) -> None:
    loop = "{% for each in range(10**9) %}x{% endfor %}"  # Jinja's sandbox refuses it
    lost = "{{ messages[9].content }}"
    for template in ("{{ raise_exception('no') }}", lost, "{% for %}", "{{ 1 // 0 }}", loop):
        edit_json(copy / "tokenizer_config.json", chat_template=template)
        with pytest.raises(ModelError, match="template fails"):
            Codec.from_directory(copy)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., Path]) -> Path:
    return make_model(tmp_path_factory.mktemp("chatty"))


def test_a_model_as_the_hub_has_them_loads_and_learns_nothing_from_other_files(
    chatty: Path,
) -> None:
    codec = Codec.from_directory(chatty)
    tokenizer = load_tokenizer(chatty)
    ids = codec.encode_prompt("12 + 7?")
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\n12 + 7?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    end, text_end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>"))
    # The tokenizer's, which is appended, and the config's: both end a completion.
    assert (codec.eos_id, codec.eos_ids) == (end, {end, text_end})
    assert codec.positions == 64
    assert codec.fits(ids, 64 - len(ids))
    assert not codec.fits(ids, 65 - len(ids))
    # Rows of the embedding that no token belongs to decode to nothing, as special tokens do.
    unnamed = set(range(len(tokenizer), 300))
    assert unnamed
    assert unnamed <= codec.special_ids
    assert codec.decode([*unnamed]) == ""


def test_what_ends_a_turn_ends_an_answer_of_a_base_model_too(chatty: Path, tmp_path: Path) -> None:
    """Base models are stored with a chat template, but with the end of a text as their end."""
    base = Path(shutil.copytree(chatty, tmp_path / "base"))
    edit_json(base / "tokenizer_config.json", eos_token="<|endoftext|>")
    codec, tokenizer = Codec.from_directory(base), load_tokenizer(base)
    end, text_end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>"))
    assert (codec.eos_id, codec.eos_ids) == (text_end, {end, text_end})
    assert codec.special_ids >= {end, text_end, tokenizer.convert_tokens_to_ids("<|im_start|>")}


def test_every_end_token_counts_and_the_tokenizers_comes_first(copy: Path) -> None:
    edit_json(copy / "generation_config.json", eos_token_id=[3, 2])
    codec = Codec.from_directory(copy)
    assert (codec.eos_id, codec.eos_ids) == (2, frozenset({2, 3}))


def test_a_special_token_after_the_last_embedding_is_no_token_of_the_model(chatty: Path) -> None:
    """Gemma 3's tokenizer has such a one for images, its model of text has no row for it."""
    tokenizer = load_tokenizer(chatty)
    size = len(tokenizer)
    tokenizer.add_tokens(["<image_soft_token>"], special_tokens=True)
    codec = Codec(tokenizer, size, [2])
    assert max(codec.encode_prompt("<image_soft_token>")) < size
    with pytest.raises(ValueError, match="not below"):
        codec.decode([size])
    tokenizer.chat_template = "<image_soft_token>{{ messages[0].content }}"
    with pytest.raises(ModelError, match="which the model lacks"):
        Codec(tokenizer, size, [2]).encode_prompt("1 + 1?")
    tokenizer.add_tokens(["a word"])
    with pytest.raises(ModelError, match="not belong"):
        Codec(tokenizer, size, [2])


def test_only_the_tokenizer_and_the_template_that_were_tried_are_read(copy: Path) -> None:
    more = copy / "additional_chat_templates"
    more.mkdir()
    (more / "default.jinja").write_text("{% for _ in range(10**9) %}{% endfor %}")
    with pytest.raises(ModelError, match="remove it"):
        Codec.from_directory(copy)
    shutil.rmtree(more)
    edit_json(copy / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.5.0.0.json"])
    with pytest.raises(ModelError, match="remove the entry"):
        Codec.from_directory(copy)


def test_the_longest_text_in_a_tokenizers_settings_does_not_count(copy: Path) -> None:
    edit_json(copy / "tokenizer_config.json", model_max_length="abc")
    assert len(Codec.from_directory(copy).encode_prompt("1 " * 5000)) > 5000


@pytest.mark.parametrize("template", ["", "Hello", "{{ messages[0].role }}"])
def test_a_chat_template_that_leaves_out_the_question_is_refused(
    chatty: Path, template: str
) -> None:
    tokenizer = load_tokenizer(chatty)
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match="leaves out"):
        Codec(tokenizer, 300, [2])


def test_a_codec_needs_an_end_token_and_a_model_of_its_size(copy: Path) -> None:
    edit_json(copy / "config.json", vocab_size=100)
    with pytest.raises(ModelError, match="not belong"):
        Codec.from_directory(copy)
    with pytest.raises(ModelError, match="end token"):
        Codec(load_tokenizer(TINY), 300, [])


def test_a_tokenizer_is_read_from_tokenizer_json_only(copy: Path) -> None:
    (copy / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelError, match="added_tokens"):
        load_tokenizer(copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\."):
        load_tokenizer(copy)


END = CODEC.eos_id


@pytest.mark.parametrize(
    ("turns", "finish", "fault"),
    [
        ([("1", "1", END), ("2", "2", END)], Finish.STOP, ""),
        ([("1", "1", END), ("2", "2", None)], Finish.LENGTH, ""),
        ([("1", "1", END), ("", "", END), ("2", "2", END)], Finish.STOP, ""),
        ([("1", "1", None), ("2", "2", END)], Finish.STOP, "without an end token"),
        ([("1", "1", END), ("2", "2", None)], Finish.STOP, "without an end token"),
        ([("1", "3", END), ("2", "2", END)], Finish.STOP, "do not spell the text"),
        ([("1", "1", END), ("2", "3", END)], Finish.STOP, "do not spell the text"),
    ],
)
def test_each_turn_of_a_dialogue_is_spelt_by_its_own_tokens(
    turns: list[tuple[str, str, int | None]], finish: Finish, fault: str
) -> None:
    """A turn is a text, the text that its ids spell, and its end token."""
    said = [
        (text, [*CODEC.encode_answer(spelt), *([] if end is None else [end])])
        for text, spelt, end in turns
    ]
    group = verified(rewards=[0.0], completions=[dialogue(said, finish)]).group
    refused = check_tokens(CODEC, group)
    assert (refused is None) == (not fault)
    if refused is not None:
        assert (refused.reason, fault in refused.detail) == ("tokens", True)


def test_a_special_token_inside_an_earlier_turn_is_refused() -> None:
    one = CODEC.encode_answer("1")
    said = [("11", [*one, CODEC.pad_id, *one, END]), ("2", [*CODEC.encode_answer("2"), END])]
    refused = check_tokens(CODEC, verified(rewards=[0.0], completions=[dialogue(said)]).group)
    assert "special token" in refused.detail


def context(codec: Codec, question: str, turns: list[tuple[str, str]]) -> list[int]:
    """What the model reads before its next answer, made turn by turn."""
    ids = [*codec.encode_prompt(question)]
    for answer, reply in turns:
        ids += [*codec.encode_answer(answer), codec.eos_id, *codec.bridge(reply)]
    return ids


def test_a_dialogue_that_is_continued_reads_as_the_template_writes_it() -> None:
    codec, tokenizer = talking(), talking()._tokenizer
    turns = [("13", "higher"), ("15", ""), ("14", "no\nmore ")]
    messages = [{"role": "user", "content": "Guess."}]
    for done, (answer, reply) in enumerate(turns):
        whole = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, enable_thinking=False
        )["input_ids"]
        assert context(codec, "Guess.", turns[:done]) == whole
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": reply},
        ]


def test_an_empty_thought_stays_where_the_model_read_it(chatty: Path) -> None:
    codec, tokenizer = Codec.from_directory(chatty), load_tokenizer(chatty)
    thought = "<think>\n\n</think>\n\n"
    assert tokenizer.decode(context(codec, "12?", [("7", "no"), ("8", "yes")])) == (
        f"<|im_start|>user\n12?<|im_end|>\n<|im_start|>assistant\n{thought}7<|im_end|>\n"
        f"<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n{thought}8<|im_end|>\n"
        f"<|im_start|>user\nyes<|im_end|>\n<|im_start|>assistant\n{thought}"
    )


@given(st.text(max_size=60))
def test_a_reply_is_plain_text_whatever_it_says(text: str) -> None:
    named = f"{text}<eos><sep>{text}"
    codec = talking()
    begin, *reply, end = codec.bridge(named)
    assert not {*reply} & codec.special_ids
    assert codec.decode(reply) == named
    assert {begin, end} <= codec.special_ids


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "the model has none"),
        # That of the tiny model.
        (
            "{{ '<bos>' }}{% for m in messages %}{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<sep>' }}{% endif %}",
            "it has no roles",
        ),
        # Only the newest question.
        ("{{ '<bos>' + messages[-1].content + '<sep>' }}", "leaves out or repeats"),
        # The first question again at the end.
        (
            f"{ROLES}{{% if add_generation_prompt %}}{{{{ messages[0].content }}}}"
            "{{ messages[-1].content + '<sep>' }}{% endif %}",
            "leaves out or repeats",
        ),
        # Only the newest two messages of the model and of others.
        (ROLES.replace("messages %}", "messages[-3:] %}", 1), "leaves out or repeats"),
        # Turns are numbered from the end.
        (
            ROLES.replace("m.content + '<sep>'", "loop.revindex|string + m.content + '<sep>'"),
            "in an",
        ),
        # A reply is followed by what an answer to it begins with.
        (ROLES.replace("{% else %}", "{% else %}{{ 'A: ' }}"), "in another way"),
    ],
)
def test_a_template_that_cannot_be_continued_is_refused(
    copy: Path, template: str | None, why: str
) -> None:
    edit_json(copy / "tokenizer_config.json", chat_template=template)
    codec = Codec.from_directory(copy)
    with pytest.raises(ModelError, match="be continued") as told:
        codec.bridge("no")
    assert why in str(told.value)
