"""What a file is that has no rows, by its first bytes."""

from __future__ import annotations

import gzip

import pytest

from swarm_node.environments.lists.formats import plain, refused_kind

ROWS = '{"question": "Wie viel?", "answer": "7"}\n{"question": "é", "answer": "8"}\n'


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (ROWS.encode("utf-16"), "UTF-16"),
        (ROWS.encode("utf-16-le"), "UTF-16LE"),
        (ROWS.encode("utf-16-be"), "UTF-16BE"),
        (ROWS.encode("utf-32"), "UTF-32"),
        (ROWS.encode("utf-32-le"), "UTF-32"),
        (ROWS.encode("utf-32-be"), "UTF-32"),
        (b'\n [{"question": "a"}, {"question": "b"}]', "JSON array"),
        (b'{\n  "data": [\n', "several lines"),
        (b'{"data": [\n{"question": "a"},\n', "several lines"),
        ('{"question": "中国一共有多少个省", "answer": "七"}\n'.encode("utf-16-le"), "UTF-16"),
        (b"question,answer\na,1\n", "CSV"),
        (b"question\tanswer\na\t1\n", "CSV"),
        (b"PAR1\x15\x04\x15", "Parquet"),
        (b"ARROW1\0\0", "Arrow"),
        (b"\n<!DOCTYPE html>\n<html>", "HTML"),
        (b'<?xml version="1.0"?>', "HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
        (b"PK\x03\x04\x14\0", "ZIP"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\0\0\x04", "xz"),
        (b"\x28\xb5\x2f\xfd\x24", "Zstandard"),
        (plain(gzip.compress(gzip.compress(b"{}")), 1000), "gzip within gzip"),
        (b"\x80\x04\x95\x11\0\0\0", "binary"),
        (b"", "empty"),
        (b" \r\n\n", "empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_json_lines_is_named(data: bytes, what: str) -> None:
    kind = refused_kind(data)
    assert kind is not None
    assert what in kind.description


def test_json_lines_pass_and_a_wrong_line_is_left_to_the_reader() -> None:
    for text in (ROWS, "\r\n" + ROWS, " " * 5000 + ROWS, "3\n", '"text"\n', "{'question': 1}\n"):
        assert refused_kind(text.encode()) is None, text


def test_gzip_is_unpacked_by_its_bytes_within_the_limit() -> None:
    rows = ROWS.encode()
    assert plain(rows, 0) == rows  # the reader has bounded it
    assert plain(b"\xef\xbb\xbf" + rows, 0) == rows
    parts = gzip.compress(rows) + gzip.compress(b"") + gzip.compress(rows)
    assert plain(parts, 2 * len(rows)) == rows + rows
    with pytest.raises(OverflowError):
        plain(parts, 2 * len(rows) - 1)
    for damaged in (parts[:-3], parts[:20], b"\x1f\x8b", parts + b"more"):
        with pytest.raises(ValueError, match="damaged gzip"):
            plain(damaged, 1000)
