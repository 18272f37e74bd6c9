"""Bases: root file systems that sessions are layered over.

**Base**: a root file system, immutable while a session uses it: the host's `/`, a folder, or an
imported one. **Store**: the imported ones, in the pool. **Images**: the archives they are imported from (tar,
OCI, `docker save`), which are not trusted.
"""
