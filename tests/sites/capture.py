"""What passes an interface, as a pcap file: every packet, whole."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from pathlib import Path

_MAGIC, _ETHERNET, _LARGEST = 0xA1B2C3D4, 1, 262144
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
#: As SO_RCVBUF, beyond the limit that root has set for others.
_SO_RCVBUFFORCE = 33
_BUFFER = 64 * 2**20


class Capture:
    """Writes what the packet socket `packets` gets to the file `path`, while the context lasts.

    A packet that was lost here is an error at its end: a test looks for what must not be there.
    """

    def __init__(self, packets: socket.socket, path: Path) -> None:
        self.path = path
        self._packets = packets
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._take)

    def __enter__(self) -> Capture:
        self._packets.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        self._packets.bind(("eth0", 0))
        self._packets.setblocking(False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        counts = self._packets.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self._packets.close()
        lost = struct.unpack("II", counts)[1]
        if lost:
            raise RuntimeError(f"{lost} packets are not in {self.path}")

    def _take(self) -> None:
        with self.path.open("wb") as file:
            file.write(struct.pack("IHHiIII", _MAGIC, 2, 4, 0, 0, _LARGEST, _ETHERNET))
            while select.select([self._packets], [], [], 0.05)[0] or not self._ended.is_set():
                try:
                    packet = self._packets.recv(_LARGEST)
                except BlockingIOError:
                    continue
                seconds, rest = divmod(time.time_ns(), 10**9)
                file.write(struct.pack("IIII", seconds, rest // 1000, len(packet), len(packet)))
                file.write(packet)


def tcp_streams(path: Path) -> dict[tuple[str, int, str, int], bytes]:
    """The bytes of every TCP connection and direction in a pcap file, by (address, port) of sender
    and receiver, in their order, so that no search misses what two packets share."""
    data = path.read_bytes()
    pieces: dict[tuple[str, int, str, int], dict[int, bytes]] = {}
    at = 24
    while at < len(data):
        (size,) = struct.unpack_from("I", data, at + 8)
        frame = data[at + 16 : at + 16 + size]
        at += 16 + size
        if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
            continue
        (total,) = struct.unpack_from("!H", frame, 16)
        tcp = frame[14 + (frame[14] & 15) * 4 : 14 + total]
        sender, receiver, sequence = struct.unpack_from("!HHI", tcp)
        payload = tcp[(tcp[12] >> 4) * 4 :]
        source, target = (socket.inet_ntoa(frame[n : n + 4]) for n in (26, 30))
        if payload:
            pieces.setdefault((source, sender, target, receiver), {})[sequence] = payload
    return {key: _joined(parts) for key, parts in pieces.items()}


def _joined(parts: dict[int, bytes]) -> bytes:
    """Pieces by sequence number, which may begin anywhere and wrap, without what was sent twice."""
    first = next(iter(parts))
    whole, end = bytearray(), 0
    for sequence, payload in sorted(
        ((number - first + 2**31) % 2**32 - 2**31, payload) for number, payload in parts.items()
    ):
        if not whole:
            end = sequence
        new = payload[max(0, end - sequence) :]
        whole += new
        end = max(end, sequence + len(payload))
    return bytes(whole)
