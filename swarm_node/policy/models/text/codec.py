"""Text to token ids and back, and the check that a peer's ids spell its text. No torch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Self

from swarm_node.errors import ModelError, Rejected, words_of
from swarm_node.policy.models.config import ModelConfig, read_json
from swarm_node.policy.models.text.text_encoder import TextEncoder
from swarm_node.rollout import Completion, Finish, RolloutGroup

#: The prompt of a question for a model without a chat template, such as a base model.
PLAIN_PROMPT = "Question: {}\nAnswer:"
_PROMPTS_KEPT = 1024
#: The day that a chat template reads off the calendar: a prompt must be the same tomorrow, and at
#: every peer. It is the one that Llama 3.1's template takes where there is no calendar.
_DAY = datetime(2024, 7, 26)
#: What stands for the texts of a multi-turn rollout when its template is taken apart.
_QUESTION, _ANSWERS, _REPLIES = "?", ("-answer-1-", "-answer-2-"), ("-reply-1-", "-reply-2-")


def load_tokenizer(path: Path) -> Any:
    """The directory's tokenizer as transformers' `PreTrainedTokenizerFast`: local files only, and
    never code from them.

    Raises:
        ModelError: tokenizer.json is missing or malformed, or transformers would read other files.
    """
    from transformers import PreTrainedTokenizerFast

    if not (path / "tokenizer.json").is_file():
        raise ModelError(f"{path} has no tokenizer.json; save the model's fast tokenizer there")
    _check_sources(path)
    try:
        # Not AutoTokenizer: for some families it replaces the normaliser and splitter of
        # tokenizer.json by the family's own, and the digest covers tokenizer.json.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        prefix = "tokenizer.json has no " * isinstance(error, KeyError)
        raise ModelError(
            f"the tokenizer in {path} cannot be read: {prefix}{words_of(error)}"
        ) from error
    # Of any type in its settings. The model's positions bound a prompt (`Codec.fits`).
    tokenizer.model_max_length = sys.maxsize
    return tokenizer


def _check_sources(path: Path) -> None:
    """Refuse what would take the place of the tokenizer and the template that were tried, and that
    the digest covers."""
    template_dir, settings = path / "additional_chat_templates", path / "tokenizer_config.json"
    if template_dir.exists():
        raise ModelError(
            f"{template_dir} would take the place of the model's chat template",
            "remove it, and put the template that you want into chat_template.jinja",
        )
    names = read_json(settings).get("fast_tokenizer_files") if settings.is_file() else None
    if names not in (None, ["tokenizer.json"]):
        raise ModelError(
            f"{settings}: fast_tokenizer_files names other tokenizers than tokenizer.json",
            "remove the entry",
        )


class Codec:
    """Text to token ids and back, for one model.

    `vocab_size` is the model's; it may exceed the tokenizer's, because embeddings are padded.
    `positions` is the most tokens of a prompt with its answer. `eos_id` is the end token to append;
    each of `eos_ids` ends a completion. `special_ids` decode to nothing. `pad_id` fills batches."""

    def __init__(
        self, tokenizer: Any, vocab_size: int, eos_ids: Sequence[int], positions: int = 1 << 40
    ) -> None:
        if not eos_ids or any(not 0 <= token < vocab_size for token in eos_ids):
            raise ModelError(
                "the model names no end token inside its vocabulary",
                "put its id as eos_token_id into generation_config.json",
            )
        # Decoding also leaves out the tokens that tokenizer.json flags as special.
        flagged_ids = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        named_ids = set(tokenizer.get_vocab().values())
        # Gemma 3 has a mark for images after the last embedding. No text is encoded as it.
        if any(token >= vocab_size for token in named_ids - flagged_ids):
            raise ModelError(
                f"the tokenizer has {len(tokenizer)} tokens, the model only {vocab_size}: "
                "they do not belong together"
            )
        self._tokenizer = tokenizer
        self._texts = TextEncoder(tokenizer)
        self.vocab_size = vocab_size
        self.positions = positions
        self.eos_id = eos_ids[0]
        unnamed = set(range(vocab_size)) - named_ids
        self.special_ids = frozenset(tokenizer.all_special_ids) | unnamed | flagged_ids
        # The token that ends a turn in the chat template also ends a completion, even if a base
        # model's settings name only the end of a text.
        self.eos_ids = frozenset([*eos_ids, *self._turn_end()])
        pad = tokenizer.pad_token_id
        self.pad_id: int = self.eos_id if pad is None else pad
        self._begin = self._text_begin()
        # A prompt is encoded when it is sampled, and again for every update on its group.
        self._cached_encode = lru_cache(_PROMPTS_KEPT)(self._encode_prompt)
        self._around_reply = lru_cache(1)(self._split_template)
        self._system = ""
        if tokenizer.chat_template is not None:
            prompt = self._apply_template([{"role": "user", "content": _ANSWERS[0]}], True)
            if _ANSWERS[0] not in prompt:
                raise ModelError("the chat template leaves out what the user says", "mend it")

    @classmethod
    def from_directory(cls, path: Path) -> Self:
        """The codec of a model directory.

        Raises:
            ModelError: a file is missing or malformed, or tokenizer and model do not match.
        """
        config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        generation_eos = read_json(generation).get("eos_token_id") if generation.is_file() else None
        tokenizer = load_tokenizer(path)
        eos = _first_named(tokenizer.eos_token_id, generation_eos, config.get("eos_token_id"))
        model = ModelConfig.from_directory(path)
        return cls(tokenizer, model.vocab_size, eos, model.max_position_embeddings)

    def within(self, limit: int) -> Self:
        """The same codec for a sampler that uses `limit` positions at most."""
        bounded = copy.copy(self)
        bounded.positions = min(self.positions, limit)
        return bounded

    def asking(self, system: str) -> Self:
        """The same codec for prompts that begin with a system message; "" for none. For a model
        whose chat template has none, or fails on one, it begins the question, before an empty
        line."""
        codec = copy.copy(self)
        codec._system = system
        codec._cached_encode = lru_cache(_PROMPTS_KEPT)(codec._encode_prompt)
        return codec

    def fits(self, prompt_ids: Sequence[int], max_new_tokens: int) -> bool:
        """Check that a prompt and an answer of `max_new_tokens` fit the model's positions."""
        return len(prompt_ids) + max_new_tokens <= self.positions

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Token ids of the prompt that asks `text`, up to where the answer starts. The prompt
        follows the tokenizer's chat template, with thinking disabled, or else `PLAIN_PROMPT`."""
        return self._cached_encode(text)

    def _encode_prompt(self, text: str) -> tuple[int, ...]:
        if not self._system:
            return self.encode_chat([{"role": "user", "content": text}])
        if not self._takes_system():
            return self.encode_chat([{"role": "user", "content": f"{self._system}\n\n{text}"}])
        system = {"role": "system", "content": self._system}
        return self.encode_chat([system, {"role": "user", "content": text}])

    def _takes_system(self) -> bool:
        """Check that the chat template writes a system message."""
        mark = "-system-"
        messages = [{"role": "system", "content": mark}, {"role": "user", "content": _QUESTION}]
        try:
            return self._tokenizer.chat_template is not None and mark in self._apply_template(
                messages, True
            )
        except ModelError:
            return False

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a conversation ("role" and "content" of each message), up to where the next
        answer starts. A model without a chat template takes one question. The name of a token in a
        content is plain text.

        Raises:
            ModelError: the template fails or writes a token that the model lacks, or there is none.
        """
        roles = [message["role"] for message in messages]
        is_plain = self._tokenizer.chat_template is None
        if is_plain and roles != ["user"]:
            raise ModelError("this model has no chat template: it takes one message of the user")

        def render(contents: Sequence[str]) -> str:
            if is_plain:
                return PLAIN_PROMPT.format(*contents)
            pairs = zip(roles, contents, strict=True)
            return self._apply_template(
                [{"role": role, "content": content} for role, content in pairs], True
            )

        ids = self._texts.encode_rendered(render, [message["content"] for message in messages])
        if max(ids, default=0) >= self.vocab_size:
            raise ModelError(f"the chat template writes token {max(ids)}, which the model lacks")
        return tuple([*self._begin, *ids] if is_plain else ids)

    def _text_begin(self) -> tuple[int, ...]:
        """The ids that the tokenizer puts before every text, such as Llama's <|begin_of_text|>.
        Chat templates write them themselves."""
        ids = self._tokenizer("a").input_ids
        end = self._tokenizer("a", add_special_tokens=False).input_ids
        return tuple(ids[: ids.index(end[0])] if end else ())

    def _apply_template(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """`messages` rendered by the chat template, which runs in Jinja's sandbox.

        Raises:
            ModelError: the template fails.
        """
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                enable_thinking=False,
                strftime_now=_DAY.strftime,
            )
        except Exception as error:
            reason = " ".join(words_of(error).split())
            raise ModelError(f"the tokenizer's chat template fails: {reason}") from error
        return text

    def _turn_end(self) -> list[int]:
        """The special token that follows an answer in the chat template; empty without one."""
        if self._tokenizer.chat_template is None:
            return []
        mark = "-answer-"
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
        _, separator, tail = self._apply_template(messages, False).rpartition(mark)
        if not separator:
            return []
        ids = self._tokenizer.encode(tail, add_special_tokens=False)
        return [token for token in ids[:1] if token in self.special_ids]

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Token ids of an answer, without an end token, or of any other text that no template
        surrounds. The name of a token in it is plain text."""
        return tuple(self._texts.text(text))

    def bridge(self, observation: str) -> tuple[int, ...]:
        """Token ids from the end token of a turn, which the model said itself, up to the place
        where the next answer starts: `observation` and what the chat template puts around it.
        Everything before them stays as it was read. The observation is encoded as plain text.

        Raises:
            ModelError: the chat template cannot be continued, whatever the reply.
        """
        prefix, suffix = self._around_reply()
        return (*prefix, *self.encode_answer(observation), *suffix)

    def _split_template(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after a reply. They must be the same after every answer."""
        if self._tokenizer.chat_template is None:
            raise _no_turns("the model has none")
        marks = [_ANSWERS[0], _REPLIES[0], _ANSWERS[1], _REPLIES[1]]
        messages = [
            {"role": "assistant" if mark in _ANSWERS else "user", "content": mark}
            for mark in (_QUESTION, *marks)
        ]
        prompt = self._apply_template(messages[:1], True)
        one_turn = _cut(self._apply_template(messages[:3], True), marks[:2])
        two_turns = _cut(self._apply_template(messages, True), marks)
        if one_turn is None or two_turns is None:
            raise _no_turns("it leaves out or repeats what was said before")
        begin, prefix, suffix = one_turn
        # Of a thought, templates write in the newest answer only: the model read it there.
        is_same = (
            two_turns[0] == begin and prompt.startswith(begin) and suffix.startswith(two_turns[2])
        )
        if not is_same or two_turns[1] != prefix or two_turns[3:] != [prefix, suffix]:
            raise _no_turns("it writes what was said before in another way later")
        ids = [self._tokenizer.encode(part, add_special_tokens=False) for part in (prefix, suffix)]
        if not ids[0] or ids[0][0] not in self.eos_ids:
            raise _no_turns("it puts no end token after a completion, so it has no roles")
        return tuple(ids[0][1:]), tuple(ids[1])

    @property
    def spells_bytes(self) -> bool:
        """Check that a text consists of its tokens' bytes (byte-level BPE)."""
        from tokenizers.decoders import ByteLevel

        return isinstance(self._tokenizer.backend_tokenizer.decoder, ByteLevel)

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that a token adds to a text, where the tokenizer `spells_bytes`: none
        for a special token."""
        if token in self.special_ids:
            return b""
        name = self._tokenizer.convert_ids_to_tokens(token)
        try:
            return bytes(_byte_of()[letter] for letter in name)
        except KeyError:  # an added token is its own text
            return str(name).encode()

    def token_name(self, token: int) -> str:
        """The name of a token in the tokenizer; some numbers have none."""
        return self._tokenizer.convert_ids_to_tokens(token) or f"<{token}>"

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens; broken UTF-8 becomes U+FFFD.

        Raises:
            ValueError: an id is outside the model's vocabulary.
        """
        token_ids = [int(token) for token in ids]
        if any(not 0 <= token < self.vocab_size for token in token_ids):
            raise ValueError(f"a token id is not below {self.vocab_size}")
        text: str = self._tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


@cache
def _byte_of() -> Mapping[str, int]:
    """The bytes of the letters by which byte-level BPE writes them: printable ones of Latin-1 are
    themselves, the others letters from U+0100 on."""
    printable_bytes = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other_bytes = sorted(set(range(256)).difference(printable_bytes))
    return {chr(byte): byte for byte in printable_bytes} | {
        chr(0x100 + place): byte for place, byte in enumerate(other_bytes)
    }


def _cut(text: str, marks: Sequence[str]) -> list[str] | None:
    """The parts of a text around `marks`, None unless each is there once and in this order."""
    parts: list[str] = []
    for mark in marks:
        if text.count(mark) != 1:
            return None
        part, _, text = text.partition(mark)
        parts.append(part)
    return [*parts, text]


def _no_turns(reason: str) -> ModelError:
    return ModelError(
        f"this model's chat template cannot be continued with an observation ({reason})",
        "take a model that "
        "was trained for conversations, such as tiny-talk, or an environment of one turn",
    )


def _first_named(*candidates: object) -> list[int]:
    """All end tokens among `candidates`, each once, in their order."""
    end_ids: list[int] = []
    for candidate in candidates:
        for token in candidate if isinstance(candidate, list) else [candidate]:
            if isinstance(token, int) and token not in end_ids:
                end_ids.append(token)
    return end_ids


def check_tokens(codec: Codec, group: RolloutGroup) -> Rejected | None:
    """Refuse a group, as "tokens", if the ids of a completion do not decode to its text. Return
    None for any other.

    Rewards are computed from texts and gradients from ids. A peer whose ids differ from its text
    could have arbitrary tokens reinforced by a correct answer. So an end token may stand only at
    the end, and no other special token may occur, because decoding hides them.
    """
    for completion in group.completions:
        fault = _fault(codec, completion)
        if fault:
            return Rejected("tokens", fault)
    return None


def _fault(codec: Codec, completion: Completion) -> str:
    token_ids, begin = completion.token_ids.tolist(), 0
    for turn in completion.earlier_turns:
        fault = _turn_fault(codec, turn.text, token_ids[begin : turn.end], Finish.STOP)
        if fault:
            return fault
        begin = turn.end
    return _turn_fault(codec, completion.text, token_ids[begin:], completion.finish)


def _turn_fault(codec: Codec, claimed_text: str, ids: list[int], finish: Finish) -> str:
    if finish is Finish.STOP and (not ids or ids.pop() not in codec.eos_ids):
        return "it stopped without an end token"
    if any(token in codec.special_ids or token in codec.eos_ids for token in ids):
        return "a special token inside"
    try:
        text = codec.decode(ids)
    except ValueError as error:
        return str(error)
    return "" if text == claimed_text else "the ids do not spell the text"
