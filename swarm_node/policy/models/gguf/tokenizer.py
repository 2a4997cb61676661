"""The tokenizer in a GGUF file's metadata as transformers' files. No torch.

A file names its way to split texts and does not hold it. So the names that are known are a table
here, and others are refused: a wrong splitter gives other tokens than the model was trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from swarm_node.errors import words_of
from swarm_node.policy.models.bounds import check_template
from swarm_node.policy.models.gguf.header import Header
from swarm_node.policy.models.gguf.shape import CONTROL, refuse

_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: The splitters of byte-level BPE by `tokenizer.ggml.pre`, as the models' own tokenizer.json have
#: them; "" for GPT-2's.
_SPLITTERS: Final[Mapping[str, str]] = {
    "gpt-2": "",
    "smollm": "",
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
}
#: Those that take a word of the vocabulary whole, even where merges would end elsewhere, and those
#: that begin a text with the token of its beginning unless the file says otherwise.
_WHOLE_WORDS: Final = frozenset(("llama-bpe", "llama-v3", "llama3", "tekken"))
_UNKNOWN, _USER, _UNUSED = 2, 4, 5
_PADDING: Final = re.compile(r"\[PAD\d+\]", re.ASCII)
#: SentencePiece writes pieces of at most 16 characters, Gemma's of 31. Merges of a piece are all
#: ways to cut it in two.
_MAX_PIECE: Final = 128
#: Gemma's 262,144 pieces have 0.6 million merges.
_MAX_MERGES: Final = 1 << 21
_SHOWN: Final = 80


def tokenizer_files(header: Header, vocabulary: int) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and, where there is one, chat_template.jinja, for a
    model with a `vocabulary` of so many tokens. The template was tried within its bounds.

    Raises:
        ModelError: the tokenizer is malformed or of another kind, or the template is refused.
    """
    texts = _texts(header, "tokenizer.ggml.tokens")
    kinds = header.metadata.get("tokenizer.ggml.token_type", [1] * len(texts))
    if not 0 < len(texts) <= vocabulary or len({*texts}) < len(texts):
        raise refuse(header, f"it has {len(texts)} tokens for {vocabulary} rows, or one twice")
    if not isinstance(kinds, list) or len(kinds) != len(texts):
        raise refuse(header, "tokenizer.ggml.token_type fits no list of tokens")
    named_tokens = dict(_special_tokens(header, texts))
    special_texts = {*named_tokens.values()}
    tokens = {
        text: place
        for place, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind != _UNUSED or text in special_texts or not _PADDING.fullmatch(text)
    }
    model = header.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        rules = _byte_level(header, tokens)
    elif model == "llama":
        rules = _sentence_piece(header, tokens, texts)
    else:
        raise refuse(header, f"its tokenizer is {str(model)[:_SHOWN]!r}, neither gpt2 nor llama")
    added_tokens = [
        _added_token(texts[place], place, special=kind != _USER or texts[place] in special_texts)
        for place, kind in enumerate(kinds)
        if kind in (_UNKNOWN, CONTROL, _USER) or texts[place] in special_texts
    ]
    bos_token = named_tokens.get("bos_token") if _begins(header) else None
    if bos_token is not None:
        rules["post_processor"] = _prefix_rule(bos_token, tokens[bos_token])
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        **rules,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **named_tokens,
    }
    files = {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False).encode(),
    }
    _check(header, files["tokenizer.json"], texts)
    template = header.metadata.get("tokenizer.chat_template")
    if template is not None:
        if not isinstance(template, str):
            raise refuse(header, "tokenizer.chat_template is no text")
        check_template(template)
        files["chat_template.jinja"] = template.encode()
    return files


def _texts(header: Header, key: str) -> list[str]:
    texts = header.metadata.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise refuse(header, f"{key} is missing, or no list of texts")
    return texts


