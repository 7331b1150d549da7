"""docs/mechanisms.md: every link resolves, every section names code and tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mechanisms.md"
_LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)\)")
_SECTION = re.compile(r"^### (.+)\n((?:(?!##).*\n)*)", re.MULTILINE)


def sections() -> list[tuple[str, str]]:
    """Return (title, text) of every mechanism."""
    return _SECTION.findall(PAGE.read_text())


def test_every_link_resolves() -> None:
    links = _LINK.findall(PAGE.read_text())
    assert links
    missing = [link for link in links if not (PAGE.parent / link).exists()]
    assert missing == []


def test_no_mechanism_is_documented_twice() -> None:
    titles = [title for title, _ in sections()]
    assert len(titles) > 10
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize(("title", "text"), sections(), ids=[title for title, _ in sections()])
def test_every_mechanism_names_code_and_tests(title: str, text: str) -> None:
    links = _LINK.findall(text)
    assert any("/broker_ref/" in link for link in links), title
    assert any("/tests/conformance/" in link for link in links), title
