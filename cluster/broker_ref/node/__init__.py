"""The nodes of a cluster, without I/O. A node receives events and returns effects.

`broker` and `controller` contain the two types of node. `dispatch` serves requests for both types.
`registration` registers a broker and renews its session. `metadata_follower` fetches metadata
records from the controller. `forwarding` forwards client requests to the controller.
"""
