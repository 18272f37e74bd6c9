"""Setting a machine up, and checking what it has and lacks.

**Engine**: a CRIU that works on the running kernel, in a prefix with its own loader and libraries, and the
**native programs** beside it. **Setup**: what puts the engine there. **Doctor**: one finding for each thing
that Waypoint needs, with what to do if it is missing.
"""
