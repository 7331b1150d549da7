"""A model of the exactly-once protocol and an explicit-state model checker for it.

cases              the configurations to check, and the case that detects each mutation
explore            breadth-first search, so that a counterexample is a shortest one
driver             the driver's actions by program counter: planning, job, deciding, aborting,
                   sweep, rolling; driver_action is what they share
task               the actions of task attempts
environment        all other actions: timeouts, delayed requests, markers
cluster            the effects of requests; coordinator is the transaction coordinator
state              the state's values; labels are the program counter's values
canonicalization   symmetry reduction; pruning removes unobservable parts of a state
liveness           checks that a fresh driver completes from every state
mutations          deliberate errors in the protocol
"""
