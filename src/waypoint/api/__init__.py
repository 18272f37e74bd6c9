"""What can be asked of the daemon, and what it answers.

**Request**: what a client asks for, one struct for each verb; **result**: what it is answered with. They
stand by subject: sessions, points, history, files, agent, effects, machine.
**Difference**, **findings**: what changed between two points, and what changed files mean, as it travels.
**Wire**: the frames that travel over the daemon's socket.
**Hint**: what to do about an error, as data; each face puts it into its own words.
"""
