"""Fetch (1), versions 4 to 18: read record batches, with long polling.

Behaviour: the broker responds immediately if `min_bytes` are available, `max_wait_ms` is 0, a
partition has an urgent answer or no partition was requested; otherwise when enough bytes are
available or at the deadline (`delayed_fetch`). `min_bytes` is limited to the response size.
`max_bytes` limits the response and `partition_max_bytes` a partition, but the first batch of the
first partition with records is always returned whole (KIP-74). Partitions are read in the order of
the request, or in a session in the order of their last answer with records. A partition that does
not exist is answered with an error; the others still wait.

Sessions (KIP-227, version 7, `fetch_contexts`): session epoch 0 creates one; later requests contain
only new and forgotten partitions, and responses only changes; -1 closes the session.

Consumers read below the high watermark, or with read_committed below the last stable offset. The
response contains the aborted transactions of the returned range, whose records the client filters
(KIP-98). From version 11 on consumers can read from followers; the leader names one in their rack
(KIP-392). Followers read to the log end and their position is stored (`partition_reader`). Leader
epochs are checked (KIP-320). A fetch with the epoch of its last batch gets the diverging epoch
(KIP-595). Topics have ids from version 13 on (KIP-516); leadership errors name the leader from
version 16 on (KIP-951). Source: `kafka.server.KafkaApis.handleFetchRequest`.
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
    """Return the response if it is due, otherwise a `Wait`."""
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
