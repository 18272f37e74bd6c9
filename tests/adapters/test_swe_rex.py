"""The adapter of SWE-ReX: the tests of its repository over two fixtures, and an agent that breaks a machine.

These tests are in the source package of SWE-ReX, which `make adapters` downloads beside the environment. They
write files on the host and read them through the runtime, so the session sees the folder of the tests.
"""

from __future__ import annotations

import sys
import tarfile
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.exceptions import CommandTimeoutError, DeploymentNotStartedError, NonZeroExitCodeError
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

import waypoint
import waypoint.aio
from waypoint import model
from waypoint.adapters.swe_rex import (
    PREFIX,
    NotInThisShell,
    WaypointDeployment,
    WaypointDeploymentConfig,
    WaypointRuntime,
)
from waypoint.home import Home

SUITE = "swe_rex_suite"
CANNOT_PASS = {
    "test_interrupt_pager": "an interrupt has ended the pager when it returns; bash tells of no job later",
}


class Action(BashAction):
    timeout: float | None = 5


class LimitedCommand(Command):
    timeout: float | None = 5


def load_suite() -> dict[str, Any]:
    """The tests of the source package, with what they take from its conftest."""
    (archive,) = (Path(sys.prefix) / "sources").glob("swe_rex-*.tar.gz")
    with tarfile.open(archive) as files:
        member = files.extractfile(f"{archive.name.removesuffix('.tar.gz')}/tests/test_execution.py")
        assert member is not None
        source = member.read()
    conftest = types.ModuleType(f"{SUITE}.conftest")
    conftest._Action, conftest._Command = Action, LimitedCommand  # type: ignore[attr-defined]
    sys.modules[SUITE], sys.modules[conftest.__name__] = types.ModuleType(SUITE), conftest
    # The runtime they are written for; its module needs a package that SWE-ReX does not install.
    remote = types.ModuleType("swerex.runtime.remote")
    remote.RemoteRuntime = WaypointRuntime  # type: ignore[attr-defined]
    sys.modules[remote.__name__] = remote
    suite = types.ModuleType(f"{SUITE}.test_execution")
    suite.__package__ = SUITE
    exec(compile(source, "tests/test_execution.py", "exec"), suite.__dict__)
    tests = {name: value for name, value in vars(suite).items() if name.startswith("test_")}
    del tests["test_server_dead"]  # it is about their client of HTTP, and looks a host up
    return tests


globals().update(load_suite())


