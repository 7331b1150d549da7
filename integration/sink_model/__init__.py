"""A model of the exactly-once protocol and an explicit-state model checker for it.

cases              the configurations to check, and the case that detects each mutation
case               the definition of a configuration, and the names of the invariants
explore            breadth-first search, which finds a shortest counterexample
driver             selects the driver's action by program counter; the actions are in planning,
                   job, deciding, aborting, sweep and rolling; driver_action contains common code
task               the actions of task attempts
environment        all other actions: timeouts, delayed requests, markers
cluster            the effects of requests; coordinator models the transaction coordinator
state              the values that form a state; labels are the values of the program counter
canonicalization   symmetry reduction; pruning removes unobservable parts of a state
liveness           checks that a fresh driver finishes from every state
trace_validation   replays the steps and requests of the code as actions of the model
mutations          deliberate errors in the protocol
"""
