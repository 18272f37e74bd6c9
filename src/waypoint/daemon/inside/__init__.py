"""What a process inside a session may ask of the daemon, and how.

**Door**: the socket in a box. **Ticket**: the random name of a request, under which its answer appears.
**Grammar**: the few requests that are allowed, about that session and nothing else.
"""
