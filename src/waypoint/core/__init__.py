"""The verbs: what can be done with sessions and points, and what happens by itself between them.

Here the mechanisms meet: a box is built, a tree is saved or revived in it, a volume is snapshotted beside it,
and a row in the database makes it true. What fails before the row is undone, and the session runs on.

**Registry**: which sessions and points there are, which of them run, and the locks. **Live**: a session that
runs. **Capture**, **restore**, **fork**: the walks of those verbs. **Copy**: a live copy of a point;
**twin**: one that has not run yet; **spare**: a twin kept ahead of time; **throwaway**: a copy that is not a
session. **Wish**: what the caller wants a point to be. **Stage**: a point before it exists. **Remains**:
what is to be deleted. **Gate**: what a command passes before it runs. **Contact**: traffic with one place
outside. **Moment**: a point, the present or the base, as it can be compared. **Foreground verb**: one that a
client waits for.

Classes are given what they need in their constructors, by daemon/app.py.
"""
