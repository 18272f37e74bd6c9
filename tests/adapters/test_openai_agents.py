"""The adapter of the OpenAI Agents SDK in the real framework: snapshots, an agent that breaks its machine."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ScriptedModel, assistant_message, function_call

import waypoint
from waypoint.adapters.openai_agents import (
    PREFIX,
    MachinePoints,
    WaypointSandboxClient,
    WaypointSandboxClientOptions,
    machine_of,
)
from waypoint.adapters.settings import SessionConfig
from waypoint.home import Home

OPTIONS = WaypointSandboxClientOptions(machine=SessionConfig(net="none"))


@pytest.fixture(scope="module")
async def sandbox(home: Home) -> AsyncIterator[SandboxSession]:
    client = WaypointSandboxClient()
    manifest = Manifest(
        entries={"README": File(content=b"hello\n")}, environment={"value": {"GREETING": "hi"}}
    )
    options = OPTIONS.model_copy(update={"exposed_ports": (8123,)})
    session = await client.create(manifest=manifest, options=options)
    async with session:
        yield session
    await client.delete(session)
    await machine_of(session).remove()  # the tests took snapshots: it was only stopped
    assert not [one for one in waypoint.sessions() if one.name.startswith(PREFIX)]


async def test_commands_run_in_the_workspace_with_the_variables_of_the_manifest(
    sandbox: SandboxSession,
) -> None:
    done = await sandbox.exec("pwd; cat README; echo $GREETING; echo to-stderr >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == (b"/workspace\nhello\nhi\n", b"to-stderr\n", 3)
    assert (await sandbox.exec("id", "-un", shell=False, user="nobody")).stdout == b"nobody\n"
    assert (await sandbox.exec("no-such-program", shell=False)).exit_code == 127


async def test_a_command_that_hangs_is_ended(sandbox: SandboxSession) -> None:
    with pytest.raises(ExecTimeoutError):
        await sandbox.exec("exec sleep 1234", timeout=0.3)
    assert (await sandbox.exec("pgrep", "-f", "sleep 1234", shell=False)).stdout == b""


async def test_a_command_that_needs_approval_is_refused_in_words(sandbox: SandboxSession) -> None:
    refused = await sandbox.exec("git push git@example.com:x/y.git main")
    assert refused.exit_code == 126
    assert b"approval" in refused.stderr or b"policy" in refused.stderr


async def test_a_port_of_the_session_is_reached_from_this_machine(sandbox: SandboxSession) -> None:
    first, again = [await sandbox.resolve_exposed_port(8123) for _ in range(2)]
    assert first == again
    assert first.url_for("http").startswith("http://127.0.0.1:")
    with pytest.raises(ExposedPortUnavailableError):
        await sandbox.resolve_exposed_port(8124)


async def test_files_are_written_read_and_listed(sandbox: SandboxSession) -> None:
    await sandbox.write(Path("a/b.bin"), io.BytesIO(b"\x00\xff"))
    assert (await sandbox.read(Path("a/b.bin"))).read() == b"\x00\xff"
    assert [Path(entry.path).name for entry in await sandbox.ls("a")] == ["b.bin"]
    with pytest.raises(WorkspaceReadNotFoundError):
        await sandbox.read(Path("missing"))
    with pytest.raises(InvalidManifestPathError):
        await sandbox.read(Path("../etc/passwd"))
    await sandbox.exec("ln -s /etc/passwd leak")
    with pytest.raises(InvalidManifestPathError):
        await sandbox.read(Path("leak"))
    await sandbox.rm("a", recursive=True)


async def test_a_snapshot_is_a_reference_and_brings_processes_back(sandbox: SandboxSession) -> None:
    await sandbox.exec("sleep 4321 >/dev/null 2>&1 & echo $! >pid")
    snapshot = await sandbox.persist_workspace()
    content = snapshot.read()
    assert len(content) < 200, "not a tar"
    await sandbox.exec("kill $(cat pid); rm -rf /workspace/*")
    await sandbox.hydrate_workspace(io.BytesIO(content))
    assert (await sandbox.exec("kill -0 $(cat pid) && cat README")).stdout == b"hello\n"
    with pytest.raises(WorkspaceArchiveWriteError, match="no-such"):
        await sandbox.hydrate_workspace(io.BytesIO(content.replace(b'"point": "', b'"point": "no-such')))
    with pytest.raises(WorkspaceArchiveWriteError, match="cannot be read"):
        await sandbox.hydrate_workspace(io.BytesIO(content[:-3]))


async def test_what_must_not_be_kept_makes_the_snapshot_a_tar(home: Home) -> None:
    client = WaypointSandboxClient()
    manifest = Manifest(entries={"key": File(content=b"secret", ephemeral=True), "data": File(content=b"1")})
    session = await client.create(manifest=manifest, options=OPTIONS)
    async with session:
        content = (await session.persist_workspace()).read()
        assert b"secret" not in content
        await session.exec("rm data")
        await session.hydrate_workspace(io.BytesIO(content))
        assert (await session.exec("cat data")).stdout == b"1"
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.hydrate_workspace(io.BytesIO(b"no tar at all"))


async def test_a_session_that_is_gone_is_an_error_of_the_framework(home: Home) -> None:
    client = WaypointSandboxClient()
    session = await client.create(options=OPTIONS)
    await session.start()
    await machine_of(session).remove()
    assert not await session.running()
    with pytest.raises(ExecTransportError, match=machine_of(session).name):
        await session.exec("true")
    with pytest.raises(WaypointErrorOfTheFramework):
        await session.write(Path("x"), io.BytesIO(b""))
    await session.aclose()
    await client.delete(session)


WaypointErrorOfTheFramework = (WorkspaceArchiveWriteError, ExecTransportError)


def script(*steps: tuple[str, dict[str, Any]] | str) -> ScriptedModel:
    """A model that calls one tool after the other, and says a text at the end."""
    return ScriptedModel(
        [
            [assistant_message(step)]
            if isinstance(step, str)
            else [function_call(step[0], step[1], call_id=f"call-{number}")]
            for number, step in enumerate(steps)
        ]
    )


def names() -> set[str]:
    return {one.name for one in waypoint.sessions()}


def agent(model: ScriptedModel) -> SandboxAgent[Any]:
    return SandboxAgent(name="a", model=model, capabilities=[Shell(), Filesystem(), MachinePoints()])


async def test_an_agent_breaks_its_machine_goes_back_and_succeeds(home: Home, tmp_path: Path) -> None:
    before = names()
    client = WaypointSandboxClient()
    sandbox = SandboxRunConfig(client=client, options=OPTIONS, snapshot=LocalSnapshotSpec(base_path=tmp_path))
    model = script(
        ("exec_command", {"cmd": "echo precious >data; sleep 1000 >/dev/null 2>&1 & echo $! >/srv/pid"}),
        ("keep_point", {"label": "good"}),
        ("exec_command", {"cmd": "kill $(cat /srv/pid); rm -rf data /srv /usr/share/doc"}),
        ("exec_command", {"cmd": "cat data"}),
        ("go_back", {"label": "no-such-point"}),
        ("go_back", {"label": "good"}),
        ("exec_command", {"cmd": "cat data; kill -0 $(cat /srv/pid) && echo alive"}),
        "done",
    )
    config = RunConfig(sandbox=sandbox, tracing_disabled=True)
    result = await Runner.run(agent(model), "break it", run_config=config, max_turns=20)
    assert result.final_output == "done"
    shown = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "No such file" in shown[3], "the machine was broken"
    assert shown[4] == "No point 'no-such-point' was kept. Kept: 'good'."
    assert "precious\nalive" in shown[6]
    (name,) = names() - before
    left = waypoint.Client().session(name)
    assert left.info.state == "stopped", "the snapshot needs its points"

    # A later run goes on where it was: with the process that the first has started.
    kept = result.to_state()._sandbox["session_state"]
    state = client.deserialize_session_state(dict(kept))
    again = script(("exec_command", {"cmd": "cat data; kill -0 $(cat /srv/pid) && echo alive"}), "done")
    config = RunConfig(sandbox=SandboxRunConfig(client=client, session_state=state), tracing_disabled=True)
    result = await Runner.run(agent(again), "go on", run_config=config)
    shown = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "precious\nalive" in shown[0]
    left.remove()


async def test_a_snapshot_of_another_session_is_forked(sandbox: SandboxSession, tmp_path: Path) -> None:
    await sandbox.exec("echo forked >here")
    content = (await sandbox.persist_workspace()).read()
    client = WaypointSandboxClient()
    other = await client.create(options=OPTIONS)
    before = names()
    async with other:
        first = machine_of(other).name
        await other.hydrate_workspace(io.BytesIO(content))
        assert machine_of(other).name not in {first, machine_of(sandbox).name}
        await other.exec("echo changed >here")
        assert (await other.exec("cat here")).stdout == b"changed\n"
        assert (await sandbox.exec("cat here")).stdout == b"forked\n"
    assert names() == before - {first}, "the fork is not needed by the snapshot"
