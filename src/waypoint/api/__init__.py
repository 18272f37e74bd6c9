"""What can be asked of the daemon, and what it answers.

**Difference**, **findings**: what changed between two points, and what changed files mean, as it travels.
**Wire**: the frames that travel over the daemon's socket.
**Hint**: what to do about an error, as data; each face puts it into its own words.
"""
