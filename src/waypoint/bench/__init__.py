"""`waypoint bench`: what Waypoint costs on this machine, and what other tools cost for the same work.

The benchmark uses Waypoint through the SDK, with a daemon of its own in a throwaway home.

    results     the measured figures with all their rounds, and the targets
    runner      the throwaway home, the clock, and the order of the workloads
    workloads   what is measured of Waypoint
    peers       the same work done with other tools
    report      the tables, as text and as markdown
    charts      the charts, as SVG
    compare     ratios against a recorded run: `make bench-check`
    reference   `make bench-reference`: fills docs/performance.md

Each operation is measured over up to three windows. *pause*: how long the processes were stopped. *api*: from
the call to its answer. *until*: from the call until the next command has run.
"""
