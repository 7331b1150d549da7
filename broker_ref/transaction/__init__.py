"""Transactions: their coordinator, and what partitions ask of it (KIP-98, KIP-890, KIP-939)."""
