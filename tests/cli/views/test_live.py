"""What `join` and `top` draw on a terminal."""

from __future__ import annotations

import asyncio
import io
import os
import re
import termios
from pathlib import Path

import pytest
from builders import quiet_snapshot
from rich.console import Console
from shown_cases import printed

from swarm_node.cli.views import live
from swarm_node.cli.views.live import LiveScreen, Pages, live_screen, single_keys
from swarm_node.node.metrics.health import findings
from swarm_node.node.metrics.history import UpdateRow
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.node.metrics.snapshot import Ended, EvalPoint, MembershipRow, Snapshot


def node(**changes: object) -> Snapshot:
    fields = {
        "swarm": "team a",
        "addresses": ["/ip4/192.0.2.2/tcp/58175/p2p/12D3KooW"],
        "membership": MembershipRow("laptop", "boss", 0, 2_000_000_000, "member"),
        "evals": [EvalPoint(float(n), n, n / 10, n / 10, None, {}) for n in range(10)],
        "last_step": UpdateRow(
            loss=0.0007,
            mean_reward=0.86,
            mismatch_kl=8e-5,
            entropy=1.3,
            clip_ratio=0.0,
            grad_norm=1.0,
            tokens=100,
            seconds=0.1,
        ),
        "examples": [SampleRow("gcd", "gcd of 12\n\nand 18?", "6", 1.0, 7)],
        **changes,
    }
    shot = quiet_snapshot(**fields)
    return quiet_snapshot(**fields, findings=findings(shot))


def test_keys_turn_pages_and_turn_back() -> None:
    pages = Pages()
    first = printed(pages.render(node()), 100)
    for key, expected in (("p", "no peers yet"), ("s", "gcd of 12 ⏎ and 18?")):
        pages.turn(key)
        assert expected in printed(pages.render(node()), 100)
        pages.turn(key)
        assert printed(pages.render(node()), 100) == first
    pages.turn("p")
    pages.turn("x")
    assert printed(pages.render(node()), 100) == first


def test_a_start_ticks_its_steps_then_draws_then_says_how_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "_REFRESH_SECONDS", 0.05)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    screen = LiveScreen(console)
    stopped: list[bool] = []

    async def main() -> None:
        states, asked = ["running", "running", "starting"], asyncio.Event()

        def snapshot() -> Snapshot:
            state = states.pop()
            if not states:  # the one before was drawn
                asked.set()
            return node(state=state)

        screen.attach(asyncio.get_running_loop(), snapshot, lambda: stopped.append(True))
        async with asyncio.timeout(60):
            await asked.wait()
        screen.detach()

    with screen:
        screen.step("home")
        screen.step("trainer")
        screen.show_complete()
        assert "✓ trainer" in console.file.getvalue()
        asyncio.run(main())
        screen.show_end(Ended(6384, 0.8, True))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    places = [
        text.index(said)
        for said in (
            "✓ home",
            "✓ trainer",
            "● ",
            "stopped: step 6,384 finished, checkpoint stored (0.8 s)",
        )
    ]
    assert places == sorted(places)
    assert stopped == []


def test_nothing_is_drawn_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert live_screen() is None
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert live_screen() is None


def test_keys_are_read_singly_and_the_terminal_is_as_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)

    async def main(terminal: io.TextIOWrapper) -> list[str]:
        monkeypatch.setattr("sys.stdin", terminal)
        pressed: list[str] = []
        heard = asyncio.Event()

        def press(key: str) -> None:
            pressed.append(key)
            heard.set()

        with single_keys(asyncio.get_running_loop(), press):
            os.write(ours, b"p")  # no line end
            async with asyncio.timeout(60):
                await heard.wait()
        return pressed

    with os.fdopen(theirs, "r") as terminal:
        assert asyncio.run(main(terminal)) == ["p"]
        assert termios.tcgetattr(terminal.fileno()) == before
    os.close(ours)
