"""Mechanisms: one Linux facility each, under the kernel's own names. Functions here raise OSError;
callers above turn it into an error of Waypoint's, once.
"""
