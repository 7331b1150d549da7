"""Tests of the error classes: texts, fields, pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

from pyspark_kafka.errors import PysparkKafkaError, reason_of, sentence
from pyspark_kafka.pages import subclasses

CLASSES = [PysparkKafkaError, *subclasses(PysparkKafkaError)]
FIELDS = {
    "option": "startingOffsets",
    "column": "value",
    "topic": "t",
    "partition": 3,
    "offset": 17,
    "group_id": "g",
    "transactional_id": "x",
}


@pytest.mark.parametrize("error_class", CLASSES)
def test_every_class_has_a_docstring_and_a_remedy(error_class: type[PysparkKafkaError]) -> None:
    assert error_class.__name__.endswith("Error")
    assert "__doc__" in vars(error_class)
    for text in (inspect.cleandoc(error_class.__doc__ or ""), error_class.remedy):
        assert text.endswith(".")
        assert text[0].isupper()


@pytest.mark.parametrize("error_class", CLASSES)
@pytest.mark.parametrize("advice", [None, "", "Do this."])
def test_errors_can_be_pickled(error_class: type[PysparkKafkaError], advice: str | None) -> None:
    error = error_class("It failed.", advice=advice, **FIELDS)  # type: ignore[arg-type]
    error.add_note("a note")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is error_class
    assert vars(copy) == vars(error)
    assert {name: getattr(copy, name) for name in FIELDS} == FIELDS
    assert (str(copy), copy.__notes__) == (str(error), ["a note"])


def test_text_is_what_and_advice() -> None:
    assert str(PysparkKafkaError("It failed.", advice="Do this.")) == "It failed. Do this."
    assert str(PysparkKafkaError("It failed.", advice="")) == "It failed."
    assert str(PysparkKafkaError("It failed.")) == f"It failed. {PysparkKafkaError.remedy}"


def test_parts_of_texts() -> None:
    assert reason_of(PysparkKafkaError("It failed.", advice="Do this.")) == "It failed"
    assert reason_of(OSError("no route")) == "no route"
    assert sentence("no route") == "No route"
