"""Setting a machine up, and saying what it has and lacks.

**Engine**: a CRIU that works on the running kernel, with its own libraries, and the native programs
beside it. **Setup**: what puts it there. **Doctor**: each thing Waypoint needs, whether it is there,
and the command that provides it.
"""
