"""Saving the process tree of a box, and bringing it back to life in another one.

**Tree**: the anchor and everything below it; what a dump holds. **Dump**: one saving of it by CRIU.
**Pause**: the time in a dump in which the tree stands still. **Images**: the files a dump writes.
**Held**: restored, but before its first instruction. **Memory**: which pages were written since the
last dump. **Baseline**: the dump that the next one is compared with. **Traits**: properties of a
process that CRIU does not save and Waypoint adds. **Diagnosis**: CRIU's log turned into an error that
names the process. **Probe**: a real dump and restore that shows whether a CRIU works on this kernel.
"""
