"""Guards that another one doubles, so that no test can miss them, each with the reason."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {}
