"""Tests of FindCoordinator for one or several groups (KIP-699)."""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.groups import find_coordinator
from tests.conformance.wire import only, served

NO_SUCH_TYPE = 77


def test_every_version_returns_the_coordinator(
    raw: RawConnection, cluster: Cluster, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    broker_id = only(find_coordinator(raw, name).coordinators).node_id
    assert broker_id in cluster.broker_ids
    for version in served(raw, "find_coordinator"):
        response = find_coordinator(raw, name, version=version)
        found = only(response.coordinators) if version >= 4 else response
        assert found.error_code == ErrorCode.none, version
        assert found.node_id == broker_id, version
        assert f"{found.host}:{found.port}" == cluster.address(broker_id), version


def test_several_groups_in_one_find_coordinator(
    raw: RawConnection, unique_name: Callable[[], str]
) -> None:
    names = [unique_name() for _ in range(3)]
    each = [only(find_coordinator(raw, name).coordinators) for name in names]
    found = find_coordinator(raw, *names).coordinators
    assert {c.key: (c.error_code, c.node_id) for c in found} == {
        c.key: (ErrorCode.none, c.node_id) for c in each
    }


def test_unknown_key_type_is_refused(raw: RawConnection) -> None:
    assert (
        find_coordinator(raw, "x", version=3, key_type=NO_SUCH_TYPE).error_code
        == ErrorCode.invalid_request
    )
    found = only(find_coordinator(raw, "x", version=4, key_type=NO_SUCH_TYPE).coordinators)
    assert found.error_code == ErrorCode.invalid_request
