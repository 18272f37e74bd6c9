"""`waypoint bench`: what Waypoint costs here, and what its neighbours cost for the same work.

It is a user like any other: it speaks to a daemon of its own, in a throwaway home, through the SDK.

    results     what was measured: figures with all their rounds, and the numbers to reach
    runner      the throwaway home, the clock, and who is measured when
    workloads   what Waypoint is asked to do
    peers       the same work done in other ways
    report      the table, the markdown
    charts      the picture, as SVG and as PNG
    compare     ratios against a recorded run: `make bench-check`
    reference   `make bench-reference`: fills docs/performance.md

Three windows are told of each operation. *pause*: how long the processes stood still. *api*: from the call
to its answer. *until*: from the call until the next command has run.
"""
