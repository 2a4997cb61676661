"""What a file of rows is, by its first bytes: JSON Lines in UTF-8, or something else that people
have under that name. Pure.

`rows.py` calls it on every file before anything is parsed, so that a refusal names what the file is
and how to make rows of it, and not the first byte that JSON does not allow.
"""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Final, NamedTuple

_BOM: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
#: Bytes that are looked at. A file tells what it is well before.
_HEAD_BYTES: Final = 4096
#: Null bytes at every other place that make a text of UTF-16: {"" and a letter.
_LEAST_NULLS: Final = 4


class Kind(NamedTuple):
    """A kind of file that is refused: what people call it, and what to do with it."""

    description: str
    remedy: str


_UNPACK: Final = "unpack it"
_EXPORTED: Final = (
    "write one JSON object a line, as pandas does: `to_json(FILE, orient='records', lines=True)`"
)
_UTF_16, _UTF_16LE, _UTF_16BE = (
    Kind(f"in {name}", f"save it as UTF-8: `iconv -f {name} -t UTF-8 FILE > rows.jsonl`")
    for name in ("UTF-16", "UTF-16LE", "UTF-16BE")
)
_UTF_32: Final = Kind("in UTF-32", "save it as UTF-8: `iconv -f UTF-32 -t UTF-8 FILE > rows.jsonl`")
_BINARY: Final = Kind("a binary file", "give JSON Lines: one JSON object a line, in UTF-8")
_ARRAY: Final = Kind(
    "a JSON array", "write one object a line: `jq -c '.[]' FILE > rows.jsonl` does for objects"
)
_SPREAD: Final = Kind(
    "a JSON object over several lines",
    "write one object a line: `jq -c . FILE > rows.jsonl`, or `jq -c '.KEY[]'` for a list in it",
)
_HTML: Final = Kind(
    "a page of HTML or XML",
    "the address that it came from shows the file and is not the file: take the download link",
)
_TABLE: Final = Kind("CSV or another table of text", _EXPORTED)
_EMPTY: Final = Kind("empty", "give at least two rows; a download may have failed")

#: First bytes that name a kind, the longer of two that begin alike first.
SIGNATURES: Final[tuple[tuple[bytes, Kind], ...]] = (
    (b"\xff\xfe\0\0", _UTF_32),
    (b"\0\0\xfe\xff", _UTF_32),
    (b"\xff\xfe", _UTF_16),
    (b"\xfe\xff", _UTF_16),
    (b"PAR1", Kind("Parquet", _EXPORTED)),
    (b"ARROW1", Kind("Arrow", _EXPORTED)),
    (
        b"version https://git-lfs.github.com/spec/",
        Kind("a pointer of Git LFS and not the file", "run `git lfs pull` where it came from"),
    ),
    (_GZIP, Kind("gzip within gzip", "unpack it once")),
    (b"PK\x03\x04", Kind("a ZIP archive or a spreadsheet", f"{_UNPACK}, or {_EXPORTED}")),
    (b"BZh", Kind("compressed with bzip2", _UNPACK)),
    (b"\xfd7zXZ\0", Kind("compressed with xz", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", Kind("compressed with Zstandard", _UNPACK)),
    (b"7z\xbc\xaf\x27\x1c", Kind("a 7z archive", _UNPACK)),
    (b"%PDF-", Kind("a PDF", "give JSON Lines: one JSON object a line, in UTF-8")),
    (b"SQLite format 3\0", Kind("an SQLite database", _EXPORTED)),
)


def refused_kind(data: bytes) -> Kind | None:
    """What a file is that begins with `data`, if that is not JSON Lines in UTF-8; else None. `data`
    is what remains after `plain`, and 4 KiB of it are enough. A row that is no JSON object is left
    to the reader, who knows its line."""
    head = data[:_HEAD_BYTES]
    for signature, kind in SIGNATURES:
        if head.startswith(signature):
            return kind
    if b"\0" in head:
        return _with_nulls(head)
    first, newline, _ = head.lstrip().partition(b"\n")
    if not first:
        return None if data.strip() else _EMPTY
    if first.startswith(b"<"):
        return _HTML
    if first.startswith(b"["):
        return _ARRAY
    if first.startswith(b"{"):
        return _SPREAD if newline and not first.rstrip().endswith(b"}") else None
    return _TABLE if b"," in first or b"\t" in first or b";" in first else None


def _with_nulls(head: bytes) -> Kind:
    """The kind of a file with null bytes, which UTF-8 has none of in practice. In UTF-16 the high
    bytes of braces, quotes and letters are null, and so hardly any of the other bytes are."""
    aligned_head = head[: len(head) & ~3]
    columns = [aligned_head[place::4] for place in range(4)]
    empty = [bool(column) and not any(column) for column in columns]
    if empty in ([False, True, True, True], [True, True, True, False]):
        return _UTF_32
    evens, odds = head[::2].count(0), head[1::2].count(0)
    if max(evens, odds) < _LEAST_NULLS or max(evens, odds) < 8 * min(evens, odds):
        return _BINARY
    # Without a mark iconv would guess the order of the bytes.
    return _UTF_16BE if evens > odds else _UTF_16LE


def plain(data: bytes, max_bytes: int) -> bytes:
    """The bytes of a file without compression by gzip and without UTF-8's mark, so that they are
    the same bytes for every member, however the file is kept.

    Raises:
        OverflowError: more than `max_bytes` bytes come out of it; no more than that are ever held.
        ValueError: it is damaged gzip.
    """
    if data.startswith(_GZIP):
        data = _unpack(data, max_bytes)
    return data.removeprefix(_BOM)


def _unpack(data: bytes, max_bytes: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            contents = file.read(max_bytes + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError("it is damaged gzip, or its end is missing: fetch it again") from error
    if len(contents) > max_bytes:
        raise OverflowError
    return contents
