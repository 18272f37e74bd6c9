"""Saving the process tree of a box, and bringing it back to life in another one.

**Tree**: the anchor and everything below it; what a dump holds. **Dump**: one saving of it by CRIU.
**Images**: the files a dump writes. **Held**: restored, but before its first instruction. **Memory**:
which pages were written since the last dump. **Traits**: what CRIU does not save of a process and
Waypoint adds. **Probe**: a real dump and restore that shows whether a CRIU works on this kernel.
"""
