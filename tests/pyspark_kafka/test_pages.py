"""Tests that the generated pages of the documentation are current."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafka.errors import PysparkKafkaError
from pyspark_kafka.options.table import OPTIONS
from pyspark_kafka.pages import PAGES, subclasses

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_current(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run: python -m pyspark_kafka.pages docs"


def test_every_option_has_one_row() -> None:
    page = PAGES["options.md"]()
    for option in OPTIONS:
        assert page.count(f"\n| `{option.name}` |") == 1


def test_every_error_has_one_row() -> None:
    page = PAGES["errors.md"]()
    for error in subclasses(PysparkKafkaError):
        assert page.count(f"\n| `{error.__name__}` |") == 1
