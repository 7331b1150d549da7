"""From an address to a connection with negotiated API versions.

Purpose: connect and send ApiVersions, the first request of every connection (KIP-511: in version 3,
and again in version 0 if the broker does not support that). Invariant: bounded by its deadline;
nothing stays open after a failure. What it must not know: which broker to connect to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, KafkaError
from pyspark_kafka.version import VERSION
from pyspark_kafka.wire.connection import RESPONSE_BYTES_MAX, Connection, Request, entity_request
from pyspark_kafka.wire.entities import read_entity, response_schema
from pyspark_kafka.wire.error_codes import error_class, format_code
from pyspark_kafka.wire.reader import Reader
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.transport import Address, Connect, TransportError, connect
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api, BrokerVersions

_SOFTWARE_NAME: Final = "pyspark-kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialer:
    """Opens connections; TLS and SASL will be other `connect` functions.

    `connect_timeout_s` is `socket.connection.setup.timeout.ms`: the limit for connecting to one
    broker and for its ApiVersions response.
    """

    client_id: str
    clock: Clock
    connect: Connect = connect
    connect_timeout_s: float = 10.0
    response_bytes_max: int = RESPONSE_BYTES_MAX

    def open(self, address: Address, *, broker: str, deadline: float) -> Connection:
        """Connect and negotiate; raises `BrokerUnreachableError`, `ProtocolError`, ..."""
        until = min(deadline, self.clock.now() + self.connect_timeout_s)
        try:
            transport = self.connect(address, self.clock.left_s(until))
        except TransportError as error:
            raise BrokerUnreachableError(f"Connecting to {broker} failed: {error}.") from None
        connection = Connection(
            transport,
            broker=broker,
            client_id=self.client_id,
            clock=self.clock,
            response_bytes_max=self.response_bytes_max,
        )
        try:
            connection.versions = _negotiate(connection, until)
        except BaseException:
            connection.close()
            raise
        return connection


def _negotiate(connection: Connection, deadline: float) -> BrokerVersions:
    latest = SUPPORTED_VERSIONS[Api.API_VERSIONS].last
    response = connection.call(_api_versions(latest), deadline=deadline)
    if response.error_code is ErrorCode.unsupported_version:
        response = connection.call(_api_versions(0), deadline=deadline)
    code = response.error_code
    if code is not ErrorCode.none:
        kind: type[KafkaError] = error_class(code)
        raise kind(f"ApiVersions to {connection.broker} failed: {format_code(code)}.")
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    features = {
        feature.name: feature.max_version_level
        for feature in getattr(response, "finalized_features", ())
    }
    return BrokerVersions(broker=connection.broker, ranges=ranges, features=features)


def _api_versions(version: int) -> Request[Any]:
    """Build a request; a broker that does not support the version responds in version 0."""
    request = entity_request(
        Api.API_VERSIONS,
        version,
        client_software_name=_SOFTWARE_NAME,
        client_software_version=VERSION,
    )

    def read(reader: Reader) -> Any:
        start = reader.position
        is_unsupported = reader.error_code("the error code") is ErrorCode.unsupported_version
        reader.position = start
        schema = response_schema(Api.API_VERSIONS, 0 if is_unsupported else version)
        return read_entity(schema, reader)

    return Request(
        api=request.api,
        version=version,
        body=request.body,
        read=read,
        throttle_ms=request.throttle_ms,
    )
