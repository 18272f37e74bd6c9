"""Facts into sentences: pure functions, the same words for every face.

**Units**: sizes, times, plurals. **Findings**, **cards**, **difference**, **effects**, **resume**: what
was derived, as lines of text. **Views**: answers of the daemon as objects that a client can print.
"""
