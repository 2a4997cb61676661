"""Log-probs of answers in the two forms of OpenAI's API. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from swarm_node.node.loops.openai_requests import RankedToken


class SpeltToken(NamedTuple):
    """A token's text for people, and the bytes that it adds to an answer; None for a special
    token."""

    text: str
    data: bytes | None


def spelt(data: bytes, name: str) -> SpeltToken:
    """A token with the bytes `data`, or a special token called `name`. A part of a character is
    written as OpenAI does: `bytes:\\xe2\\x98`."""
    if not data:
        return SpeltToken(name, None)
    try:
        return SpeltToken(data.decode(), data)
    except UnicodeDecodeError:
        return SpeltToken("bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data)


class AnswerLogprobs:
    """Log-probs of one answer while it grows, for a reply of `kind`."""

    def __init__(self, kind: Literal["chat", "text"], spell: Callable[[int], SpeltToken]) -> None:
        self._kind = kind
        self._spell = spell
        self._sent_tokens = 0
        self._letters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(
        self, ids: Sequence[int], ranked_tokens: Sequence[RankedToken], length: int | None
    ) -> dict[str, Any] | None:
        """Return the log-probs of new tokens: of those of `ids` that begin in the first `length`
        characters of the answer, or of all if `length` is None. Return None if no token is new. An
        answer without any token has empty lists."""
        tokens, offsets, begin = list[SpeltToken](), list[int](), self._sent_tokens
        while self._sent_tokens < len(ids) and (length is None or self._letters < length):
            tokens.append(self._spell(ids[self._sent_tokens]))
            offsets.append(self._letters)
            self._letters += len(self._decoder.decode(tokens[-1].data or b""))
            self._sent_tokens += 1
        if not tokens and self._sent_tokens:
            return None
        new = list(zip(tokens, ranked_tokens[begin : self._sent_tokens], strict=True))
        if self._kind == "chat":
            return {"content": [self._entry(*entry) for entry in new], "refusal": None}
        likeliest = [self._likeliest(*entry) for entry in new]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [entry.logprob for _, entry in new],
            "top_logprobs": likeliest if any(entry.likeliest for _, entry in new) else None,
            "text_offset": offsets,
        }

    def _entry(self, token: SpeltToken, ranked_token: RankedToken) -> dict[str, Any]:
        likeliest = [
            _format_logprob(self._spell(token_id), logprob)
            for token_id, logprob in ranked_token.likeliest
        ]
        return {**_format_logprob(token, ranked_token.logprob), "top_logprobs": likeliest}

    def _likeliest(self, token: SpeltToken, ranked_token: RankedToken) -> dict[str, float]:
        """Log-probs by text, that of the answer's token among them. Of two tokens with one text the
        likelier counts."""
        logprobs = dict[str, float]()
        for token_id, logprob in ranked_token.likeliest:
            logprobs.setdefault(self._spell(token_id).text, logprob)
        logprobs.setdefault(token.text, ranked_token.logprob)
        return logprobs


def _format_logprob(token: SpeltToken, logprob: float) -> dict[str, Any]:
    data = None if token.data is None else list(token.data)
    return {"token": token.text, "logprob": logprob, "bytes": data}
