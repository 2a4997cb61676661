"""Texts as token ids, in which the name of a token is text and not that token. No torch.

A tokenizer finds its added tokens in any text before it splits the rest: `<eos>`, `<think>`. Only
the chat template may write them. So whatever somebody said, asked or answered is encoded as if the
tokenizer had none. A text without such names has the ids that it always had.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


class TextEncoder:
    """Encodes what people and models say, for one tokenizer (`PreTrainedTokenizerFast`).

    An added token is a mark if it is special, if the model's own vocabulary lacks it, or if the
    chat template names it. Others are ordinary tokens that the tokenizer finds as wholes, such as
    the phrases of the tiny model, and texts consist of them."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import AddedToken, Tokenizer

        backend = tokenizer.backend_tokenizer
        plain_tokenizer = Tokenizer(backend.model)  # the same model in memory, and no added tokens
        template = str(tokenizer.chat_template or "")
        added_tokens = tokenizer.added_tokens_decoder
        special_ids = {*tokenizer.all_special_ids}
        #: Names by id.
        self._marks: dict[int, str] = {
            token: entry.content
            for token, entry in added_tokens.items()
            if entry.special
            or token in special_ids
            or plain_tokenizer.token_to_id(entry.content) is None
            or entry.content in template
        }
        if backend.normalizer is not None:
            plain_tokenizer.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            plain_tokenizer.pre_tokenizer = backend.pre_tokenizer
        plain_tokenizer.add_tokens(
            [entry for token, entry in added_tokens.items() if token not in self._marks]
        )
        # Nobody can say these: they are drawn anew in every process.
        nonce = f"\ue000{secrets.token_hex(16)}"
        self._border = f"{nonce}\ue001"
        plain_tokenizer.add_special_tokens(
            [AddedToken(self._border, normalized=False, special=True)]
        )
        self._border_id = plain_tokenizer.token_to_id(self._border)
        self._stand_in = f"{nonce}{{}}\ue002".format
        self._stand_ins = re.compile(f"{nonce}([0-9]+)\ue002")
        self._tokenizer, self._plain_tokenizer = tokenizer, plain_tokenizer

    def text(self, text: str) -> list[int]:
        """Token ids of a text.

        Raises:
            TypeError: it has half a character (a lone surrogate).
        """
        return next(self._pieces(text))

    def encode_rendered(
        self, render: Callable[[Sequence[str]], str], texts: Sequence[str]
    ) -> list[int]:
        """Token ids of `render(texts)`. What `render` writes itself may be a mark; `texts` are
        text. If one of them has the name of a mark, `render` sees another text in its place, so
        that it finds no name either.

        Raises:
            TypeError: a text has half a character (a lone surrogate).
        """
        direct_ids, all_marks = self._encode(render(texts))
        masked_text = render([_hidden(text, self._stand_in(n)) for n, text in enumerate(texts)])
        _, marks = self._encode(masked_text)
        # Two texts side by side can have a name together.
        extra_marks = Counter(mark.token for mark in all_marks) - Counter(
            mark.token for mark in marks
        )
        if not extra_marks and not any(self._encode(text)[1] for text in texts):
            return direct_ids
        contents = [text.strip() for text in texts]
        borders = [0, *(place for mark in marks for place in mark[1:]), len(masked_text)]
        parts = [
            self._stand_ins.sub(lambda match: contents[int(match[1])], masked_text[begin:end])
            for begin, end in zip(borders[::2], borders[1::2], strict=True)
        ]
        # In one go: some tokenizers treat the beginning of a text in another way than the rest.
        pieces = self._pieces(self._border.join(parts))
        ids = next(pieces)
        for mark, piece in zip(marks, pieces, strict=True):
            ids += [mark.token, *piece]
        return ids

    def _encode(self, text: str) -> tuple[list[int], list[_Mark]]:
        """The ids of a text as the tokenizer encodes it, and the marks that it finds there."""
        encoding = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids: list[int] = encoding["input_ids"]
        places = zip(ids, encoding["offset_mapping"], strict=True)
        marks = [_Mark(token, *place) for token, place in places if token in self._marks]
        return ids, [mark for mark in marks if self._is_name(mark, text)]

    def _pieces(self, text: str) -> Iterator[list[int]]:
        """The ids of what stands between borders, without marks."""
        encoding = self._plain_tokenizer.encode(text, add_special_tokens=False)
        piece: list[int] = []
        for token, place in zip(encoding.ids, encoding.offsets, strict=True):
            if token == self._border_id:
                yield piece
                piece = []
            elif token in self._marks and self._is_name(_Mark(token, *place), text):
                # The model itself knows the name, as a Unigram does.
                name = str(self._plain_tokenizer.id_to_token(token))
                piece += [
                    part.id
                    for letter in name
                    for part in self._plain_tokenizer.model.tokenize(letter)
                ]
            else:
                piece.append(token)
        yield piece

    def _is_name(self, mark: _Mark, text: str) -> bool:
        """Check that a mark was found for its name, and not for characters that the model does not
        know."""
        names = [text[mark.begin : mark.end].strip(), self._marks[mark.token].strip()]
        if self._plain_tokenizer.normalizer is not None and names[0] != names[1]:
            names = [self._plain_tokenizer.normalizer.normalize_str(name) for name in names]
        return names[0] == names[1]


class _Mark(NamedTuple):
    """An id of a mark, with the characters that it stands for."""

    token: int
    begin: int
    end: int


def _hidden(text: str, stand_in: str) -> str:
    """`stand_in` with the white space around `text`, which templates often strip."""
    core = text.strip()
    return text.replace(core, stand_in) if core else text
