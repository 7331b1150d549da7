"""Open connections, negotiate API versions and authenticate.

ApiVersions is the first request on every connection. It is sent in version 3, and again in version
0 if the broker does not support version 3 (KIP-511). SASL authentication follows. Each attempt to
open a connection ends by its deadline, and no socket remains open after a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import AuthenticationError, BrokerUnreachableError, KafkaError
from pyspark_kafka.version import VERSION
from pyspark_kafka.wire.connection import RESPONSE_BYTES_MAX, Connection, Request, entity_request
from pyspark_kafka.wire.entities import read_entity, response_schema
from pyspark_kafka.wire.error_codes import error_class, format_code
from pyspark_kafka.wire.reader import Reader
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.sasl import SaslCredentials, authentication
from pyspark_kafka.wire.transport import Address, Connect, TransportError, connect
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api, BrokerVersions

_SOFTWARE_NAME: Final = "pyspark-kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialer:
    """A factory for connections. With `credentials`, each connection authenticates with SASL.

    `connect_timeout_s` (`socket.connection.setup.timeout.ms`) limits the time to connect to a
    broker, to receive its ApiVersions response and to authenticate. This limit does not include
    the time to obtain a token.
    """

    client_id: str
    clock: Clock
    connect: Connect = connect
    credentials: SaslCredentials | None = None
    connect_timeout_s: float = 10.0
    response_bytes_max: int = RESPONSE_BYTES_MAX

    def open(self, address: Address, *, broker: str, deadline: float) -> Connection:
        """Open a connection and negotiate API versions. Raises `KafkaError`."""
        if self.credentials is not None:
            self.credentials.prepare()
        until = min(deadline, self.clock.now() + self.connect_timeout_s)
        try:
            transport = self.connect(address, self.clock.left_s(until))
        except TransportError as error:
            kind = AuthenticationError if error.is_rejection else BrokerUnreachableError
            raise kind(
                f"Connecting to {broker} failed: {error}.",
                advice=error.advice,
                option=error.option,
            ) from None
        connection = Connection(
            transport,
            broker=broker,
            client_id=self.client_id,
            clock=self.clock,
            response_bytes_max=self.response_bytes_max,
        )
        try:
            connection.versions = _negotiate(connection, until)
            if self.credentials is not None:
                connection.authenticate(
                    partial(authentication, self.credentials, connection.versions), deadline=until
                )
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
        raise kind(f"The ApiVersions request to {connection.broker} failed: {format_code(code)}.")
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    features = {
        feature.name: feature.max_version_level
        for feature in getattr(response, "finalized_features", ())
    }
    return BrokerVersions(broker=connection.broker, ranges=ranges, features=features)


def _api_versions(version: int) -> Request[Any]:
    """Build an ApiVersions request.

    A broker that does not support `version` returns a version 0 response.
    """
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
