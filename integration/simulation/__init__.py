"""A complete broker_ref cluster in one process, in virtual time, with faults chosen by a seed."""
