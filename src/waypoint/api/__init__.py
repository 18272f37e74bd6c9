"""What can be asked of the daemon, and what it answers.

**Wire**: the frames that travel over the daemon's socket.
"""
