"""Fetch (1), versions 4 to 18: read record batches, with long polling.

The broker responds immediately in these cases:

- At least `min_bytes` bytes are available.
- `max_wait_ms` is 0, or no partition was requested.
- The response for a partition contains an error, a diverging epoch or a preferred read replica.
  Missing partitions are an exception: the response contains an error for them, but the request
  still waits for the other partitions.

Otherwise, the broker responds when enough bytes are available or `max_wait_ms` has passed
(`delayed_fetch`). `min_bytes` is limited to the maximum response size. `max_bytes` limits the size
of the response, and `partition_max_bytes` limits the size of the records of each partition.
Regardless of these limits, the first batch of the first partition with records is returned in full
(KIP-74). Partitions are read in the order of the request. In a session, partitions that returned
records move to the end of the session's order.

A request with session epoch 0 creates a fetch session (KIP-227, version 7, `fetch_contexts`). Later
requests contain only added and removed partitions, and responses contain only changes. A request
with session epoch -1 closes the session.

Consumers read up to the high watermark or, with read_committed, up to the last stable offset. The
response contains the aborted transactions in the returned offset range, so that the client can skip
their records (KIP-98). From version 11 on, consumers can read from followers. The leader then
returns the id of a replica in the consumer's rack as the preferred read replica (KIP-392).
Followers read up to the log end offset, and the leader stores their fetch state
(`partition_reader`). The broker checks the client's leader epoch (KIP-320). If a request contains
the epoch of the last fetched batch, the broker compares this epoch with its log. If the log does
not match, the broker returns a diverging epoch (KIP-595). Topics are identified by topic id from
version 13 on (KIP-516). Leadership errors contain the current leader from version 16 on (KIP-951).
Source: `kafka.server.KafkaApis.handleFetchRequest`.
"""

from __future__ import annotations

from typing import Final

from broker_ref.api.contract import Api, Broker, Call, Wait
from broker_ref.api.delayed_fetch import FetchLimits, start_fetch
from broker_ref.api.fetch_contexts import open_context
from broker_ref.api.fetch_messages import FetchRequest, FetchResponse
from broker_ref.api.partition_reader import PartitionReader
from broker_ref.protocol.errors import ApiError


def handle(broker: Broker, call: Call, request: FetchRequest) -> object:
    """Return the response if the fetch completes immediately, otherwise a `Wait`."""
    try:
        context = open_context(broker, call, request)
    except ApiError as error:
        return FetchResponse(error_code=error.error_code)
    max_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
    limits = FetchLimits(
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
    )
    fetch = start_fetch(PartitionReader.of(broker, call, request), context, limits)
    done = fetch.begin(call.now_ms)
    if done is not None:
        return done
    return Wait(operation=fetch, keys=fetch.keys(), deadline_ms=call.now_ms + request.max_wait_ms)


API: Final = Api(key=1, versions=range(4, 19), request=FetchRequest, handle=handle)
