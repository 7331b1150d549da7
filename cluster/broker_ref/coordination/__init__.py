"""The common parts of the group coordinator and the transaction coordinator."""
