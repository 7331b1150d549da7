"""A model of the exactly-once protocol and an explicit-state model checker for it.

cases              lists the configurations to check, and the case that detects each mutation
case               defines a configuration and the names of the invariants
explore            searches the states breadth-first and finds a shortest counterexample
driver             selects the driver's action by program counter; the actions are in planning,
                   job, deciding, aborting, sweep and rolling; driver_action contains common code
task               defines the actions of task attempts
environment        defines all other actions: timeouts, delayed requests, markers
cluster            applies the effects of requests; coordinator models the transaction coordinator
state              defines the state; labels defines the values of the program counter
canonicalization   merges symmetric states; pruning removes unobservable parts of a state
liveness           checks that a new driver always finishes, starting from any state
trace_validation   replays the steps and requests of the code as actions of the model
mutations          lists deliberate errors in the protocol
"""
