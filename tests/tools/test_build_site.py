"""The site: what is copied, what a browser would fetch elsewhere, and that it has all pages."""

from __future__ import annotations

import re
from pathlib import Path

from build_site import PAGES, loaded_from_elsewhere, stage
from builders import ROOT


def test_a_page_is_copied_with_the_files_it_links_to(tmp_path: Path) -> None:
    root, work = tmp_path / "root", tmp_path / "work"
    (root / "docs").mkdir(parents=True)
    (root / "examples").mkdir()
    (root / "examples" / "a.toml").touch()
    text = (
        "[a](../examples/a.toml), [all](../examples), [b](b.md#b), [c](gone.md), [d](https://d.e)\n"
    )
    (root / "docs" / "a.md").write_text(text)
    stage(root, work, ["docs/a.md"])
    copied = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())
    assert copied == ["docs/a.md", "examples/a.toml"]
    # A broken link stays, for the builder to find.
    assert (work / "docs" / "a.md").read_text() == text.replace("[all](../examples)", "all")


def test_what_a_browser_would_fetch_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<link rel="canonical" href="https://a.b"><a href="https://c.d">c</a><img src="e.png">'
        '<script src="//f.g/h.js"></script><link rel="stylesheet" href="https://i.j/k.css">'
    )
    (tmp_path / "style.css").write_text("a{background:url(l.png)} b{src:url('https://m.n/o')}")
    assert loaded_from_elsewhere(tmp_path) == [
        "page.html: //f.g/h.js",
        "page.html: https://i.j/k.css",
        "style.css: https://m.n/o",
    ]


def test_the_menu_names_every_page_once() -> None:
    menu = (ROOT / ".ci" / "tools" / "mkdocs.yml").read_text()
    listed = re.findall(r": (\S+\.md)$", menu, re.MULTILINE)
    docs = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted([*PAGES, *docs])
