"""What an agent did, knows and has still to do.

**Trajectory**: what happened in a session, in order. **Event**: one thing of it. **Stream**: events of
one box on their way into the database. **Task**: something to be done, part of every checkpoint.
**Asciicast**: the terminal's history in the format that players know.
"""
