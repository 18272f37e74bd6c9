"""The verbs of the command line, grouped by what they are about."""
