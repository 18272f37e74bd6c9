"""Facts into sentences: pure functions, the same words for every face.

units.py        sizes, times, plurals, lists
files.py        which files changed: counted, or the two that tell most by name
findings.py     what changed, in a few words each: for the one line that a log has room for
commands.py     how the commands before a point ended
cards.py        the card of a checkpoint
difference.py   what changed between two points, section by section
plan.py         what a restore would do
effects.py      what was done outside, and the places a session has talked to
resume.py       where a session stands, for a prompt
views.py        answers of the daemon as objects that a client can print
"""
