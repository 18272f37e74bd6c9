"""The adapter of deepagents: LangChain's suite for sandboxes, and an agent with its fake model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends.protocol import FileDownloadResponse, FileUploadResponse
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

import waypoint
from waypoint.adapters.deepagents import PREFIX, WaypointBackend, machine_tools
from waypoint.home import Home

GLOB = (
    "deepagents 0.7 answers with absolute paths of files alone, the suite expects relative ones and folders"
)
CANNOT_PASS = {
    "test_write_existing_file_fails": "deepagents 0.7 replaces a file, the suite expects an error",
    "test_glob": GLOB,
    "test_glob_basic_pattern": GLOB,
    "test_glob_with_directories": GLOB,
    "test_glob_hidden_files_explicitly": GLOB,
    "test_glob_with_character_class": GLOB,
    "test_glob_with_question_mark": GLOB,
}
"""What fails in the same way with deepagents' own BaseSandbox over a plain subprocess."""


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(home: Home, loop_threads: None) -> Iterator[None]:
    yield
    assert waypoint.sessions() == []


class TestSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, home: Home) -> Iterator[WaypointBackend]:
        with WaypointBackend(net="none") as backend:
            backend.execute("ln -s /usr/bin/python3 /usr/local/bin/python")  # the suite runs `python`
            yield backend

    @pytest.fixture(autouse=True)
    def expected(self, request: pytest.FixtureRequest) -> None:
        if reason := CANNOT_PASS.get(request.node.originalname):
            request.applymarker(pytest.mark.xfail(strict=True, reason=reason))


def test_files_are_read_and_written_as_far_as_the_session_s_user_may(home: Home) -> None:
    with WaypointBackend(net="none", user="nobody") as backend:
        assert backend.upload_files([("/srv/mine", b""), ("/tmp/a/b", b"mine")]) == [
            FileUploadResponse("/srv/mine", error="permission_denied"),
            FileUploadResponse("/tmp/a/b"),
        ]
        backend.execute("chmod 000 /tmp/a/b")
        assert backend.download_files(["/tmp/a/b", "/etc/shadow", "/tmp/a/c"]) == [
            FileDownloadResponse("/tmp/a/b", error="permission_denied"),
            FileDownloadResponse("/etc/shadow", error="permission_denied"),
            FileDownloadResponse("/tmp/a/c", error="file_not_found"),
        ]
        assert backend.execute("stat -c %U /tmp/a/b").output == "nobody\n"


def test_what_the_policy_refuses_and_what_takes_too_long_is_a_result(home: Home) -> None:
    with WaypointBackend(net="none", timeout=1, folder="/srv") as backend:
        assert backend.id.startswith(PREFIX)
        refused = backend.execute("git push git@example.com:x/y.git main")
        assert (refused.exit_code, "approval" in refused.output) == (126, True)
        late = backend.execute("pwd; sleep 1001")
        assert (late.exit_code, late.output.startswith("/srv\nError: ")) == (124, True)
        assert backend.download_files(["/srv", "/etc/hostname/x"]) == [
            FileDownloadResponse("/srv", error="is_directory"),
            FileDownloadResponse("/etc/hostname/x", error="invalid_path"),
        ]
        assert backend.upload_files([("/etc/hostname/x", b"")]) == [
            FileUploadResponse("/etc/hostname/x", error="invalid_path")
        ]


class Model(GenericFakeChatModel):
    """LangChain's fake model, which says what it is given whatever tools it has."""

    def bind_tools(self, tools: Any, **options: Any) -> Model:
        return self


def test_an_agent_breaks_its_machine_goes_back_and_succeeds(home: Home) -> None:
    calls = [
        ("execute", {"command": "mkdir /opt/app; cd /opt/app; echo x > data; sleep 1000 & echo $! > pid"}),
        ("keep_point", {"label": "it runs"}),
        ("execute", {"command": "kill $(cat /opt/app/pid); rm -rf /opt/app /etc/apt"}),
        ("read_file", {"file_path": "/opt/app/data"}),
        ("go_back", {"label": "it worked"}),
        ("go_back", {"label": "it runs"}),
        ("execute", {"command": "kill -0 $(cat /opt/app/pid) && ls -d /etc/apt"}),
        ("edit_file", {"file_path": "/opt/app/data", "old_string": "x", "new_string": "y"}),
    ]
    said = [
        AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{number}"}])
        for number, (name, arguments) in enumerate(calls)
    ]
    with WaypointBackend(net="none") as backend:
        agent = create_deep_agent(
            model=Model(messages=iter([*said, AIMessage("done")])),
            tools=machine_tools(backend),
            backend=backend,
        )
        done = agent.invoke({"messages": [("user", "break it")]})["messages"]
        assert done[-1].content == "done"
        shown = [str(message.content) for message in done if isinstance(message, ToolMessage)]
        assert "file_not_found" in shown[3], "the machine was broken"
        assert shown[4] == "No point 'it worked' was kept. Kept: 'it runs'."
        assert "as it was" in shown[5]
        assert "/etc/apt" in shown[6], "process and files are back"
        assert backend.session.read_text("/opt/app/data") == "y\n"
