"""A Python that lives in a session and runs code for clients, one after the other. Its variables stay.

This file is written into the session and run there, by the Python of the session. It knows nothing of
Waypoint.

    live_python.py serve FOLDER          the one that lives: FOLDER has its socket and its process number
    live_python.py ask FOLDER SECONDS    one request: code on stdin, its output on stdout, the reply on stderr

The client hands over its stdout, so that also programs that the code starts print to it. After SECONDS it
interrupts the code, and after GRACE_SECONDS more it ends the Python. A reply is one JSON object: see `_run`.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import dataclasses
import io
import json
import linecache
import os
import pathlib
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

GRACE_SECONDS = 5.0
CLIENT_SECONDS = 60.0
"""For a client to send its request, and to take the reply."""
LONGEST_VALUE = 100_000
HOST_CALL = "WaypointCall"
"""The name of an exception that is no error: the code has ended with a call for the host."""
MODULE = "waypoint_live_python"
"""The name under which code can import this file."""


class FinalAnswer(BaseException):
    """Raised by a tool of `answering`: the code has ended with its answer."""


def answering(tool: Callable[..., Any], pickles: bool) -> Callable[..., Any]:
    """A tool that ends the code with what `tool` returns."""

    def answer(*args: Any, **named: Any) -> Any:
        value = tool(*args, **named)
        try:
            text = "safe:" + json.dumps(_plain(value))
        except TypeError:
            if not pickles:
                raise
            import pickle

            text = "pickle:" + base64.b64encode(pickle.dumps(value)).decode()
        raise FinalAnswer(text)

    return answer


def _plain(value: Any) -> Any:
    """A value as smolagents' SafeSerializer reads it. TypeError for one that does not travel so."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if value is None or kind in (str, int, float, bool):
        return value
    if kind is list:
        return [_plain(one) for one in value]
    if kind is dict and all(type(key) is str for key in value):
        return {key: _plain(one) for key, one in value.items()}
    if kind is dict:
        pairs = [[_plain(key), _plain(one)] for key, one in value.items()]
        return {"__type__": "dict_with_complex_keys", "data": pairs}
    if kind in (tuple, set, frozenset):
        return {"__type__": kind.__name__, "data": [_plain(one) for one in value]}
    if kind is bytes:
        return {"__type__": "bytes", "data": base64.b64encode(value).decode()}
    if kind is complex:
        return {"__type__": "complex", "real": value.real, "imag": value.imag}
    if name in ("datetime.datetime", "datetime.date", "datetime.time"):
        return {"__type__": kind.__name__, "data": value.isoformat()}
    if name == "datetime.timedelta":
        return {"__type__": "timedelta", "total_seconds": value.total_seconds()}
    if name == "decimal.Decimal":
        return {"__type__": "Decimal", "data": str(value)}
    if isinstance(value, pathlib.PurePath):
        return {"__type__": "Path", "data": str(value)}
    if name == "numpy.ndarray":
        return {"__type__": "ndarray", "data": value.tolist(), "dtype": str(value.dtype)}
    if kind.__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    if any(f"{one.__module__}.{one.__qualname__}" == "PIL.Image.Image" for one in kind.__mro__):
        file = io.BytesIO()
        value.save(file, format="PNG")
        return {"__type__": "PIL.Image", "data": base64.b64encode(file.getvalue()).decode()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"__type__": "dataclass", "class_name": kind.__name__, "module": kind.__module__, "data": data}
    raise TypeError(f"a {kind.__name__} cannot be given as an answer: use numbers, texts, lists, …")


