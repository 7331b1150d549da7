"""A small synchronous Kafka client: connections, versions, metadata, routing and retries.

The native engine uses this package for all its requests. Every call returns by its deadline, and
one thread can wait for several brokers at the same time (`connection.wait_any`). Malformed
responses raise an error that names the broker and the request. Such responses cannot cause a crash,
a hang, or an allocation that is much larger than the response. Only `transport` and `tls` use
sockets.

    cluster_queries       queries for topics, offsets and groups, with retries
    transaction_requests  requests for transactions, without retries
    admin_requests        administrative requests, without retries
    group_offsets         committed offsets of groups, without retries
    producer_id           InitProducerId without a transactional id
    router                broker selection and the connection pool
    coordinators          FindCoordinator
    metadata              brokers, topics, leaders and leader epochs
    fetch, produce        Fetch and Produce, without copying records
    dialer                connection setup and version negotiation
    connection            pipelined requests to one broker
    sasl                  SASL mechanisms and authentication requests
    transport, tls        TCP and TLS connections
    entities              serialization with kio's schemas
    reader, writer        Kafka's primitive types
    versions, error_codes, retry   API versions, error codes, backoff
"""