def _byte_level(header: Header, tokens: Mapping[str, int]) -> dict[str, Any]:
    splitter = str(header.metadata.get("tokenizer.ggml.pre"))
    if splitter not in _SPLITTERS:
        raise refuse(
            header,
            f"its tokenizer splits texts as {splitter[:_SHOWN]!r} (tokenizer.ggml.pre), known "
            f"are {', '.join(_SPLITTERS)}",
        )
    merges = [merge.split(" ") for merge in _texts(header, "tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise refuse(header, "tokenizer.ggml.merges has a line that is no pair")
    expression = _SPLITTERS[splitter]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    parts: list[dict[str, Any]] = []
    if splitter == "smollm":
        parts.append({"type": "Digits", "individual_digits": True})
    if expression:
        split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
        parts.append({**split, "invert": False})
    parts.append({**level, "use_regex": not expression})
    normalizer = {"type": "NFC"} if expression == _QWEN2 else None
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "post_processor": {**level, "trim_offsets": False, "use_regex": not expression},
        "decoder": {**level, "use_regex": True},
        "model": _bpe(tokens, merges, ignore_merges=splitter in _WHOLE_WORDS),
    }


def _sentence_piece(
    header: Header, tokens: Mapping[str, int], texts: Sequence[str]
) -> dict[str, Any]:
    scores = header.metadata.get("tokenizer.ggml.scores")
    if (
        not isinstance(scores, list)
        or len(scores) != len(texts)
        or not all(isinstance(score, float) for score in scores)
    ):
        raise refuse(header, "tokenizer.ggml.scores fits no list of tokens")
    if any(len(text) > _MAX_PIECE for text in texts):
        raise refuse(header, f"its tokenizer has a piece of over {_MAX_PIECE} characters")
    unknown_id = header.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    prefix = header.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    metaspace = {"type": "Metaspace", "replacement": "▁", "split": False}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _bpe(tokens, _pairs(header, tokens, scores), byte_fallback=True, fuse_unk=True)
    if isinstance(unknown_id, int) and 0 <= unknown_id < len(texts):
        model["unk_token"] = texts[unknown_id]
    return {
        "normalizer": None,
        "pre_tokenizer": {**metaspace, "prepend_scheme": "first" if prefix else "never"},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _pairs(header: Header, tokens: Mapping[str, int], scores: Sequence[float]) -> list[list[str]]:
    """The merges that a vocabulary of SentencePiece implies, best first: every token of two others,
    as transformers' `generate_merges` orders them.

    Raises:
        ModelError: they are more than a tokenizer has.
    """
    candidates = (
        (-scores[place], -len(text[:split]), tokens[text[:split]], text[:split], text[split:])
        for text, place in tokens.items()
        for split in range(1, len(text))
        if text[:split] in tokens and text[split:] in tokens
    )
    merges = list(islice(candidates, _MAX_MERGES + 1))
    if len(merges) > _MAX_MERGES:
        raise refuse(header, f"its pieces are over {_MAX_MERGES} merges of others")
    merges.sort(key=lambda pair: pair[:3])
    return [[left, right] for *_, left, right in merges]


def _bpe(
    tokens: Mapping[str, int], merges: Sequence[Sequence[str]], **options: bool
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        **{"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **options},
        "vocab": tokens,
        "merges": merges,
    }


def _special_tokens(header: Header, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        token = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token is None:
            continue
        if not isinstance(token, int) or not 0 <= token < len(texts):
            raise refuse(header, f"tokenizer.ggml.{key}_token_id is {repr(token)[:_SHOWN]}")
        yield f"{name}_token", texts[token]


def _begins(header: Header) -> bool:
    default = header.metadata.get("tokenizer.ggml.model") == "llama"
    default |= str(header.metadata.get("tokenizer.ggml.pre")) in _WHOLE_WORDS
    return header.metadata.get("tokenizer.ggml.add_bos_token", default) is True


def _prefix_rule(text: str, token: int) -> dict[str, Any]:
    """The rule that begins a text with a token."""
    mark = {"SpecialToken": {"id": text, "type_id": 0}}
    single = [mark, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]}},
    }


def _added_token(text: str, token: int, special: bool) -> dict[str, Any]:
    return {
        **{"id": token, "content": text, "single_word": False, "lstrip": False, "rstrip": False},
        **{"normalized": False, "special": special},
    }


def _check(header: Header, content: bytes, texts: Sequence[str]) -> None:
    """Refuse rules that the library does not take, or that give a token another number."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises no class of its own
        raise refuse(header, f"its tokenizer is malformed ({words_of(error)[:200]})") from error
    for text, token in tokenizer.get_vocab().items():
        if token >= len(texts) or texts[token] != text:
            raise refuse(header, f"its tokenizer gives {text[:_SHOWN]!r} two numbers")