def serve(folder: str) -> None:
    """Serves one client after the other, for ever."""
    path = os.path.join(folder, "socket")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    with open(os.path.join(folder, "pid"), "w") as file:
        file.write(str(os.getpid()))
    namespace = types.ModuleType("__main__")
    sys.modules[MODULE], sys.modules["__main__"] = sys.modules["__main__"], namespace
    sys.path[0] = ""
    runs = [False]

    def interrupted(*_: Any) -> None:
        if runs[0]:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.write(1, b"ready\n")
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    number = 0
    while True:
        connection, _ = listener.accept()
        connection.settimeout(CLIENT_SECONDS)
        number += 1
        # A client that goes away while its code runs is no reason to end.
        with connection, contextlib.suppress(OSError, ValueError, IndexError):
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            with connection.makefile("rb") as stream:
                code = stream.read().decode()
            for descriptor in (1, 2):
                os.dup2(descriptors[0], descriptor)
            os.close(descriptors[0])
            try:
                reply = _run(code, f"<step {number}>", vars(namespace), runs)
            finally:
                for output in (sys.stdout, sys.stderr):
                    with contextlib.suppress(Exception):  # the code may have put anything there
                        output.flush()
                for descriptor in (1, 2):
                    os.dup2(nothing, descriptor)
            connection.sendall(json.dumps(reply).encode())
            connection.shutdown(socket.SHUT_RDWR)  # a process that the code has forked has it open as well


def _run(code: str, name: str, namespace: dict[str, Any], runs: list[bool]) -> dict[str, Any]:
    """Runs code. One of: {"value": …} of its last expression as text, {"final": …}, {"call": [verb, …]},
    {"error": name, "traceback": text}."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    runs[0] = True
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)  # noqa: S102 - what it is for
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)  # noqa: S307
            return {"value": None if value is None else repr(value)[:LONGEST_VALUE]}
        return {"value": None}
    except BaseException as error:  # noqa: BLE001 - whatever ends the code, the variables stay
        runs[0] = False
        if isinstance(error, FinalAnswer):
            return {"final": error.args[0]}
        if type(error).__name__ == HOST_CALL:
            return {"call": [str(one) for one in error.args]}
        own = error.__traceback__.tb_next if error.__traceback__ else None
        lines = traceback.format_exception(type(error), error, own)
        return {"error": type(error).__name__, "traceback": "".join(lines)[-LONGEST_VALUE:]}
    finally:
        runs[0] = False


def ask(folder: str, seconds: float) -> dict[str, Any]:
    """Sends the code on stdin. {"gone": true} when no Python answers, or none any more; a reply to code that
    was interrupted has "timed_out", and one of a Python that had to be ended "gone" as well."""
    code, received = sys.stdin.buffer.read(), bytearray()
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(seconds)
    try:
        connection.connect(os.path.join(folder, "socket"))
        socket.send_fds(connection, [b"f"], [1])
        connection.sendall(code)
        connection.shutdown(socket.SHUT_WR)
    except TimeoutError:
        reply = None  # it still runs what another client has sent: that is interrupted
    except OSError:
        return {"gone": True}
    else:
        reply = _receive(connection, received, seconds)
    if reply is not None:
        return reply
    with open(os.path.join(folder, "pid")) as file:
        python = int(file.read())
    with contextlib.suppress(ProcessLookupError):
        os.kill(python, signal.SIGINT)
    reply = _receive(connection, received, GRACE_SECONDS)
    if reply is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(python, signal.SIGKILL)
        reply = {"gone": True}
    return {**reply, "timed_out": True}


def _receive(connection: socket.socket, received: bytearray, seconds: float) -> dict[str, Any] | None:
    """The reply; None when there is none in time."""
    end = time.monotonic() + seconds
    while True:
        connection.settimeout(max(end - time.monotonic(), 0.001))
        try:
            piece = connection.recv(1 << 20)
        except TimeoutError:
            return None
        except OSError:
            return {"gone": True}
        if not piece:
            reply: dict[str, Any] = json.loads(bytes(received)) if received else {"gone": True}
            return reply
        received += piece


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        os.write(2, json.dumps(ask(sys.argv[2], float(sys.argv[3]))).encode())
