"""The verbs: what can be done with sessions and points, and what happens by itself between them.

Here the mechanisms meet: a box is built, a tree is saved or revived in it, a volume is snapshotted
beside it, and a row in the database makes it true. Whatever fails before the row is undone, and the
session runs on.
"""
