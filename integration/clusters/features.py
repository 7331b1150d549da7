"""What a running cluster has finalized, and how to finalize other versions (KIP-584).

Purpose: for backends that cannot be started with the features that were asked for, and for tests
that change them. Invariant: what `finalize` returns from, every broker that was named knows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection

UPGRADE, UNSAFE_DOWNGRADE = 1, 3
POLL_INTERVAL_S = 0.02
TIMEOUT_S = 30.0


class FeaturesNotFinalized(Exception):  # noqa: N818
    """The cluster refused other versions of features, or a broker did not hear of them in time."""


def finalized(address: str) -> dict[str, int]:
    """The features that the broker at `host:port` knows to be finalized, and their versions."""
    with RawConnection(address) as connection:
        versions = connection.call(
            "api_versions", 4, client_software_name="integration", client_software_version="1"
        )
    return {feature.name: feature.max_version_level for feature in versions.finalized_features}


def finalize(addresses: Iterable[str], features: Mapping[str, int]) -> None:
    """Give features these versions, and wait until each of the brokers knows.

    Raises `FeaturesNotFinalized`.
    """
    asked, *others = addresses
    before = finalized(asked)
    updates = [
        {
            "feature": name,
            "max_version_level": version,
            "upgrade_type": UNSAFE_DOWNGRADE if version < before.get(name, 0) else UPGRADE,
        }
        for name, version in features.items()
    ]
    with RawConnection(asked) as connection:
        response = connection.call("update_features", 1, feature_updates=updates)
    if response.error_code != ErrorCode.none:
        raise FeaturesNotFinalized(f"{response.error_code.name}: {response.error_message}")
    deadline_s = time.monotonic() + TIMEOUT_S
    for address in (asked, *others):
        while any(finalized(address).get(name, 0) != features[name] for name in features):
            if time.monotonic() > deadline_s:
                raise FeaturesNotFinalized(f"the broker at {address} has {finalized(address)}")
            time.sleep(POLL_INTERVAL_S)
