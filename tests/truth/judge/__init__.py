"""The judge: every statement that Waypoint makes, against what the oracle saw.

A statement is one thing that is said: a changed file with all its values, a commit, the rows of a table, a
process, a variable, a phrase of a summary. It is true, wrong, or misleading; what changed and is neither told
nor covered by a gap is missing. A field that no rule knows is an error of the judge, never passed over.

    ledger.py       counts of statements and faults
    files.py        changed files: the old tree with the changes applied must be the new tree
    repositories.py what is told of git
    findings.py     packages, databases, accounts, scheduled commands
    live.py         processes, ports, the shell
    words.py        the sentences: the line of a log, the lines of sections
    plans.py        the words of a plan
    work.py         tasks, and what was done outside
    whole.py        all of an answer
"""
