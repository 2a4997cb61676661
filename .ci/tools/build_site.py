"""The pages as a site in build/site: `make site`.

The pages are written for a reader of the repository and link to its files. So they are copied with
the files that they link to, at the same places; a broken link ends the build (mkdocs' strict mode).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
_LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?P<target>[^)#\s:]+)(?P<rest>#[^)]*)?\)")


def stage(root: Path, work: Path, pages: list[str]) -> None:
    """Copy `pages` and what they link to from `root` to `work`. A site has no page of a directory,
    so a link to one becomes its text."""
    for page in pages:
        source = root / page

        def linked(link: re.Match[str], beside: Path = source.parent) -> str:
            target = (beside / link["target"]).resolve()
            if target.is_dir():
                return link["text"][1:-1]
            if target.is_file() and target.suffix != ".md" and target.is_relative_to(root):
                copy = work / target.relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(target, copy)
            return link[0]

        copy = work / page
        copy.parent.mkdir(parents=True, exist_ok=True)
        # The highlighter takes a line of a console without a prompt for output.
        text = source.read_text().replace("```console\n", "```bash\n")
        copy.write_text(_LINK.sub(linked, text))


class Loads(HTMLParser):
    """Collects what a browser fetches for a page from another host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        fetched = given.get("src") if tag != "link" else given.get("href")
        if fetched and re.match(r"(https?:)?//", fetched) and given.get("rel") != "canonical":
            self.found.append(fetched)


def loaded_from_elsewhere(site: Path) -> list[str]:
    """URLs of other hosts from which pages and style sheets of a site load."""
    found = []
    for path in sorted(site.rglob("*.html")):
        loads = Loads()
        loads.feed(path.read_text())
        found += [f"{path.relative_to(site)}: {each}" for each in loads.found]
    for path in sorted(site.rglob("*.css")):
        urls = re.findall(r"url\(['\"]?((?:https?:)?//[^)'\"]+)", path.read_text())
        found += [f"{path.relative_to(site)}: {url}" for url in urls]
    return found


def main() -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    docs = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))]
    stage(ROOT, WORK / "pages", [*PAGES, *docs])
    shutil.copyfile(ROOT / ".ci" / "tools" / "mkdocs.yml", WORK / "mkdocs.yml")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", SITE],
        cwd=WORK,
        check=True,
    )
    if found := loaded_from_elsewhere(SITE):
        raise SystemExit("a reader's browser would ask other hosts:\n" + "\n".join(found))
    print(f"open {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
