"""Tests of Java's properties format."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_ref.security.properties import format_properties, parse_properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \\=:#!\n\t\ré😀"))


@given(st.dictionaries(TEXT, TEXT))
def test_formatted_properties_are_parsed_back(values: dict[str, str]) -> None:
    text = format_properties(values)
    assert text.isascii()
    assert parse_properties(text) == values


def test_the_forms_that_java_accepts() -> None:
    text = """\
# a comment
! another one

listeners = SASL_SSL://localhost:9092
node.id: 7
empty
  indented\tvalue \\
    continued
path=C:\\\\kafka\\u00e9
"""
    assert parse_properties(text) == {
        "listeners": "SASL_SSL://localhost:9092",
        "node.id": "7",
        "empty": "",
        "indented": "value continued",
        "path": "C:\\kafkaé",
    }
