"""Tests of the parser of properties files. `java.util.Properties` returns the expected values."""

from __future__ import annotations

import pytest

from pyspark_kafka.options.java_properties import JavaPropertiesError, parse_java_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\r\nb: 2\rc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# a=1\n  ! b=2\n\n \t\f\n", {}),
        ("a = = b ", {"a": "= b "}),
        ("a=1\na=2", {"a": "2"}),
        ("a\nb=", {"a": "", "b": ""}),
        (r"a\ b\=\:c=d\=e\q\\", {"a b=:c": "d=eq\\"}),
        ("a=1,\\\n   2,\\\r\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# 2\n# 3", {"a": "1# 2"}),
        ("# comment \\\na=1", {"a": "1"}),
        ("a=1\\", {"a": "1"}),
        ("\\\n! comment\na=1", {"a": "1"}),
        ("a=1\\\n\n b=2", {"a": "1", "b": "2"}),
        (r"a=\t\n\r\f\u00fc\ud83d\ude00", {"a": "\t\n\r\fü😀"}),
        ("a=b\u2028c\x0bd\x85", {"a": "b\u2028c\x0bd\x85"}),
        ("=x\n:y", {"": "y"}),
    ],
)
def test_parse(text: str, expected: dict[str, str]) -> None:
    assert parse_java_properties(text) == expected


def test_malformed_escape() -> None:
    with pytest.raises(JavaPropertiesError) as raised:
        parse_java_properties("a=1\npassword=secret\\u12x4")
    assert raised.value.line == 2
    assert "secret" not in str(raised.value)
