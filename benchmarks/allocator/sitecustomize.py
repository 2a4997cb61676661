"""Writes what torch's CUDA allocator holds in this process, for the benchmark that started it.

A folder to put first on PYTHONPATH: Python imports this module at its start. Where ALLOCATORS names
a folder, a thread writes `PID.json` there every half second once torch uses CUDA: the most bytes
that tensors took and that the allocator reserved, and how often it gave memory back to go on.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

_SECONDS = 0.5


def _watch(file: Path) -> None:
    while True:
        time.sleep(_SECONDS)
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if not getattr(cuda, "is_initialized", bool)():  # torch may be being imported
            continue
        memory_stats = cuda.memory_stats()
        memory_record = {
            "command": sys.orig_argv[1:],
            "allocated_peak": memory_stats.get("allocated_bytes.all.peak", 0),
            "reserved_peak": memory_stats.get("reserved_bytes.all.peak", 0),
            "retries": memory_stats.get("num_alloc_retries", 0),
        }
        part = file.with_suffix(".part")
        part.write_text(json.dumps(memory_record))
        part.rename(file)


if folder := os.environ.get("ALLOCATORS"):
    place = Path(folder) / f"{os.getpid()}.json"
    threading.Thread(target=_watch, args=[place], daemon=True).start()
