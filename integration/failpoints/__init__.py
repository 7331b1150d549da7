"""The failpoint matrix, which kills every process of the exactly-once sink at every failpoint.

    hook           records the failpoints of a process and injects faults at failpoints
    server         imports all modules and forks child processes
    processes      starts the processes and waits for their outcomes
    messages       defines the messages between the harness and the processes
    sink_calls     contains the functions that the processes run: plan, write, commit, abort
    driver         simulates Spark's driver: batches, tasks, retries and restarts
    scenarios      lists the situations in which failpoints are reached
    session        manages the resources that all cases share
    lanes          manages topics that cases reuse, one case at a time
    oracle         compares the rows that a consumer reads with the rows that were written
    trial          runs one scenario
    step_requests  declares the requests of each step
    matrix         records scenarios, derives cases and runs them
    report         formats the tables of a run
    killing        kills the Python processes of a Spark application at failpoints

A case takes about one second, because the matrix does not start Spark. The cases use real processes
and SIGKILL.
"""
