"""Requests and replies of OpenAI's chat and completions API, as far as a node has them. Pure.

The server bounds a request. The request is decoded without a type, and checked field by field. What
becomes of other keys is in `openai_keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from swarm_node.node.control.openai_keys import MAX_OTHER_KEYS, objection
from swarm_node.policy.sampling.sampler import MAX_RANKED
from swarm_node.rollout import Finish

MAX_PROMPTS: Final = 16
MAX_ANSWERS: Final = 8
#: Rows of one request: prompts times answers.
MAX_REQUEST_ROWS: Final = 16
#: Lower temperatures but 0 are this. vLLM has the same limit.
LEAST_TEMPERATURE: Final = 0.01
#: What OpenAI's completions give without max_tokens.
USUAL_TOKENS: Final = 16
_WORDS: Final = {"chat": "chat.completion", "text": "text_completion"}
Kind = Literal["chat", "text"]


class BadRequestError(ValueError):
    """A request that is refused: status, the field, and OpenAI's code."""

    def __init__(self, text: str, param: str = "", code: str = "", status: int = 400) -> None:
        super().__init__(text)
        self.param, self.code, self.status = param or None, code or None, status


class TextPart(msgspec.Struct, frozen=True):
    """A part of a message. Its other keys, such as `cache_control`, say nothing about the text."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a conversation. Its `name` is not shown to the model."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage`: the last chunk counts tokens."""

    include_usage: bool = False


class _Sampling(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[str, Meta(max_length=512)]
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: (
        Annotated[str, Meta(max_length=64)]
        | Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=4)]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def heat(self) -> float:
        """The temperature that is sampled at."""
        if not self.temperature:
            return 1.0 if self.temperature is None else 0.0
        return max(self.temperature, LEAST_TEMPERATURE)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) and self.stop else tuple(self.stop or ())


