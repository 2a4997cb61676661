"""docs/settings.md says what the settings' model says."""

from __future__ import annotations

from builders import ROOT
from settings_page import settings_page

from swarm_node.config import settings_keys


def test_the_page_is_what_the_model_says_now() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == settings_page(), "run `make settings-page`"
    assert [key for key, _ in settings_keys() if f"| `{key}` |" not in written] == []
