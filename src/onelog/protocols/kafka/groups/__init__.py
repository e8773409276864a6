"""Classic consumer groups: membership, rebalances and committed offsets.

`group.py` is the state machine of one group and knows no loop, socket or disk. `coordinator.py` is
its rim: timers, the kept rows of `~groups`, and answers that wait. One module per family of
requests leads there.
"""
