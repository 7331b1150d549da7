"""Tests that message classes match kio's schemas.

A misspelt field would be dropped without an error.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import Any, get_type_hints

import pytest
from kio.index import load_request_schema, load_response_schema

import broker_ref.api
from broker_ref.api import APIS
from broker_ref.api.contract import Api
from broker_ref.protocol.schema import fields_of, struct_of

MODULES = {
    module.API.key: module
    for module in (
        importlib.import_module(f"broker_ref.api.{found.name}")
        for found in pkgutil.iter_modules(broker_ref.api.__path__)
        if found.name.startswith("k")
    )
}


def response_message(api: Api[Any]) -> type[Any]:
    """Return the response class in the file of an API, by naming convention."""
    name = api.request.__name__.removesuffix("Request") + "Response"
    message: type[Any] = getattr(MODULES[api.key], name)
    return message


Places = dict[type[Any], list[type[Any]]]


def places(message: type[Any], schemas: list[type[Any]], found: Places) -> Places:
    """Collect the message classes in a message with their structs in all versions."""
    found.setdefault(message, []).extend(schemas)
    hints = get_type_hints(message)
    for field in dataclasses.fields(message):
        structs = [
            described.struct
            for schema in schemas
            for described in fields_of(schema)
            if described.message_name == field.name and described.struct is not None
        ]
        if structs:
            places(struct_of(hints[field.name]), structs, found)
    return found


def undescribed(message: type[Any], schemas: list[type[Any]]) -> list[str]:
    """Return the fields of a message, including nested ones, that no version has."""
    return [
        f"{part.__name__}.{field.name}"
        for part, structs in places(message, schemas, {}).items()
        for field in dataclasses.fields(part)
        if not any(
            described.message_name == field.name
            for struct in structs
            for described in fields_of(struct)
        )
    ]


def test_every_handler_file_is_served() -> None:
    assert APIS.keys() == MODULES.keys()
    for key, module in MODULES.items():
        assert module.__name__.rpartition(".")[2].startswith(f"k{key:02}_")


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.request.__name__)
def test_message_fields_exist_in_kafkas_schema(api: Api[Any]) -> None:
    requests = [load_request_schema(api.key, version) for version in api.versions]
    responses: list[type[Any]] = [
        load_response_schema(api.key, version) for version in api.versions
    ]
    assert undescribed(api.request, list(requests)) == []
    assert undescribed(response_message(api), responses) == []
