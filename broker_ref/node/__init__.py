"""The nodes of a cluster, without I/O: events in, effects out.

`broker` and `controller` are the two kinds of node. `dispatch` serves requests for both.
`registration` registers a broker and keeps its session. `metadata_follower` fetches metadata
records from the controller. `forwarding` forwards clients' requests to the controller.
"""
