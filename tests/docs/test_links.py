"""Links between the documents lead somewhere: to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.examples import REPOSITORY

PAGES = [
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "docs").rglob("*.md"),
    *(REPOSITORY / "tests").rglob("*.md"),
]
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def broken_links(page: Path, text: str) -> Iterator[str]:
    for path, heading in _LINK.findall(_CODE.sub("", text)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield path
        elif heading and heading not in anchors(text if target == page else target.read_text()):
            yield f"{path}#{heading}"


def anchors(text: str) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, page.read_text())) == []


def test_broken_links_are_found() -> None:
    text = (
        "# A page\n[here](#a-page) [there](README.md) [gone](gone.md) [no](#nothing) [web](https://x.org/y)\n"
    )
    assert list(broken_links(REPOSITORY / "CONTRIBUTING.md", text)) == ["gone.md", "#nothing"]
