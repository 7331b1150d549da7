"""The common parts of the group and the transaction coordinator: log writes, loading, replies."""
