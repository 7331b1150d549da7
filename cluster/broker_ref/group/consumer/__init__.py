"""Groups that use the consumer protocol (KIP-848).

This package contains only the rules: it has no log, no timers and no replies.
`broker_ref.group.consumer_membership` applies them to the groups of a shard.
"""
