"""Log-probs in OpenAI's two forms: each token once, where its text begins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm_node.node.control.openai_logprobs import AnswerLogprobs, SpeltToken, spelt
from swarm_node.node.control.openai_wire import AnswerText
from swarm_node.node.loops.openai_requests import RankedToken

END = 256


def byte(token: int) -> SpeltToken:
    """A tokenizer of single bytes, with an end token."""
    return spelt(bytes([token]) if token < END else b"", "<end>")


def test_a_token_is_its_text_its_bytes_or_its_name() -> None:
    assert spelt("\N{SNOWMAN}".encode(), "x") == ("\N{SNOWMAN}", "\N{SNOWMAN}".encode())
    assert spelt(b"\xe2\x98", "x") == ("bytes:\\xe2\\x98", b"\xe2\x98")
    assert spelt(b"", "<end>") == ("<end>", None)


def test_a_chat_has_an_entry_for_each_token() -> None:
    ranked = [RankedToken(-0.5, ((97, -0.5), (END, -1.0))), RankedToken(-3.0, ((END, -0.25),))]
    said = AnswerLogprobs("chat", byte).take([97, 98], ranked, None)
    assert said == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "<end>", "logprob": -1.0, "bytes": None},
                ],
            },
            {
                "token": "b",
                "logprob": -3.0,
                "bytes": [98],
                "top_logprobs": [{"token": "<end>", "logprob": -0.25, "bytes": None}],
            },
        ],
        "refusal": None,
    }


def test_a_completion_has_lists_with_the_token_among_the_likeliest() -> None:
    ranked = [RankedToken(-2.0, ((98, -0.5),)), RankedToken(-0.5, ((195, -0.5),))]
    assert AnswerLogprobs("text", byte).take([97, 195], ranked, None) == {
        "tokens": ["a", "bytes:\\xc3"],
        "token_logprobs": [-2.0, -0.5],
        "top_logprobs": [{"b": -0.5, "a": -2.0}, {"bytes:\\xc3": -0.5}],
        "text_offset": [0, 1],
    }
    assert AnswerLogprobs("chat", byte).take([], [], None) == {"content": [], "refusal": None}
    bare = AnswerLogprobs("text", byte).take([97], [RankedToken(-2.0, ())], None)
    assert bare["top_logprobs"] is None


@given(
    st.text("ab\u00fc\N{SNOWMAN}", max_size=30),
    st.lists(st.text("ab\u00fc", min_size=1, max_size=3), max_size=2),
    st.integers(1, 7),
    st.booleans(),
)
def test_pieces_have_each_token_of_the_text_once(
    whole: str, stops: list[str], size: int, ends: bool
) -> None:
    ids = list(whole.encode())
    ranked = [RankedToken(-float(place), ()) for place in range(len(ids))]
    text = AnswerText(lambda part: bytes(part).decode("utf-8", "replace"), stops)
    said, tokens, offsets = AnswerLogprobs("text", byte), list[float](), list[int]()
    for end in [*range(size, len(ids), size), len(ids)]:
        text.take(ids[:end], is_finished=end == len(ids))
        last = end == len(ids) and not text.is_stopped
        new = said.take(ids[:end], ranked[:end], None if last else len(text.text))
        if new is not None:
            tokens += new["token_logprobs"]
            offsets += new["text_offset"]
        if text.is_stopped:
            break
    assert tokens == [-float(place) for place in range(len(tokens))]
    told = bytes(ids[: len(tokens)]).decode("utf-8", "replace")
    assert told.startswith(text.text) if text.is_stopped else told == whole
    # Each byte of a character begins where the character does.
    assert offsets == [
        len(bytes(ids[: place + 1]).decode("utf-8", "replace")) - 1 for place in range(len(tokens))
    ]
