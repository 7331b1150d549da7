"""The failpoint matrix: every process that writes exactly once is killed at every failpoint.

    hook       what a failpoint does in a process: note it, die, wait, raise
    server     forks processes that have imported everything
    processes  those processes, as the one who starts them sees them
    parts      what they do: plan, write, commit, abort
    driver     plays Spark: micro-batches and batch jobs, their tasks, retries and restarts
    scenarios  the situations in which failpoints are met
    lanes      topics to run in, one case after another
    verdict    what a reader sees in the end, compared with what went in
    step_requests  the requests that each step makes, declared
    matrix     scenarios recorded, cases made of them and run
    report     the tables of a run

There is no Spark here, so that a case takes a second. Processes are real, and so is SIGKILL.
"""
