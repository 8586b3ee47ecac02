"""What the documents say to install can be installed: from a clone, with extras that there are."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.docs.examples import REPOSITORY

PAGES = sorted(
    str(path.relative_to(REPOSITORY)) for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
)
_INSTALLED = re.compile(r"pip install '?([^\s'`]+)")
_FROM_CLONE = re.compile(r"\.(?:\[([\w,-]+)\])?")


def wrong_names(text: str, extras: set[str]) -> list[str]:
    """What is installed by a name that no index has, or with an extra that we do not have."""
    wrong = []
    for name in _INSTALLED.findall(text):
        clone = _FROM_CLONE.fullmatch(name)
        wanted = set(clone[1].split(",")) if clone is not None and clone[1] else set()
        if (clone is None and name.startswith("klamm")) or not wanted <= extras:
            wrong.append(name)
    return wrong


def extras_of_the_package() -> set[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str) -> None:
    assert wrong_names((REPOSITORY / page).read_text(), extras_of_the_package()) == []


def test_a_wrong_name_is_found() -> None:
    text = "pip install klamm\n`pip install 'klamm[arrow]'`\npip install '.[arow]'\npip install '.[arrow]'"
    assert wrong_names(text, {"arrow"}) == ["klamm", "klamm[arrow]", ".[arow]"]
