"""Finding a model, its tokenizer and their digests. Cheap to import: no torch, no transformers."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Self

from swarm_node.errors import ModelError
from swarm_node.policy.models.config import Qwen2Config, read_json, weight_files
from swarm_node.policy.models.hub import ALIASES, fetch, hub_model
from swarm_node.rollout import PolicyRef

TINY = "tiny"
#: How a question is put to a model whose tokenizer has no chat template, such as a base model.
PLAIN_PROMPT = "Question: {}\nAnswer:"
_CHUNK_BYTES = 1 << 20
_PROMPTS_KEPT = 1024


def resolve(name: str, admit: Callable[[Qwen2Config], object] = lambda config: None) -> Path:
    """The directory of a model: "tiny" is the one that ships; else an existing directory; else an
    alias or id of the hub (`hub.hub_model`), fetched if it is not cached.

    `admit` sees the architecture before any weights are downloaded, and raises to refuse it.

    Raises:
        ModelError: there is no such model, or it cannot be fetched or used.
    """
    if name == TINY:
        path = Path(str(resources.files("swarm_node.policy.models"))) / "tiny"
    else:
        path = Path(name).expanduser()
        wanted = hub_model(name)
        if wanted is not None and not path.is_dir():
            return fetch(wanted, admit)
    if not (path / "config.json").is_file():
        raise ModelError(
            f'no model at {path}: give "{TINY}", a short name ({", ".join(ALIASES)}), '
            "organisation/name of the model hub, or a directory with config.json, "
            "model.safetensors and tokenizer.json"
        )
    admit(Qwen2Config.from_directory(path))
    return path.resolve()


def load_tokenizer(path: Path) -> Any:
    """The directory's tokenizer as transformers' `PreTrainedTokenizerFast`: local files only, and
    never code from them.

    Raises:
        ModelError: tokenizer.json is missing or malformed.
    """
    from transformers import PreTrainedTokenizerFast

    if not (path / "tokenizer.json").is_file():
        raise ModelError(f"{path} has no tokenizer.json; save the model's fast tokenizer there")
    try:
        # Not AutoTokenizer: for a Qwen2 model it would put Qwen2's own normalising and splitting in
        # place of what tokenizer.json says, and tokenizer.json is what the digest covers.
        return PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the tokenizer in {path} cannot be read: {error}") from error


class Codec:
    """Text to token ids and back, for one model.

    `vocab_size` is the model's, which may exceed the tokenizer's (padded embeddings); `positions`
    bound a prompt with its answer; `eos_id` is the end token to append, `eos_ids` are all that end
    a completion; `special_ids` decode to nothing; `pad_id` fills batches."""

    def __init__(
        self, tokenizer: Any, vocab_size: int, eos_ids: Sequence[int], positions: int = 1 << 40
    ) -> None:
        if not eos_ids or any(not 0 <= token < vocab_size for token in eos_ids):
            raise ModelError("the model names no end token (eos_token_id) inside its vocabulary")
        if len(tokenizer) > vocab_size:
            raise ModelError(
                f"the tokenizer has {len(tokenizer)} tokens, the model only {vocab_size}: "
                "they do not belong together"
            )
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.positions = positions
        self.eos_id = eos_ids[0]
        unnamed = set(range(vocab_size)).difference(tokenizer.get_vocab().values())
        # Those that tokenizer.json flags too, named or not: decoding leaves them all out.
        flagged = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special_ids = frozenset(tokenizer.all_special_ids) | unnamed | flagged
        # What ends a turn in the chat template ends a completion, even where a base model's
        # settings name only the end of a text.
        self.eos_ids = frozenset([*eos_ids, *self._turn_end()])
        pad = tokenizer.pad_token_id
        self.pad_id: int = self.eos_id if pad is None else pad
        # A prompt is needed when it is sampled and again whenever its group is trained on.
        self._encoded = lru_cache(_PROMPTS_KEPT)(self._encode_prompt)

    @classmethod
    def from_directory(cls, path: Path) -> Self:
        """The codec of a model directory.

        Raises:
            ModelError: a file is missing, malformed, or tokenizer and model do not fit.
        """
        config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        named = read_json(generation).get("eos_token_id") if generation.is_file() else None
        tokenizer = load_tokenizer(path)
        eos = _first_named(tokenizer.eos_token_id, named, config.get("eos_token_id"))
        model = Qwen2Config.from_directory(path)
        return cls(tokenizer, model.vocab_size, eos, model.max_position_embeddings)

    def within(self, longest: int) -> Self:
        """The same for a sampler that takes `longest` positions at most."""
        bounded = copy.copy(self)
        bounded.positions = min(self.positions, longest)
        return bounded

    def fits(self, prompt_ids: Sequence[int], max_new_tokens: int) -> bool:
        """Whether a prompt leaves room for an answer."""
        return len(prompt_ids) + max_new_tokens <= self.positions

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Token ids of a question, up to where the answer starts: by the tokenizer's chat template
        (without thinking aloud, where it offers that), else by `PLAIN_PROMPT`."""
        return self._encoded(text)

    def _encode_prompt(self, text: str) -> tuple[int, ...]:
        if self._tokenizer.chat_template is None:
            prompt = PLAIN_PROMPT.format(text)
        else:
            prompt = self._templated([{"role": "user", "content": text}], True)
        return tuple(self._tokenizer.encode(prompt, add_special_tokens=False))

    def _templated(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """`messages` as the chat template, which runs in Jinja's sandbox, writes them.

        Raises:
            ModelError: the template fails.
        """
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                enable_thinking=False,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ModelError(f"the tokenizer's chat template fails: {error}") from error
        return text

    def _turn_end(self) -> list[int]:
        """The special token that follows an answer in the chat template, if one does."""
        if self._tokenizer.chat_template is None:
            return []
        mark = "-answer-"
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
        after = self._templated(messages, False).rpartition(mark)[2]
        ids = self._tokenizer.encode(after, add_special_tokens=False)
        return [token for token in ids[:1] if token in self.special_ids]

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Token ids of an answer, without an end token. The text may come from a peer, so a
        special token spelt out in it is encoded as plain text."""
        return tuple(
            self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out, broken UTF-8 becomes U+FFFD.

        Raises:
            ValueError: an id is outside the model's vocabulary.
        """
        plain = [int(token) for token in ids]
        if any(not 0 <= token < self.vocab_size for token in plain):
            raise ValueError(f"a token id is not below {self.vocab_size}")
        text: str = self._tokenizer.decode(
            plain, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def policy_digests(path: Path) -> tuple[bytes, bytes]:
    """sha256 of the model and of the tokenizer in a directory (32 bytes each).

    The model's covers the architecture and the bytes of the weight files; the tokenizer's covers
    tokenizer.json, less its padding and truncation settings, and the chat template. Formatting of
    the JSON files and other files do not matter, so both are equal wherever the model is the same.

    Raises:
        ModelError: a file is missing or malformed.
    """
    model = hashlib.sha256(_canonical(Qwen2Config.from_directory(path).described()))
    for file in weight_files(path):
        model.update(_file_digest(file))
    rules = read_json(path / "tokenizer.json")
    template = _chat_template(path)
    kept = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
    tokenizer = hashlib.sha256(_canonical({"tokenizer": kept, "chat_template": template}))
    return model.digest(), tokenizer.digest()


@dataclass(frozen=True, eq=False)
class Model:
    """A model's directory, read once: its digests cover every byte of its weights. `name` is what
    its user calls it, `policy` names its weights and tokenizer to peers."""

    name: str
    directory: Path
    config: Qwen2Config
    codec: Codec
    policy: PolicyRef

    @classmethod
    def read(cls, name: str, directory: Path) -> Self:
        """
        Raises:
            ModelError: a file is missing or malformed, or tokenizer and model do not fit.
        """
        config = Qwen2Config.from_directory(directory)
        codec, digests = Codec.from_directory(directory), policy_digests(directory)
        return cls(name, directory, config, codec, PolicyRef(*digests, 0))


def _first_named(*candidates: object) -> list[int]:
    """All end tokens named, each once, in the order of naming."""
    named: list[int] = []
    for candidate in candidates:
        for token in candidate if isinstance(candidate, list) else [candidate]:
            if isinstance(token, int) and token not in named:
                named.append(token)
    return named


def _chat_template(path: Path) -> object:
    separate = path / "chat_template.jinja"
    if separate.is_file():
        try:
            return separate.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot read {separate}: {error}") from error
    settings = path / "tokenizer_config.json"
    return read_json(settings).get("chat_template") if settings.is_file() else None


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _file_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    return digest.digest()
