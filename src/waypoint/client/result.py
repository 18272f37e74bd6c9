"""What a command did, for users of the SDK."""

from __future__ import annotations

import base64

from waypoint import errors, model


class Result:
    """What a command did.

    >>> import waypoint
    >>> with waypoint.session("sdk-result") as s:
    ...     r = s.run("echo hello; false")
    >>> r.exit_code, r.output, r.ok
    (1, 'hello\\n', False)
    >>> r.check()
    Traceback (most recent call last):
        ...
    waypoint.errors.CommandFailed: `echo hello; false` exited with 1
    >>> _ = s.remove()
    """

    def __init__(self, command: str, result: model.RunResult) -> None:
        self.command = command
        self.exit_code = result.exit_code
        self.output = result.output
        self.output_bytes = base64.b64decode(result.base64) if result.base64 else result.output.encode()
        self.duration_ms = result.duration_ms
        self.timed_out = result.timed_out
        self.truncated = result.truncated
        self.notice = result.notice
        self.warnings = result.warnings

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> Result:
        """Itself, or CommandFailed when the command did not exit with 0."""
        if not self.ok:
            how = "timed out" if self.timed_out else f"exited with {self.exit_code}"
            raise errors.CommandFailed(
                f"`{self.command}` {how}", hint=self.output[-500:], exit_code=self.exit_code
            )
        return self

    def __repr__(self) -> str:
        how = "timed_out" if self.timed_out else f"exit_code={self.exit_code}"
        return f"<Result {how} output={self.output[:60]!r}>"
