"""The adapter of Harbor in the real framework: its own agents, and an agent that breaks its machine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, SandboxBuildFailedError
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import EnvironmentConfig as TaskEnvironment
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.paths import TrialPaths
from harbor.trial.trial import Trial

import waypoint
from waypoint.adapters.harbor import PREFIX, WaypointEnvironment
from waypoint.home import Home

HERE = "waypoint.adapters.harbor:WaypointEnvironment"
SOLVED = """
[ "$(cat /srv/data)" = precious ] && kill -0 $(cat /srv/pid) && reward=1
echo ${reward:-0} >/logs/verifier/reward.txt
"""
SOLVE = """#!/bin/bash
echo precious >/srv/data
sleep 1000 >/dev/null 2>&1 &
echo $! >/srv/pid
"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_TELEMETRY", "0")


def environment(tmp_path: Path, *, docker_image: str | None = None, **options: Any) -> WaypointEnvironment:
    folder = tmp_path / "environment"
    folder.mkdir(exist_ok=True)
    paths = TrialPaths(tmp_path / "trial")
    paths.mkdir()
    config = TaskEnvironment(docker_image=docker_image, workdir="/app", memory_mb=512, cpus=1)
    return WaypointEnvironment(folder, "task", "task__1__env", paths, config, **options)


@pytest.fixture(scope="module")
async def started(home: Home, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WaypointEnvironment]:
    policy = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    made = environment(
        tmp_path_factory.mktemp("started"), base="/", network_policy=policy, persistent_env={"GREETING": "hi"}
    )
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)
    assert waypoint.sessions() == []


async def test_commands_run_with_the_folder_variables_and_user_of_the_task(
    started: WaypointEnvironment,
) -> None:
    done = await started.exec("pwd; echo $GREETING $MORE; echo to-stderr >&2; exit 3", env={"MORE": "there"})
    assert (done.stdout, done.stderr, done.return_code) == ("/app\nhi there\n", "to-stderr\n", 3)
    with started.with_default_user("nobody"):
        assert (await started.exec("id -un")).stdout == "nobody\n"
        assert (await started.exec("id -u", user=0)).stdout == "0\n"
    assert (await started.exec("true", cwd="/no/such/folder")).return_code == 127
    options = (await started.session.info).options
    assert (options.net, options.memory_bytes, options.cpus) == ("none", 512 << 20, 1)


async def test_a_command_that_hangs_is_ended(started: WaypointEnvironment) -> None:
    with pytest.raises(RuntimeError, match="timed out after 1 s"):
        await started.exec("exec sleep 1234", timeout_sec=1)
    assert (await started.exec("pgrep -f 'sleep 123[4]'")).stdout == ""


async def test_a_command_that_needs_approval_is_refused_in_words(started: WaypointEnvironment) -> None:
    refused = await started.exec("git push git@example.com:x/y.git main")
    assert refused.return_code == 126
    assert "approval" in refused.stderr or "policy" in refused.stderr


