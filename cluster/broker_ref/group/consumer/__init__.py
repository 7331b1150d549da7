"""Groups that use the consumer protocol (KIP-848).

This package implements only the rules of the protocol. `broker_ref.group.consumer_membership`
applies the rules to the groups of a shard, writes records, runs timers and sends replies.
"""
