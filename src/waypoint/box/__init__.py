"""The place a session lives in: namespaces, an overlay root, a network, limits.

**Box**: the isolated place itself, seen from the daemon. **Plan**: the list of steps that builds one;
written here and carried out by the keeper. **Volume**: the writable tree in the pool that holds a box's own
layer. **Keeper**: pid 1 of a box; it owns the terminal and is not part of any image.
"""
