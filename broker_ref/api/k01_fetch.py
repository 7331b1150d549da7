"""Fetch (1), versions 4 to 18: read record batches, waiting for them if need be.

Behaviour: answers at once when `min_bytes` are there, `max_wait_ms` is zero, a partition has
something that cannot wait, or nothing was asked for; otherwise when enough is there, or at the
deadline with what there is (`delayed_fetch`). `min_bytes` is at most what can be returned.
`max_bytes` bounds the response, `partition_max_bytes` a partition, but the first batch of the first
partition that has any always goes out whole (KIP-74). Partitions are served in the order of the
request or, in a session, those first that had no records for the longest time; without a session
fairness is the client's part. One that does not exist is answered without ending the others' wait.

Sessions (`fetch_contexts`, KIP-227, version 7): session epoch 0 asks for one, the next requests
name only what is new and what is forgotten, and are answered only with what is new; -1 closes it.

Consumers see below the high watermark, with read_committed below the last stable offset, with the
aborted transactions that overlap what they get, whose records they drop (KIP-98). From version 11
they may read from followers, and the leader tells them of one in their rack (KIP-392). Followers
see all there is, and their position is noted (`partition_reader`). Leader epochs are fenced
(KIP-320), a fetch that names the epoch of its last batch is told where it diverges (KIP-595),
topics come by id from version 13 (KIP-516), errors about leaders with the leader from version 16
(KIP-951).
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
    """Answer at once where that is due, or wait."""
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
