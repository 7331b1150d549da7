"""A whole broker_ref cluster in one process under virtual time, with faults that a seed chooses."""
