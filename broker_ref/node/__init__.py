"""The nodes of a cluster, without I/O: events in, effects out.

`broker` and `controller` are the two kinds; `dispatch` serves requests for both; `registration`
makes a broker a member of the cluster and keeps it one; `metadata_follower` is how it learns what
the controller has decided; `forwarding` passes on what only the controller can answer.
"""
