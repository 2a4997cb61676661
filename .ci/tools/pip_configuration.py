"""This machine's pip configuration, for a root that lacks it: pip.conf and its certificate.

    pip_configuration.py DIR

Writes DIR/pip.conf, which expects the certificate DIR/pip.crt as /run/pip.crt. Prints the local
directories with wheels or an index that it names, one a line: the root needs them where they are.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

_KEPT = {"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy"}


def main(directory: Path) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    lines, mounts = {}, set()
    for line in listed.stdout.splitlines():
        name, _, quoted = line.partition("=")
        key, value = name.rpartition(".")[2], " ".join(shlex.split(quoted))
        if key == "cert":
            (directory / "pip.crt").write_bytes(Path(value).read_bytes())
            lines[key] = "/run/pip.crt"
        elif key in _KEPT:
            lines[key] = value
            for word in value.split():
                if word.startswith("file://"):  # an index refers to files beside it
                    mounts.add(Path(word.removeprefix("file://")).parent)
                elif word.startswith("/"):
                    mounts.add(Path(word))
    (directory / "pip.conf").write_text(
        "\n".join(["[global]", *(f"{key} = {value}" for key, value in lines.items()), ""])
    )
    for path in sorted(mounts):
        if path.is_dir():
            print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
