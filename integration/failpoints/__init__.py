"""The failpoint matrix: kill every process of the exactly-once sink at every failpoint.

    hook           records the failpoints of a process and injects faults there
    server         forks processes that have imported everything
    processes      starts such processes and waits for their outcomes
    messages       the protocol between the two
    sink_calls     what the processes run: plan, write, commit, abort
    driver         simulates Spark's driver: batches, tasks, retries and restarts
    scenarios      the situations in which failpoints are reached
    lanes          the topics that cases use, one case at a time
    oracle         compares what a reader sees with what was written
    trial          runs one scenario to its end
    step_requests  declares the requests of each step
    matrix         records scenarios, derives cases and runs them
    report         the tables of a run
    killing        kills Spark's own Python processes at failpoints

The harness runs without Spark, so a case takes about a second. The processes and their SIGKILL are
real.
"""
