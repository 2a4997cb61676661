"""The live views of a terminal: `join` and `top`."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import time
import tty
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from swarm_node.cli.views.peers_view import peers_view
from swarm_node.cli.views.samples_view import samples_view
from swarm_node.cli.views.status_view import course, figures_view, findings_view
from swarm_node.cli.views.views import plain, span
from swarm_node.node.metrics.history import figures
from swarm_node.node.metrics.snapshot import Ended, Snapshot
from swarm_node.node.preflight.first_lines import Line
from swarm_node.node.start.progress import NodeProgress, end_text
from swarm_node.p2p.wire.identity import short_id

_REFRESH_SECONDS = 1.0
_KEYS = "\\[q]uit \\[p]eers \\[s]amples"


def live_screen(log_format: str = "auto") -> NodeProgress | None:
    """A screen that draws, if `log_format` lets it and stderr is a terminal that can be drawn
    on."""
    console = Console(stderr=True, highlight=False)
    can_draw = log_format == "auto" and console.is_terminal and not console.is_dumb_terminal
    return LiveScreen(console) if can_draw else None


class LiveScreen(NodeProgress):
    """Draws the steps of the start with a tick each, then the node. Log lines go above."""

    draws = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._current_step: tuple[str, float] | None = None
        self._starting = Live(get_renderable=self._step, console=console, transient=True)
        self._display = Live(console=console, auto_refresh=False, transient=True)
        self._pages = Pages()
        self._exit_stack = ExitStack()

    def __enter__(self) -> None:
        self._starting.start()

    def __exit__(self, *_: object) -> None:
        self._starting.stop()
        self._exit_stack.close()

    def step(self, name: str) -> None:
        self.show_complete()
        self._current_step = name, time.monotonic()

    def tell(self, lines: Sequence[Line]) -> None:
        if lines:
            self._console.print(render_start(self.naming_home(lines)))

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        snapshot: Callable[[], Snapshot],
        stop: Callable[[], None],
    ) -> None:
        self._exit_stack.enter_context(single_keys(loop, lambda key: on_key(key)))

        def on_key(key: str) -> None:
            if key == "q":
                stop()
            self._pages.turn(key)
            draw()

        def draw() -> None:
            shot = snapshot()
            if shot.state != "starting":
                self.show_complete()
                self._starting.stop()
                self._display.start()
                self._display.update(self._pages.render(shot), refresh=True)

        def again() -> None:
            draw()
            timer[0] = loop.call_later(_REFRESH_SECONDS, again)

        timer = [loop.call_soon(again)]
        self._exit_stack.callback(lambda: timer[0].cancel())
        self._exit_stack.callback(self._display.stop)

    def detach(self) -> None:
        self._exit_stack.close()

    def show_end(self, end: Ended) -> None:
        self._exit_stack.close()
        self._console.print(f"stopped: {end_text(end, self.home)}")

    def show_complete(self) -> None:
        if self._current_step is not None:
            (name, start_time), self._current_step = self._current_step, None
            self._console.print(f"[green]✓[/] {name} [dim]{time.monotonic() - start_time:.1f} s[/]")

    def _step(self) -> RenderableType:
        if self._current_step is None:
            return ""
        name, start_time = self._current_step
        return Spinner("dots", f"{name}… {time.monotonic() - start_time:.0f} s")


class Pages:
    """The page that a live view shows."""

    def __init__(self) -> None:
        self._page = ""

    def turn(self, key: str) -> None:
        """Take in a key. The key of a page shows it; the same key again, or any other, goes
        back."""
        self._page = key if key in ("p", "s") and key != self._page else ""

    def render(self, shot: Snapshot) -> RenderableType:
        """The page."""
        if self._page == "p":
            return Group(head(shot), peers_view(shot, groups=True))
        if self._page == "s":
            return Group(head(shot), samples_view(shot.examples, shot.peers))
        return node_view(shot)


def head(shot: Snapshot) -> RenderableType:
    """One line that names the node, and the keys."""
    location = shot.addresses[0].partition("/p2p/")[0] if shot.addresses else shot.state
    name = shot.membership.name if shot.membership is not None else ""
    words = (shot.swarm, shot.model, f"{name} {short_id(shot.peer_id)}".strip(), location)
    text = " · ".join((*map(plain, words), f"up {span(shot.seconds)}"))
    return Text.from_markup(f"[bold]{text}[/]  [dim]{_KEYS}[/]")


def node_view(shot: Snapshot) -> RenderableType:
    """A node in a few lines: its name, its health and its metrics."""
    rows = list(course(shot))
    if last := [
        figure.live_format.format(value)
        for _, figure, value in figures(shot.last_step)
        if figure.live_format
    ]:
        rows.append(("last step", ", ".join(last)))
    return Group(head(shot), findings_view(shot.findings), figures_view(rows))


def render_start(lines: Sequence[Line]) -> RenderableType:
    """Lines about the start, in two columns."""
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(overflow="fold")
    for line in lines:
        colour = "yellow" if line.warning else ""
        event = Text(f"{'! ' * line.warning + line.event:10}", style=colour or "bold")
        table.add_row(event, Text(line.text, style=colour))
    return table


@contextmanager
def single_keys(loop: asyncio.AbstractEventLoop, on_key: Callable[[str], None]) -> Iterator[None]:
    """Gives each key that is typed to `on_key`, and shows none; Ctrl-C still interrupts. Without a
    terminal there are no keys."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    attributes = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def read_typed_keys() -> None:
        try:
            key = os.read(descriptor, 16)
        except OSError:  # the terminal is gone
            key = b""
        if key:
            on_key(key.decode("ascii", "ignore"))
        else:
            loop.remove_reader(descriptor)

    loop.add_reader(descriptor, read_typed_keys)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)


async def watch(
    console: Console, poll: Callable[[], Awaitable[Snapshot]], seconds: float = _REFRESH_SECONDS
) -> None:
    """Draw a node until "q": `poll` gives its snapshot."""
    loop, pages, stop, key = asyncio.get_running_loop(), Pages(), asyncio.Event(), asyncio.Event()

    def on_key(character: str) -> None:
        if character == "q":
            stop.set()
        pages.turn(character)
        key.set()

    with Live(console=console, auto_refresh=False, screen=True) as live, single_keys(loop, on_key):
        while not stop.is_set():
            live.update(pages.render(await poll()), refresh=True)
            key.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(key.wait(), seconds)
