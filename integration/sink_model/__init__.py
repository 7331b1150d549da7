"""The protocol of the exactly-once sink as a small model, of which every state is explored.

cases       what is explored, and which case finds which mutation
explore     breadth first, so that a schedule that is found is a shortest one
driver      which step is taken where: planning, job, deciding, aborting, sweep, rolling, task
cluster     requests and what they do; coordinator is that of a transactional id
environment what happens by itself: timeouts, late requests, markers
state       the values; places, turn, canonical and garbage keep them few
liveness    from every state, a fresh driver finishes
mutations   what can be broken
"""
