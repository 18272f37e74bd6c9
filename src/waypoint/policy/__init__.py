"""What a command would do, judged before it runs.

**bash** parses a command line as bash would, without running it. **wrappers** finds the commands inside other
commands (`sudo`, `xargs`, `ssh`); what is known about those is in wrappers.toml. **inline** inspects scripts
in an argument (`python -c`). **targets** finds out which host a command talks to and whether it writes there.
**rules** judge which class of effect a command has and whether it may run; the built-in ones are in
rules.toml. **approvals** are the decisions of users that commands wait for.
"""
