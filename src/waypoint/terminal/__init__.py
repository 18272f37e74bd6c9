"""A session's terminal, on the daemon's side.

**Terminal**: the pty of a session, with its shell and the clients that are attached to it. **Shell**: the
interactive bash on it, which reports by **marks** in its output. **Run**: a command on its way through the
shell. **Recording**: what the terminal shows, cut into events: commands with their output. **Screen**: what
a user would see now, kept by an **emulator** over rows of **cells**. **Pump**: the one thread that reads
all terminals.
"""
