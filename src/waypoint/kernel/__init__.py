"""Mechanisms: one Linux facility each, under the kernel's own names.

Functions here raise OSError with the path it is about. It is turned into an error of Waypoint's once, with
`errors.translated`: by the three interfaces that the layers above use as a whole (the pool, the network,
control groups) themselves, for everything else by the caller.
"""
