"""Groups on their coordinator: members, rebalances and committed offsets."""
