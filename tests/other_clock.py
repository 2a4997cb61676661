"""`swarm-node` on a machine whose clock is some seconds ahead of the right time, or behind it.

other_clock.py SECONDS join …
"""

from __future__ import annotations

import sys
import time

_ahead, _right = float(sys.argv.pop(1)), time.time
time.time = lambda: _right() + _ahead

from swarm_node.cli.main import app  # noqa: E402 - what it imports keeps the clock

app(prog_name="swarm-node")
