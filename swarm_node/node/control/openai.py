"""OpenAI's chat and completions over HTTP, answered by the newest policy.

GET  /v1/models             the policy and its version
POST /v1/chat/completions   answers to a conversation, also as a stream
POST /v1/completions        answers to texts or token ids, also as a stream
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from aiohttp import web

from swarm_node.errors import ModelError, SwarmNodeError
from swarm_node.node.control.openai_logprobs import AnswerLogprobs, SpeltToken, spelt
from swarm_node.node.control.openai_wire import (
    MAX_REQUEST_ROWS,
    USUAL_TOKENS,
    AnswerText,
    BadRequestError,
    ChatRequest,
    Kind,
    OpenAIReply,
    TextRequest,
    error_of,
    messages_of,
    parse_request,
    prompts_of,
    usage_of,
)
from swarm_node.node.loops.openai_requests import OpenAIRequests, SampledChoices
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.rollout import Finish

MODELS, CHAT, TEXT = "/v1/models", "/v1/chat/completions", "/v1/completions"
#: The file with the token that opens these paths alone.
TOKEN_FILE: Final = "openai.token"  # noqa: S105 - a name
_BODY_SECONDS: Final = 10.0
#: A reader that takes nothing for so long has left.
_WRITE_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 1


def is_openai(path: str) -> bool:
    """Check that a path is one of this API."""
    return path in (CHAT, TEXT, MODELS) or path.startswith(f"{MODELS}/")


def model_name(model: str) -> str:
    """Name a model for clients: a directory by its last part, so that no path is shown."""
    return Path(model).expanduser().resolve().name if Path(model).expanduser().is_dir() else model


class ServedModel(msgspec.Struct, frozen=True):
    """The policy that is served, and the `version` that the next token comes from."""

    id: str
    created: int
    version: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "swarm-node"


class ModelList(msgspec.Struct, frozen=True):
    """The reply to `GET /v1/models`."""

    data: Annotated[list[ServedModel], msgspec.Meta(min_length=1, max_length=1)]
    object: str = "list"


class ServedAt(NamedTuple):
    """Access of a client: the base URL, the file with its key, and the model."""

    url: str
    key: Path
    model: ServedModel


class OpenAIServer:
    """Answers the requests. `model` is the policy's name for clients. `longest` is the length of an
    answer if the request names none."""

    def __init__(
        self, guests: OpenAIRequests, codec: Codec, *, model: str, token_limit: Callable[[], int]
    ) -> None:
        self._guests = guests
        self._codec = codec
        self._model = model
        self._token_limit = token_limit
        self._created_at = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(MODELS, self._list),
            web.get(MODELS + "/{id:.+}", self._one),
            web.post(CHAT, self._chat),
            web.post(TEXT, self._text),
        ]

    def end(self) -> None:
        """End all answers: a server waits for its requests when it closes."""
        self._guests.end()

    @property
    def served_model(self) -> ServedModel:
        """The model as it is listed."""
        guests, codec = self._guests, self._codec
        return ServedModel(self._model, self._created_at, guests.version, codec.positions)

    async def _list(self, _: web.Request) -> web.Response:
        return _json(ModelList([self.served_model]))

    async def _one(self, request: web.Request) -> web.Response:
        if request.match_info["id"] != self._model:
            return _refusal(self._unknown_model_error(request.match_info["id"]))
        return _json(self.served_model)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, ChatRequest)

    async def _text(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, TextRequest)

    async def _answer(
        self, request: web.Request, kind: type[ChatRequest] | type[TextRequest]
    ) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
            api_request = parse_request(body, kind)
            sample_requests = self._make_sample_requests(api_request)
        except web.HTTPRequestEntityTooLarge as error:
            text = f"the body is larger than {request.client_max_size} bytes"
            return _refusal(BadRequestError(text, status=error.status))
        except TimeoutError:
            return _refusal(BadRequestError("a body arrives at once", status=408))
        except BadRequestError as error:
            return _refusal(error)
        answers = self._queue_requests(sample_requests, lambda: _is_gone(request))
        if answers is None:
            return _busy()
        conversation = _Conversation(
            api_request, sample_requests, answers, self._codec, self._model
        )
        try:
            if api_request.stream:
                return await conversation.stream(request)
            return await conversation.whole()
        finally:
            for answer in answers:
                answer.leave()

    def _make_sample_requests(self, api_request: ChatRequest | TextRequest) -> list[SampleRequest]:
        """
        Raises:
            BadRequestError: the policy cannot be asked this.
        """
        if api_request.model != self._model:
            raise self._unknown_model_error(api_request.model)
        if isinstance(api_request, ChatRequest):
            try:
                prompts = [self._codec.encode_chat(messages_of(api_request))]
            except ModelError as error:
                raise BadRequestError(str(error), "messages") from error
            limit = api_request.max_completion_tokens or api_request.max_tokens
            max_tokens, param = limit or self._token_limit(), "messages"
        else:
            prompts = prompts_of(api_request, self._codec.encode_answer)
            limit, param = api_request.max_tokens, "prompt"
            max_tokens = limit or USUAL_TOKENS
        count = api_request.n or 1
        if len(prompts) * count > MAX_REQUEST_ROWS:
            raise BadRequestError(f"n times prompts may be {MAX_REQUEST_ROWS} at most", "n")
        seed = secrets.randbits(62) if api_request.seed is None else api_request.seed % (1 << 62)
        sample_requests = [
            SampleRequest(
                ids,
                count,
                # The same prompt twice in a request has two answers.
                (seed + place) % (1 << 62),
                self._room(ids, max_tokens, limit is not None, param),
                api_request.heat,
                guest=True,
                top_p=api_request.top_p or 1.0,
                top_logprobs=api_request.top_logprob_count,
            )
            for place, ids in enumerate(prompts)
        ]
        refusal = self._guests.refusal(sample_requests[0])
        if api_request.top_logprob_count is not None and not self._codec.spells_bytes:
            refusal = "log-probs need a tokenizer of byte-level BPE, and this model has another"
        if refusal:
            raise BadRequestError(refusal, "logprobs", "unsupported_parameter")
        return sample_requests

    def _room(self, ids: Sequence[int], max_tokens: int, is_explicit: bool, param: str) -> int:
        """The most tokens of an answer: `max_tokens`, or fewer if the positions are short. A length
        that the request states (`is_explicit`) is refused then."""
        if not ids:
            raise BadRequestError("a prompt has at least one token", param)
        if not all(0 <= token < self._codec.vocab_size for token in ids):
            raise BadRequestError("a token id is outside the model's vocabulary", param)
        left = self._codec.positions - len(ids)
        if left < 1 or (is_explicit and max_tokens > left):
            raise BadRequestError(
                f"the context length is {self._codec.positions}, and the request needs "
                f"{len(ids)} for the prompt and {max_tokens} for the completion",
                param,
                "context_length_exceeded",
            )
        return min(max_tokens, left)

    def _queue_requests(
        self, sample_requests: Sequence[SampleRequest], is_gone: Callable[[], bool]
    ) -> list[SampledChoices] | None:
        """The answers to all prompts, or None if there is no room for them all."""
        queued: list[SampledChoices] = []
        for request in sample_requests:
            answers = self._guests.ask(request, is_gone)
            if answers is None:
                for entry in queued:
                    entry.leave()
                return None
            queued.append(answers)
        return queued

    def _unknown_model_error(self, name: str) -> BadRequestError:
        text = f"there is no model {name[:80]!r} here: this node serves {self._model!r}"
        return BadRequestError(text, "model", "model_not_found", 404)


class _Conversation:
    """One request with its answers: rows of all its prompts, in their order."""

    def __init__(
        self,
        api_request: ChatRequest | TextRequest,
        sample_requests: Sequence[SampleRequest],
        answers: Sequence[SampledChoices],
        codec: Codec,
        model: str,
    ) -> None:
        self._answers = answers
        self._rows = [(item, row) for item in answers for row in item.rows]
        self._texts = [AnswerText(codec.decode, api_request.stops) for _ in self._rows]
        self._codec = codec
        self._wants_logprobs = api_request.top_logprob_count is not None
        self._finishes: list[Finish | None] = [None] * len(self._rows)
        self._prompt_tokens = sum(len(item.prompt_ids) for item in sample_requests)
        self._counts = bool(api_request.stream_options and api_request.stream_options.include_usage)
        kind: Kind = "chat" if isinstance(api_request, ChatRequest) else "text"
        self._logprobs = [AnswerLogprobs(kind, self._spelt) for _ in self._rows]
        number = secrets.token_hex(12)
        name = f"chatcmpl-{number}" if kind == "chat" else f"cmpl-{number}"
        self._reply = OpenAIReply(name, kind, model, int(time.time()))

    async def whole(self) -> web.Response:
        async for _ in self._news():
            pass
        failure = self._failure_reason()
        if failure is not None:
            return _json(error_of(failure, "server_error"), 503)
        texts = [answer.text for answer in self._texts]
        ends = [finish or Finish.LENGTH for finish in self._finishes]
        logprobs = [self._new_logprobs(place) for place in range(len(self._rows))]
        return _json(self._reply.whole(texts, logprobs, ends, self._usage(), self._version))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "no-store"})
        response.content_type = "text/event-stream"
        with suppress(ConnectionError):  # the reader has left
            await response.prepare(request)
            for chunk in self._reply.first(len(self._rows), self._version):
                await _send(request, response, chunk)
            async for place, new in self._news():
                logprobs, end = self._new_logprobs(place), self._finishes[place]
                version = self._rows[place][0].version
                piece = self._reply.piece(place, new, logprobs, end, version)
                await _send(request, response, piece)
            failure = self._failure_reason()
            if failure is not None:
                await _send(request, response, error_of(failure, "server_error"))
            elif self._counts:
                await _send(request, response, self._reply.last(self._usage(), self._version))
            await _write(request, response, b"data: [DONE]\n\n")
        return response

    async def _news(self) -> AsyncIterator[tuple[int, str]]:
        """Yield the place of a row that has grown or ended, and its new text, until every row has
        ended, or the request is over."""
        while True:
            for place, (_, row) in enumerate(self._rows):
                if self._finishes[place] is not None:
                    continue
                text = self._texts[place]
                new = text.take(row.ids, is_finished=row.finish is not None)
                if text.is_stopped and row.finish is None:
                    row.finish = Finish.STOP
                end = self._finishes[place] = Finish.STOP if text.is_stopped else row.finish
                if new or end:
                    yield place, new
            waiting = [answer for answer in self._answers if not answer.over]
            if not waiting:
                return
            await waiting[0].news()

    def _new_logprobs(self, place: int) -> dict[str, Any] | None:
        """Log-probs of the tokens that were added to the shown text since the last call. When a row
        has ended, those of all its remaining tokens."""
        if not self._wants_logprobs:
            return None
        (_, row), text = self._rows[place], self._texts[place]
        is_complete = self._finishes[place] is not None and not text.is_stopped
        length = None if is_complete else len(text.text)
        return self._logprobs[place].take(row.ids, row.ranked_tokens, length)

    def _spelt(self, token: int) -> SpeltToken:
        return spelt(self._codec.token_bytes(token), self._codec.token_name(token))

    @property
    def _version(self) -> int:
        return max(answer.version for answer in self._answers)

    def _usage(self) -> dict[str, int]:
        return usage_of(self._prompt_tokens, sum(len(row.ids) for _, row in self._rows))

    def _failure_reason(self) -> str | None:
        """Say why the answers are not whole; None if they are."""
        errors: list[SwarmNodeError] = [answer.error for answer in self._answers if answer.error]
        if errors:
            return str(errors[0])
        return None if all(self._finishes) else "the node stops, or the request was dropped"


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _send(request: web.Request, response: web.StreamResponse, value: object) -> None:
    await _write(request, response, b"data: " + msgspec.json.encode(value) + b"\n\n")


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """
    Raises:
        ConnectionError: the reader has left.
    """
    try:
        async with asyncio.timeout(_WRITE_SECONDS):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:  # the end of the reply would wait for ever
            request.transport.abort()
        raise ConnectionError from None


def _json(value: object, status: int = 200) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json")


def _refusal(error: BadRequestError) -> web.Response:
    value = error_of(str(error), param=error.param, code=error.code)
    response = _json(value, error.status)
    if error.status != 400:
        response.force_close()
    return response


def _busy() -> web.Response:
    """A client that is refused gives its connection back, which others need."""
    text = "too many completions are waiting: try again in a moment, with fewer requests at once"
    response = _json(error_of(text, "rate_limit_error", code="rate_limit_exceeded"), 429)
    response.headers["Retry-After"] = str(_RETRY_SECONDS)
    response.force_close()
    return response
