"""A session's terminal, on the daemon's side.

**Terminal**: the pty of a session, its shell, and the clients that are attached to it. **Shell**: the
interactive bash on it. **Recording**: what the terminal shows, cut into commands with their output.
**Screen**: what a person would see now, kept by an **emulator** over rows of **cells**. **Pump**: the
one thread that reads all terminals.
"""
