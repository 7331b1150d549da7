"""The transaction coordinator and partition verification (KIP-98, KIP-890, KIP-939)."""
