"""Read and update the finalized features of a running cluster (KIP-584).

This module is for backends that cannot start with the requested features, and for tests that change
features. Invariant: when `finalize` returns, the metadata of all given brokers contains the new
versions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection

UPGRADE, UNSAFE_DOWNGRADE = 1, 3
POLL_INTERVAL_S = 0.02
TIMEOUT_S = 30.0


class FeatureUpdateError(Exception):
    """The cluster rejected a feature update, or a broker did not apply it in time."""


def finalized(address: str) -> dict[str, int]:
    """Return the finalized feature versions that a broker (`host:port`) has in its metadata."""
    with RawConnection(address) as connection:
        versions = connection.call(
            "api_versions", 4, client_software_name="integration", client_software_version="1"
        )
    return {feature.name: feature.max_version_level for feature in versions.finalized_features}


def finalize(addresses: Iterable[str], features: Mapping[str, int]) -> None:
    """Finalize feature versions and wait until all brokers have applied them.

    Raises `FeatureUpdateError` if the cluster rejects the update or a broker does not apply it in
    time.
    """
    first, *others = addresses
    before = finalized(first)
    updates = [
        {
            "feature": name,
            "max_version_level": version,
            "upgrade_type": UNSAFE_DOWNGRADE if version < before.get(name, 0) else UPGRADE,
        }
        for name, version in features.items()
    ]
    with RawConnection(first) as connection:
        response = connection.call("update_features", 1, feature_updates=updates)
    if response.error_code != ErrorCode.none:
        raise FeatureUpdateError(f"{response.error_code.name}: {response.error_message}")
    deadline_s = time.monotonic() + TIMEOUT_S
    for address in (first, *others):
        while any(finalized(address).get(name, 0) != features[name] for name in features):
            if time.monotonic() > deadline_s:
                raise FeatureUpdateError(
                    f"the broker at {address} did not apply the update in time; its features are "
                    f"{finalized(address)}"
                )
            time.sleep(POLL_INTERVAL_S)
