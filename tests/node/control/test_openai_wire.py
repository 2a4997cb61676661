"""Requests of OpenAI's clients: what is taken, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.node.control.openai_wire import (
    AnswerText,
    BadRequestError,
    ChatRequest,
    TextRequest,
    messages_of,
    parse_request,
    prompts_of,
)

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}


def chat(**changes: Any) -> Any:
    return parse_request(json.dumps({**CHAT, **changes}).encode(), ChatRequest)


def text(**changes: Any) -> Any:
    return parse_request(json.dumps({**TEXT, **changes}).encode(), TextRequest)


def test_what_changes_nothing_is_taken() -> None:
    neutral = {"presence_penalty": 0.0, "tools": [], "user": "me"}
    more = {"response_format": {"type": "text"}, "n": None, "store": True, "logit_bias": None}
    assert chat(**neutral, **more) == chat()
    assert text(echo=False, best_of=1, suffix=None, logprobs=None) == text()
    assert chat(stop="x").stops == ("x",)
    assert chat(stop="").stops == chat().stops == ()
    assert text(stop=["x", "y"]).stops == ("x", "y")


#: vLLM 0.32's sampling parameters with the values that it has without them.
VLLM_DEFAULTS = {
    **{"use_beam_search": False, "top_k": None, "min_p": None, "repetition_penalty": None},
    **{"watermarking": None, "length_penalty": 1.0, "stop_token_ids": [], "ignore_eos": False},
    **{"include_stop_str_in_output": False, "min_tokens": 0, "skip_special_tokens": True},
    **{"spaces_between_special_tokens": True, "truncate_prompt_tokens": None},
    **{"truncation_side": None, "prompt_logprobs": None, "logprob_token_ids": None},
    **{"allowed_token_ids": None, "bad_words": []},
}


def test_neutral_values_of_vllms_sampling_parameters_are_taken() -> None:
    neutral = [{"top_k": -1}, {"top_k": 0}, {"min_p": 0.0}, {"repetition_penalty": 1.0}]
    for values in (VLLM_DEFAULTS, *neutral, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert chat(**values) == chat()
        assert text(**values) == text()


@pytest.mark.parametrize(
    "given",
    [
        {"priority": 5, "request_id": "a", "cache_salt": "b", "session_id": "c"},
        {"x_trace": {"id": 1}, "litellm_call_id": "d", "keep_alive": -1, "prediction": {}},
        {"prompt_cache_key": "e", "parallel_tool_calls": True, "include_reasoning": True},
        {"messages": [{"role": "user", "content": "hi", "name": "me", "annotations": []}]},
        {"messages": [{"role": "user", "content": "hi", "tool_calls": [], "refusal": None}]},
    ],
)
def test_keys_that_say_nothing_about_the_answer_are_ignored(given: dict[str, Any]) -> None:
    assert chat(**given) == chat()


def test_a_part_of_a_message_may_have_more_than_its_text() -> None:
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    assert messages_of(chat(messages=[{"role": "user", "content": [part]}])) == CHAT["messages"]


def test_a_message_without_a_text_is_refused_with_its_place() -> None:
    for name, message in (
        ("content", {"role": "user", "content": None}),
        ("tool_calls", {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}),
        ("function_call", {"role": "assistant", "content": "", "function_call": {"name": "f"}}),
    ):
        with pytest.raises(BadRequestError) as refused:
            chat(messages=[*CHAT["messages"], message])
        assert (refused.value.param, refused.value.status) == (f"messages[1].{name}", 400)


def test_more_keys_than_a_client_has_are_not_looked_at() -> None:
    with pytest.raises(BadRequestError, match="64 other keys"):
        chat(**{f"key{n}": None for n in range(65)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("top_k", 5), ("min_p", 0.1), ("repetition_penalty", 1.1), ("ignore_eos", True)],
        *[("min_tokens", 1), ("stop_token_ids", [2]), ("skip_special_tokens", False)],
        *[("chat_template", "x"), ("chat_template_kwargs", {"enable_thinking": True})],
        *[("guided_choice", ["a"]), ("prompt_logprobs", 0), ("top_k", False), ("system", "Be.")],
        *[("temprature", 0), ("maxTokens", 5), ("topK", 5), ("prompt", "x"), ("", 1)],
        *[("reasoning_effort", "low"), ("continue_final_message", True)],
        *[("top_p", 0), ("top_p", 1.5), ("top_p", True), ("logprobs", 1), ("tools", [{}])],
        *[("top_logprobs", 21), ("top_logprobs", -1), ("top_logprobs", 3)],
        *[("frequency_penalty", 1), ("logit_bias", {"5": 1}), ("audio", {}), ("\x1b[2J", 1)],
        *[("response_format", {"type": "json_object"}), ("tool_choice", "required")],
        *[("temperature", -1), ("temperature", 2.5), ("temperature", "hot"), ("n", 0), ("n", 9)],
        *[("max_tokens", 0), ("max_tokens", 10**9), ("seed", 1 << 64), ("stop", ["a"] * 5)],
        *[("stop", "x" * 65), ("stop", [""]), ("stream", "yes"), ("stream_options", 7)],
        *[("messages", []), ("messages", "hi"), ("messages", [{"role": "tool", "content": "x"}])],
        *[("messages", [{"role": "user"}]), ("messages", CHAT["messages"] * 257), ("model", 1)],
        ("messages", [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]),
    ],
)
def test_what_a_node_cannot_do_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadRequestError) as refused:
        chat(**{name: value})
    assert name[:3] in (refused.value.param or "") or name[:3] in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 60_000, b'{"a":' * 10_000]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="no JSON"):
        parse_request(body, ChatRequest)


def test_log_probs_are_asked_for_in_two_ways() -> None:
    assert (
        chat().top_logprob_count is chat(logprobs=False, top_logprobs=0).top_logprob_count is None
    )
    assert chat(logprobs=True).top_logprob_count == 0
    assert chat(logprobs=True, top_logprobs=20).top_logprob_count == 20
    assert text().top_logprob_count is None
    assert text(logprobs=0).top_logprob_count == 0
    assert text(logprobs=5).top_logprob_count == 5
    for wrong in (6, True, -1):
        with pytest.raises(BadRequestError, match="logprobs"):
            text(logprobs=wrong)


def test_a_temperature_is_zero_or_one_that_samplers_take() -> None:
    heats = {None: 1.0, 0: 0.0, 1e-9: 0.01, 0.5: 0.5, 2: 2.0}
    assert {asked: chat(temperature=asked).heat for asked in heats} == heats
    assert chat(top_p=0.5).top_p == 0.5


def test_messages_are_those_of_a_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = chat(
        messages=[{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]
    )
    assert messages_of(said) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "ab"},
    ]


def test_prompts_are_texts_or_ids() -> None:
    def encode(text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    for prompt, expected in (
        ("ab", [(97, 98)]),
        (["a", "b"], [(97,), (98,)]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        ([[1], "a"], [(1,), (97,)]),
    ):
        assert prompts_of(text(prompt=prompt), encode) == expected
    for prompt in ([], ["a"] * 17, ["a", 1]):
        with pytest.raises(BadRequestError, match="prompt"):
            prompts_of(text(prompt=prompt), encode)


@given(
    st.text("abü\N{SNOWMAN}", max_size=40),
    st.lists(st.text("abü", min_size=1, max_size=4), max_size=3),
    st.integers(1, 7),
)
def test_pieces_are_the_text_up_to_the_first_stop(whole: str, stops: list[str], size: int) -> None:
    raw = whole.encode()
    answer = AnswerText(lambda ids: bytes(ids).decode("utf-8", "replace"), stops)
    pieces = []
    for end in [*range(size, len(raw), size), len(raw)]:
        pieces.append(answer.take(raw[:end], is_finished=end == len(raw)))
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    assert "".join(pieces) == (whole[: min(ends)[1]] if ends else whole)
    assert answer.is_stopped is bool(ends)
