"""Many clients, many repetitions, large sessions: `python -m tests.load`, as root.

`clients` compares what 32 clients of 8 sessions were told with a model of a session (linearizable.py).
`cycles` repeats checkpoint, change and restore, and looks at what the daemon and the machine hold meanwhile.
`bulk` has sessions with thousands of processes and files, a fork bomb and a gigabyte of output.
"""
