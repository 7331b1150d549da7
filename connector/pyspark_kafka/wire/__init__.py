"""A small synchronous Kafka client: connections, versions, metadata, routing and retries.

Purpose: the requests of the native engine, as blocking calls that end at a deadline; one thread
can wait for many brokers at once (`connection.wait_any`). Invariant: bytes from the network become
values, or an error that names the broker and the request. They never cause a crash, a hang, or
more memory than their number justifies. Only `transport` uses sockets. What it must not know:
Spark, Arrow rows, and the contents of record batches.

    cluster_queries       topics, offsets and groups, with retries
    transaction_requests  requests of transactions, one try each
    admin_requests        requests of an administrator, one try each
    group_offsets         committed offsets of groups, one try each
    producer_id           InitProducerId without a transactional id
    router                the broker for a request; one connection to each
    coordinators          FindCoordinator
    metadata              brokers, topics, leaders and their epochs
    fetch, produce        Fetch and Produce; records are not copied
    dialer                new connections: connect and negotiate versions
    connection            pipelined requests and responses of one broker
    transport             bytes to and from one address
    entities              kio's schemas to and from bytes
    reader, writer        Kafka's primitive types, for messages without kio
    versions, error_codes, retry   tables: API versions, error codes, pauses
"""
