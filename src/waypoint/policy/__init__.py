"""What a command would do, judged before it runs.

**Bash**: reads a command line as bash would, without running it. **Wrappers**: commands that run other
commands (`sudo`, `xargs`, `ssh`), looked through. **Inline**: scripts given as an argument.
**Targets**: which place outside a command talks to. **Rules**: which class of effect a command has and
whether it may run; the built-in ones are in rules.toml. **Approval**: the decision of a person that a
command waits for.
"""
