"""The process that owns the sessions of a home while it runs.

Started by the first client that finds none; may die at any time. It keeps no truth in memory: boxes
live on under their keepers, everything else is in the pool and the database, and the next daemon takes
over.
"""
