"""Tests that the controller's message classes match kio's schemas in all served versions."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, get_args, get_type_hints

import pytest
from kio.index import load_request_schema, load_response_schema

import broker_ref.controller_api
from broker_ref.api.contract import Api, Wait
from broker_ref.controller_api import APIS, FORWARDED
from tests.broker_ref.protocol.test_messages import undescribed

MODULES = {
    int(found.name[1:3]): found.name
    for found in pkgutil.iter_modules(broker_ref.controller_api.__path__)
    if found.name.startswith("k")
}


def response_message(api: Api[Any]) -> type[Any]:
    """Return the response class of an API, from the return type of its handler."""
    returned = get_type_hints(api.handle)["return"]
    (message,) = [kind for kind in get_args(returned) or (returned,) if kind is not Wait]
    found: type[Any] = message
    return found


def test_every_handler_file_is_served() -> None:
    assert MODULES.keys() == APIS.keys()
    for key, name in MODULES.items():
        assert importlib.import_module(f"broker_ref.controller_api.{name}").API is APIS[key]
    assert {19, 20, 30, 31, 33, 37, 43, 44, 45, 46, 51, 57, 64} == FORWARDED


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.request.__name__)
def test_message_fields_exist_in_kafkas_schema(api: Api[Any]) -> None:
    requests = [load_request_schema(api.key, version) for version in api.versions]
    responses: list[type[Any]] = [
        load_response_schema(api.key, version) for version in api.versions
    ]
    assert undescribed(api.request, list(requests)) == []
    assert undescribed(response_message(api), responses) == []