class ChatRequest(_Sampling, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=256)]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_RANKED)] | None = None

    @property
    def top_logprob_count(self) -> int | None:
        """Number of likeliest tokens to report beside each token's log-prob, if that is wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TextRequest(_Sampling, frozen=True, kw_only=True):
    """`POST /v1/completions`. A prompt is a text or token ids."""

    prompt: str | list[str | int | list[int]]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None

    @property
    def top_logprob_count(self) -> int | None:
        """See `ChatRequest.top_logprob_count`."""
        return self.logprobs


def parse_request(
    body: bytes, kind: type[ChatRequest] | type[TextRequest]
) -> ChatRequest | TextRequest:
    """The request in a body.

    Raises:
        BadRequestError: it is malformed, or asks for what a node cannot do.
    """
    try:
        raw = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise BadRequestError("the body is no JSON") from None
    if not isinstance(raw, dict):
        raise BadRequestError("the body is no JSON object")
    fields = kind.__struct_fields__
    extras = {name: value for name, value in raw.items() if name not in fields}
    if len(extras) > MAX_OTHER_KEYS:
        raise BadRequestError(f"a request has {MAX_OTHER_KEYS} other keys than OpenAI's at most")
    for name, value in extras.items():
        problem = objection(name, value, fields)
        if problem is not None:
            raise BadRequestError(problem.text, name[:64], problem.code)
    arguments = {name: value for name, value in raw.items() if name in fields}
    _check_texts(arguments.get("messages"))
    try:
        request = msgspec.convert(arguments, kind)
    except (ValueError, RecursionError) as error:
        message = str(error)
        param = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else ""
        raise BadRequestError(message, param) from None
    if isinstance(request, ChatRequest) and request.top_logprobs and not request.logprobs:
        raise BadRequestError("top_logprobs needs logprobs: true", "top_logprobs")
    return request


def _check_texts(messages: Any) -> None:
    """
    Raises:
        BadRequestError: a message has no text for a reason that a client can have.
    """
    for place, message in enumerate(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict):
            continue
        if call_keys := [name for name in ("tool_calls", "function_call") if message.get(name)]:
            raise BadRequestError(
                f"messages[{place}] calls a tool, and this policy is asked without tools: leave "
                "such messages out",
                f"messages[{place}].{call_keys[0]}",
                "unsupported_parameter",
            )
        if message.get("content", "") is None:
            raise BadRequestError(
                f"messages[{place}].content is null: a message here is a text, so send one, or "
                "leave the message out",
                f"messages[{place}].content",
            )


def messages_of(request: ChatRequest) -> list[dict[str, str]]:
    """The messages as a chat template takes them."""
    return [
        {
            "role": "system" if message.role == "developer" else message.role,
            "content": message.content
            if isinstance(message.content, str)
            else "".join(part.text for part in message.content),
        }
        for message in request.messages
    ]


def prompts_of(
    request: TextRequest, encode: Callable[[str], tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """The prompts as token ids.

    Raises:
        BadRequestError: they are no prompts, or too many.
    """
    prompts = request.prompt
    if isinstance(prompts, str):
        return [encode(prompts)]
    if prompts and all(isinstance(prompt, int) for prompt in prompts):
        prompts = [prompts]  # type: ignore[list-item]  # one prompt of token ids
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise BadRequestError(f"a request has 1 to {MAX_PROMPTS} prompts", "prompt")
    prompt_ids = []
    for prompt in prompts:
        if isinstance(prompt, int):
            raise BadRequestError("prompts are strings, or lists of token ids", "prompt")
        prompt_ids.append(encode(prompt) if isinstance(prompt, str) else tuple(prompt))
    return prompt_ids


class AnswerText:
    """The text of one answer while it grows, up to one of `stops`. A part that later tokens could
    change is held back: half a character, or the beginning of a stop."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = stops
        self.text = ""
        self.is_stopped = False

    def take(self, ids: Sequence[int], *, is_finished: bool) -> str:
        """Return what is new in the text of all `ids` so far. With `is_finished` no more comes."""
        if self.is_stopped:
            return ""
        text = self._decode(ids)
        # The one that is whole first, so that the pieces in which a text comes change nothing.
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.is_stopped, text = True, text[: min(ends)[1]]
        elif not is_finished:
            text = self._settled_prefix(text)
        if len(text) <= len(self.text):
            return ""
        new, self.text = text[len(self.text) :], text
        return new

    def _settled_prefix(self, text: str) -> str:
        text = text.rstrip("\N{REPLACEMENT CHARACTER}")
        held_chars = max(
            (n for stop in self._stops for n in range(len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
        return text[: len(text) - held_chars]


@dataclass(frozen=True, slots=True)
class OpenAIReply:
    """Reply to one request, whole or in chunks. The fields are common to all chunks."""

    id: str
    kind: Kind
    model: str
    created: int

    def _head(self, version: int, *, chunk: bool) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": _WORDS[self.kind] + (".chunk" if chunk and self.kind == "chat" else ""),
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"v{version}",
        }

    def whole(
        self,
        texts: Sequence[str],
        logprobs: Sequence[Mapping[str, Any] | None],
        ends: Sequence[Finish],
        usage: Mapping[str, int],
        version: int,
    ) -> dict[str, Any]:
        """A reply that is not streamed."""
        choices: list[dict[str, Any]] = []
        for index, (text, row_logprobs, end) in enumerate(zip(texts, logprobs, ends, strict=True)):
            content = (
                {"message": {"role": "assistant", "content": text, "refusal": None}}
                if self.kind == "chat"
                else {"text": text}
            )
            choices.append(
                {"index": index, **content, "logprobs": row_logprobs, "finish_reason": end.value}
            )
        return {**self._head(version, chunk=False), "choices": choices, "usage": usage}

    def first(self, rows: int, version: int) -> Iterator[dict[str, Any]]:
        """The chunks before any text. Only a chat has them. They name the role that speaks."""
        if self.kind == "chat":
            for index in range(rows):
                yield self._chunk(index, {"role": "assistant", "content": ""}, None, None, version)

    def piece(
        self,
        index: int,
        text: str,
        logprobs: Mapping[str, Any] | None,
        end: Finish | None,
        version: int,
    ) -> dict[str, Any]:
        """A chunk with the next text of an answer, with its `end` if that is the last."""
        delta = {"content": text} if self.kind == "chat" and text else {}
        return self._chunk(index, delta if self.kind == "chat" else text, logprobs, end, version)

    def last(self, usage: Mapping[str, int], version: int) -> dict[str, Any]:
        """The chunk that counts tokens."""
        return {**self._head(version, chunk=True), "choices": [], "usage": usage}

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, str] | str,
        logprobs: Mapping[str, Any] | None,
        end: Finish | None,
        version: int,
    ) -> dict[str, Any]:
        content = {"text": delta} if self.kind == "text" else {"delta": delta}
        finish = end.value if end else None
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head(version, chunk=True), "choices": [choice]}


def usage_of(prompt: int, completion: int) -> dict[str, int]:
    """Numbers of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def error_of(
    text: str,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}
