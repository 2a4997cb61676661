"""Frames: bytes in, bytes out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.process.frames import HEAD, MAX_BODY_BYTES, make_frame, read_head, take_frame

FRAMES = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=40)), max_size=6)


@given(FRAMES, st.integers(1, 30))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[tuple[int, bytes]], size: int
) -> None:
    stream = b"".join(make_frame(number, body) for number, body in frames)
    buffer, taken = bytearray(), []
    for start in range(0, len(stream), size):
        buffer += stream[start : start + size]
        while (frame := take_frame(buffer)) is not None:
            taken.append(frame)
    assert taken == frames
    assert not buffer


def test_a_length_over_the_limit_is_refused_before_the_body_comes() -> None:
    head = HEAD.pack(MAX_BODY_BYTES + 1, 7)
    with pytest.raises(ValueError, match="the limit"):
        take_frame(bytearray(head))
    with pytest.raises(ValueError, match="limit of 9"):
        read_head(HEAD.pack(10, 7), max_bytes=9)
    assert read_head(HEAD.pack(9, 7), max_bytes=9) == (9, 7)
