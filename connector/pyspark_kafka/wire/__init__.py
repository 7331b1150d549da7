"""A small synchronous Kafka client: connections, versions, metadata, routing and retries.

Purpose: what an engine of our own asks a cluster, over blocking calls that end at a deadline; one
thread waits for many brokers at once (`connection.wait_any`). Invariant: bytes from the network
become values or an error that names the broker and the request: never a crash, a hang, or memory
that the bytes do not pay for. Only `transport` knows sockets. What it must not know: Spark, Arrow
rows, and what record batches hold.

    questions    what the port asks about topics, offsets and groups, asked until answered
    transactions what coordinators of transactions are asked, one try each
    group_offsets  the same of groups' offsets
    topics       the same of topics as an administrator sees them
    producer_id  who writes, in the brokers' eyes
    coordinators who coordinates groups and transactional ids
    router       which broker to ask; one connection for each
    metadata     who leads what, as the cluster last said
    fetch        the Fetch request and response, records not copied
    produce      the same of Produce
    connection   requests and responses of one broker, pipelined
    transport    bytes to and from one address
    entities     kio's schemas, to and from bytes
    writer, reader    Kafka's primitive types, for messages by hand
    versions, faults, retry    tables: versions we speak, what error codes ask of us, pauses
"""