@pytest.fixture(scope="module", autouse=True)  # so that the loop of asyncio is there before the first test
async def session(
    home: Home, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[waypoint.aio.Session]:
    folder = str(tmp_path_factory.getbasetemp())
    made = await waypoint.aio.session(net="none", binds=[model.Bind(folder, folder)], actor="agent")
    yield made
    await made.remove()


@pytest.fixture
async def remote_runtime(session: waypoint.aio.Session) -> AsyncIterator[WaypointRuntime]:
    runtime = WaypointRuntime(session)
    yield runtime
    await runtime.close()


@pytest.fixture
async def runtime_with_default_session(
    remote_runtime: WaypointRuntime, request: pytest.FixtureRequest
) -> AsyncIterator[WaypointRuntime]:
    if reason := CANNOT_PASS.get(request.node.originalname or request.node.name):
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


async def say(runtime: WaypointRuntime, command: str, **options: Any) -> str:
    return str((await runtime.run_in_session(Action(command=command, **options))).output)


async def test_a_second_shell_keeps_its_state_and_has_no_terminal(remote_runtime: WaypointRuntime) -> None:
    for name in ("default", "second"):
        await remote_runtime.create_session(CreateBashSessionRequest(session=name))
    second = {"session": "second"}
    await say(
        remote_runtime,
        "cd /srv; list=(a 'b c'); export it=\"it's\"; readonly r=1; f() { echo f $1; }",
        **second,
    )
    assert await say(remote_runtime, 'pwd; echo "${list[1]}"; env | grep ^it=; f 2', **second) == (
        "/srv\nb c\nit=it's\nf 2\n"
    )
    assert await say(remote_runtime, "(exit 3)", **second, check="ignore") == ""
    with pytest.raises(NonZeroExitCodeError, match=r"made: .* exit code 3"):
        await say(remote_runtime, "(exit 3)", **second, error_msg="made")
    with pytest.raises(CommandTimeoutError):
        await say(remote_runtime, "sleep 1001", session="second", timeout=0.2)
    assert await say(remote_runtime, "echo $it; cat", **second) == "it's\n"
    with pytest.raises(NotInThisShell, match="'second' has no terminal"):
        await say(remote_runtime, "python", **second, is_interactive_command=True)


async def test_what_the_policy_refuses_is_a_result(runtime_with_default_session: WaypointRuntime) -> None:
    push = "git push git@example.com:x/y.git main"
    seen = await runtime_with_default_session.run_in_session(Action(command=push, check="silent"))
    assert (seen.exit_code, "approval" in seen.output) == (126, True)
    for command in (Command(command=push, shell=True), Command(command=push.split())):
        done = await runtime_with_default_session.execute(command)
        assert (done.exit_code, "approval" in done.stderr) == (126, True)


async def test_errors_of_files_and_programs_are_those_of_python(remote_runtime: WaypointRuntime) -> None:
    with pytest.raises(IsADirectoryError):
        await remote_runtime.read_file(ReadFileRequest(path="/srv"))
    with pytest.raises(FileNotFoundError):
        await remote_runtime.execute(Command(command=["no-such-program"]))
    with pytest.raises(FileNotFoundError):
        await remote_runtime.execute(Command(command=["true"], cwd="/no/such/folder"))


async def test_a_deployment_starts_a_session_and_removes_it(home: Home, tmp_path: Path) -> None:
    class Hook(DeploymentHook):
        def on_custom_step(self, message: str) -> None:
            steps.append(message)

    steps: list[str] = []
    deployment = WaypointDeploymentConfig(net="none").get_deployment()
    deployment.add_hook(Hook())
    with pytest.raises(DeploymentNotStartedError):
        await deployment.is_alive()
    await deployment.start()
    assert await deployment.is_alive()
    assert steps == ["Starting session"]
    runtime, name = deployment.runtime, deployment.session.name
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("c")
    for _ in range(2):  # the second time the folder is there
        await runtime.upload(UploadRequest(source_path=str(tmp_path / "a"), target_path="/srv/x/y"))
    assert (await runtime.read_file(ReadFileRequest(path="/srv/x/y/b/c"))).content == "c"
    await deployment.stop()
    await deployment.stop()
    assert not await runtime.is_alive()
    assert not [one for one in waypoint.sessions() if one.name == name or one.name.startswith(PREFIX)]


async def test_an_agent_breaks_its_machine_goes_back_and_succeeds(home: Home) -> None:
    deployment = WaypointDeployment(net="none")
    await deployment.start()
    runtime = deployment.runtime
    await runtime.create_session(CreateBashSessionRequest())
    await runtime.create_session(CreateBashSessionRequest(session="second"))
    await say(runtime, "mkdir /opt/app; cd /opt/app; step=1; sleep 1000 & echo $! > pid; echo x > data")
    await say(runtime, "step=1", session="second")
    point = await deployment.session.checkpoint("a server and its data")
    await say(runtime, "kill $(cat pid); rm -rf /opt/app /etc/apt; step=2")
    await say(runtime, "step=2", session="second")
    with pytest.raises(NonZeroExitCodeError):
        await say(runtime, "cat /opt/app/data")
    await deployment.session.restore(point)
    assert await say(runtime, "kill -0 $(cat pid) && cat data && echo $step && ls -d /etc/apt") == (
        "x\n1\n/etc/apt\n"
    )
    assert await say(runtime, "echo $step", session="second") == "1\n"
    await runtime.write_file(WriteFileRequest(path="answer", content="done"))
    assert await say(runtime, "cat answer") == "done"
    await runtime.run_in_session(BashInterruptAction())  # nothing runs: nothing happens
    await runtime.close_session(CloseBashSessionRequest(session="second"))
    assert (await runtime.execute(Command(command="ls -A /tmp/.waypoint-shell*", shell=True))).exit_code != 0
    await deployment.stop()
