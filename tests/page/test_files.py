"""The static files of both pages."""

from __future__ import annotations

import re

import pytest
from aiohttp import web

from swarm_node.page.files import file_response, files


@pytest.mark.parametrize("name", ["node", "swarm"])
def test_a_page_has_the_common_head_and_its_own_script(name: str) -> None:
    kind, content = files()[f"{name}.html"]
    text = content.decode()
    assert kind == "text/html"
    assert text.startswith("<!doctype html>")
    assert [text.count(part) for part in ("<head>", "</head>", "<body>", "</html>")] == [1] * 4
    named = re.findall(r'(?:href|src)="/static/([^"]+)"', text)
    assert f"{name}.js" in named
    assert set(named) <= set(files()), "each part of it is served"


def test_what_is_no_file_of_a_page_is_not_served() -> None:
    for name in ("head.html", "uPlot.LICENSE", "../files.py"):
        with pytest.raises(web.HTTPNotFound):
            file_response(name)
