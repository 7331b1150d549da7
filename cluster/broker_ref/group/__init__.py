"""The group coordinator: groups, their members, rebalances and committed offsets."""
