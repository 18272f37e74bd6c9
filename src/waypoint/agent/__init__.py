"""What an agent did and what it still has to do.

**Trajectory**: the events of a session, in order: commands, output, messages, tool calls, points. **Stream**:
the events of one box on their way into the database. **Task**: something to do, part of every checkpoint.
**Asciicast**: the history of a terminal in the format of terminal players.
"""
