"""Groups: their members, rebalances and committed offsets, as a coordinator has them."""