async def test_files_and_folders_go_in_and_out(started: WaypointEnvironment, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "below").mkdir(parents=True)
    (source / "below" / "file").write_bytes(b"\x00\xff")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    await started.upload_dir(source, "/solution/new")
    assert await started.is_file("/solution/new/below/file")
    assert (await started.exec("/solution/new/run.sh")).stdout == "ran\n"
    await started.upload_file(source / "run.sh", "/made/on/the/way/run.sh")
    assert (await started.exec("/made/on/the/way/run.sh")).stdout == "ran\n"
    await started.download_dir("/solution/new", tmp_path / "out")
    assert (tmp_path / "out" / "below" / "file").read_bytes() == b"\x00\xff"
    await started.download_file("/solution/new/below/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"\x00\xff"
    with pytest.raises(FileNotFoundError):
        await started.download_file("/no/such/file", tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        await started.upload_file(tmp_path / "missing", "/x")
    await started.exec("ln -s /etc/passwd /solution/new/leak")
    with pytest.raises(Exception, match="leak"):
        await started.download_dir("/solution/new", tmp_path / "out")
    assert "leak" not in os.listdir(tmp_path / "out")


async def test_an_environment_that_is_not_there_is_an_error_of_the_framework(
    home: Home, tmp_path: Path
) -> None:
    made = environment(tmp_path, base="/")
    with pytest.raises(RuntimeError, match="not been started"):
        await made.exec("true")
    await made.start(force_build=False)
    name = made.session.name
    await made.session.remove()
    for call in (
        made.exec("true"),
        made.upload_file(__file__, "/x"),
        made.download_file("/x", tmp_path / "x"),
    ):
        with pytest.raises(RuntimeError, match=name):
            await call
    await made.stop(delete=True)


async def test_an_image_that_is_no_base_is_named_with_what_to_do(home: Home, tmp_path: Path) -> None:
    made = environment(tmp_path, docker_image="ghcr.io/Org/task:1.2")
    with pytest.raises(SandboxBuildFailedError, match=r"import_\(\"ghcr\.io-org-task-1\.2\", file\)"):
        await made.start(force_build=False)
    with pytest.raises(FileNotFoundError, match="no environment definition"):
        environment(tmp_path)
    (tmp_path / "environment" / "docker-compose.yaml").touch()
    with pytest.raises(ValueError, match=r"docker-compose\.yaml"):
        environment(tmp_path, base="/")


async def test_a_dockerfile_is_carried_out_once_and_kept_as_a_base(home: Home, tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "Dockerfile").write_text("FROM scratch\nCOPY note /note\n")
    (tmp_path / "environment" / "note").write_text("of the image")
    made = environment(tmp_path)
    base = await made._base_of_task(force_build=False)
    assert base.startswith(PREFIX)
    assert await made._base_of_task(force_build=False) == base
    bases = waypoint.Client().bases
    assert [one.name for one in bases.list()] == [base]
    bases.remove(base)
    (tmp_path / "environment" / "Dockerfile").write_text("FROM no-such-base\n")
    with pytest.raises(SandboxBuildFailedError, match="no-such-base"):
        await environment(tmp_path)._base_of_task(force_build=False)


class Breaker(BaseAgent):
    """An agent that breaks its machine, sees it, and goes back."""

    @staticmethod
    def name() -> str:
        return "breaker"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        await environment.exec(SOLVE)

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        assert isinstance(environment, WaypointEnvironment)
        point = await environment.session.checkpoint("before it is broken")
        await environment.exec("kill $(cat /srv/pid); rm -rf /srv /usr/share/doc")
        broken = await environment.exec("cat /srv/data")
        assert "No such file" in (broken.stderr or "")
        await environment.session.restore(point)


@pytest.mark.parametrize(
    ("agent", "reward"),
    [
        (AgentConfig(name="nop"), 0.0),
        (AgentConfig(name="oracle"), 1.0),
        (AgentConfig(import_path=f"{__name__}:Breaker"), 1.0),
    ],
    ids=["nop", "oracle", "breaks its machine and goes back"],
)
async def test_a_trial_with(home: Home, tmp_path: Path, agent: AgentConfig, reward: float) -> None:
    task = tmp_path / "task"
    for folder in ("environment", "solution", "tests"):
        (task / folder).mkdir(parents=True)
    (task / "instruction.md").write_text("Keep it.")
    (task / "task.toml").write_text('schema_version = "1.4"\n[environment]\ndocker_image = "none"\n')
    (task / "solution" / "solve.sh").write_text(SOLVE)
    (task / "tests" / "test.sh").write_text(SOLVED)
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=tmp_path / "trials",
        agent=agent,
        environment=EnvironmentConfig(import_path=HERE, kwargs={"base": "/"}),
    )
    before = len(waypoint.sessions())
    result = await (await Trial.create(config)).run()
    assert result.exception_info is None, result.exception_info
    assert result.verifier_result
    assert result.verifier_result.rewards == {"reward": reward}
    assert len(waypoint.sessions()) == before
