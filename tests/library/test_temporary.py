"""A temporary home goes with the process that made it, and with no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from swarm_node.library.temporary import TemporaryHome


def test_a_cleaned_home_is_gone_and_a_second_time_does_nothing() -> None:
    home = TemporaryHome()
    (home.path / "file").write_text("x")
    assert home.path.stat().st_mode & 0o777 == 0o700
    home.cleanup()
    home.cleanup()
    assert not home.path.exists()


def test_a_fork_deletes_nothing_however_it_ends() -> None:
    script = """if True:
        import os, sys
        from swarm_node.library.temporary import TemporaryHome
        home = TemporaryHome()
        for end in ("cleanup", "exit"):
            if not (child := os.fork()):
                if end == "cleanup":
                    home.cleanup()
                    os._exit(0)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert home.path.exists(), end
        print(home.path)
    """
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not Path(done.stdout.strip()).exists()
