"""A broker_ref cluster in one process and in virtual time, with faults determined by a seed."""
