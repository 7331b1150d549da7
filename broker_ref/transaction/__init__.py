"""Transactions: the coordinator, and the verification of partitions (KIP-98, KIP-890, KIP-939)."""
