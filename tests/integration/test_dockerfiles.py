"""Bases from Dockerfiles: carried out in a session, with a point after each step, which serves the next."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_base_image import image_folder

import waypoint
from waypoint import errors
from waypoint.home import Home

Build = Callable[..., list[str]]


@pytest.fixture(scope="module")
def small(home: Home, make_root: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base with bash and little else."""
    folder = tmp_path_factory.mktemp("small") / "root"
    make_root(folder)
    (folder / "bin/sh").symlink_to("bash")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\napp:x:1000:1000::/srv:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\nstaff:x:50:app\n")
    waypoint.Client().bases.import_("small", folder)
    return "small"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    return folder


@pytest.fixture
def build(home: Home, small: str, context: Path) -> Iterator[Build]:
    """Imports a Dockerfile with this text as the base `app`; returns what was said about its steps. Nothing
    of it is left after the test."""
    client = waypoint.Client()

    def run(text: str, name: str = "app", **more: Any) -> list[str]:
        if name in [base.name for base in client.bases.list()]:
            client.bases.remove(name)
        (context / "Dockerfile").write_text(text)
        heard: list[str] = []
        client.bases.import_(name, context / "Dockerfile", on_progress=heard.append, **more)
        return [said for said in heard if said.startswith("step ")]

    yield run
    if names := [one.name for one in waypoint.sessions()]:
        client.call("rm", {"sessions": names})
    for base in client.bases.list():
        if base.name != small:
            client.bases.remove(base.name)


def look(*commands: str, base: str = "app") -> list[str]:
    """What commands print in a session over a base."""
    with waypoint.session("look", base=base, net="none", temporary=True) as session:
        return [session.run(command).output.rstrip("\n") for command in commands]


def test_a_file_is_carried_out_and_becomes_a_base(build: Build, context: Path) -> None:
    (context / "hello.txt").write_text("hello\n")
    (context / "tree/inner").mkdir(parents=True)
    (context / "tree/inner/deep").write_text("deep")
    (context / "tree/link").symlink_to("inner/deep")
    (context / "tree/secret.log").write_text("x")
    (context / ".dockerignore").write_text("# no logs\n**/*.log\n")
    steps = build(
        """
        # syntax=docker/dockerfile:1
        ARG FROM_BASE=small
        FROM ${FROM_BASE} AS only
        ARG VERSION
        ENV GREETING="good morning" \\
            # a comment in the middle
            PLACE=$VERSION/x
        LABEL maintainer=me
        WORKDIR /srv
        WORKDIR app
        RUN echo "$GREETING $VERSION $(pwd)" > said && \\
            rm /etc/group && mkdir -p /opt/a
        COPY hello.txt .
        COPY --chown=app:50 --chmod=750 hello.txt /opt/renamed
        COPY tree /opt/tree/
        RUN ["/bin/bash", "-c", "echo $0", "exec form"]
        SHELL ["/bin/bash", "-ec"]
        RUN [[ -e said ]] && ln hello.txt again
        EXPOSE 80 53/udp
        RUN chown app /srv/app
        USER app
        RUN echo "$EUID:$GROUPS $HOME" > who
        ENTRYPOINT ["/bin/serve"]
        CMD ["--now"]
        """,
        arguments={"VERSION": "7"},
    )
    assert [step.split(":")[0] for step in steps] == [f"step {n} of 10" for n in range(1, 11)]
    base = waypoint.Client().bases.info("app")
    assert (base.format, base.source, base.warnings) == ("dockerfile", "Dockerfile", ())
    assert base.image == waypoint.ImageConfig(
        env={"GREETING": "good morning", "PLACE": "7/x"},
        user="app",
        workdir="/srv/app",
        entrypoint=("/bin/serve",),
        command=("--now",),
        ports=("80/tcp", "53/udp"),
        labels={"maintainer": "me"},
    )
    assert look(
        "cat /srv/app/said /srv/app/hello.txt",
        "echo $(ls /etc)",
        "stat -c '%u:%g %a' /opt/renamed /opt/tree",
        "cat /opt/tree/link; echo '' $(ls /opt/tree)",
        "stat -c %h /srv/app/hello.txt",
        "cat /srv/app/who; stat -c %U /srv/app/who; pwd; echo $USER $PLACE; type -p waypoint",
    ) == [
        "good morning 7 /srv/app\nhello",
        "hostname hosts passwd",
        "1000:50 750\n0:0 755",
        "deep inner link",
        "2",
        "1000:1000 /srv\napp\n/srv/app\napp 7/x\n/dev/waypoint/bin/inside/waypoint",
    ]
    assert waypoint.Client().session("build-app").info.state == "stopped"
    names = [point.info.intent for point in waypoint.Client().session("build-app").log()]
    assert "COPY hello.txt ." in names


def test_an_unchanged_file_does_no_step_again_and_a_change_goes_on_from_there(
    build: Build, context: Path
) -> None:
    (context / "data").write_text("1")
    text = "FROM small\nRUN echo a >> /log\nCOPY data /data\nRUN cat /data >> /log\nLABEL a=%s\n"
    done = [f"step {n} of 3" for n in (1, 2, 3)]
    kept = [f"step {n} of 3 was done before" for n in (1, 2, 3)]

    def starts(steps: list[str]) -> list[str]:
        return [step.split(":")[0] for step in steps]

    assert starts(build(text % 1)) == done
    os.utime(context / "data", (1, 1))
    assert starts(build(text % 2)) == kept
    assert starts(build(text % 2, name="other")) == kept
    assert waypoint.Client().bases.info("app").image.labels == {"a": "2"}
    (context / "data").write_text("2")
    assert starts(build(text % 2)) == [*kept[:1], *done[1:]]
    assert look("cat /log", "cat /log") == ["a\n2"] * 2
    assert look("cat /log", base="other") == ["a\n1"]
    (context / "data").write_text("1")
    assert starts(build(text % 2)) == kept  # the points of before are still there
    longer = text + "RUN echo b >> /log\n"
    assert starts(build(longer % 2, name="third")) == [
        *(f"step {n} of 4 was done before" for n in (1, 2, 3)),
        "step 4 of 4",
    ]
    assert look("cat /log", base="third") == ["a\n1b"]


def test_a_step_that_fails_says_where_and_leaves_its_session_to_be_looked_at(build: Build) -> None:
    text = "FROM small\nRUN echo kept > /kept\n\nRUN echo half > /half; echo the reason >&2; %s\n"
    with pytest.raises(
        errors.CommandFailed, match=r"line 4: .* ended with exit code 3:\nthe reason"
    ) as failed:
        build(text % "exit 3")
    assert "build-app" in failed.value.hint
    session = waypoint.Client().session("build-app")
    assert session.run("cat /kept /half").output == "kept\nhalf\n"
    steps = build(text % "true")
    assert steps[0].startswith("step 1 of 2 was done before")
    assert look("cat /kept /half") == ["kept\nhalf"]


def test_what_a_command_leaves_running_has_ended_before_the_next(build: Build) -> None:
    build("FROM small\nRUN (sleep 100 &) ; echo started\nRUN grep -ls sleep /proc/*/comm > /left || true\n")
    assert look("cat /left") == [""]


def test_a_base_of_nothing_but_copied_files(home: Home, build: Build, context: Path) -> None:
    """`FROM scratch`, an archive that ADD unpacks, and RUN where there is no bash yet."""
    root = home.path / "pool/bases/small/files"
    with tarfile.open(context / "root.tar.gz", "w:gz") as tar:
        tar.add(root, ".")
    (context / "plain").write_text("not unpacked by COPY")
    build("FROM scratch\nADD root.tar.gz /\nCOPY root.tar.gz plain /kept/\nRUN echo it runs > /proof\n")
    assert look("cat /proof", "echo $(ls /kept)") == ["it runs", "plain root.tar.gz"]
    with pytest.raises(errors.NotFound, match="cannot start '/bin/sh'"):
        build("FROM scratch\nCOPY plain /\nRUN true\n", name="bare")
    build("FROM scratch\nCOPY plain /\n", name="bare")
    assert "no /bin/bash" in waypoint.Client().bases.info("bare").warnings[0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("FROM debian:12\n", "line 1: there is no base 'debian:12', and no registry is asked"),
        ("# nothing\nARG A\n", "it has no FROM"),
        ("FROM small\nFROM small\n", "line 2: a second FROM"),
        ("FROM small\nRUN --mount=type=cache,target=/x true\n", "line 2: RUN --mount is not supported"),
        ("FROM small\n\nCOPY --from=other a b\n", "line 3: COPY --from is not supported"),
        ("FROM small\nHEALTHCHECK CMD true\n", "line 2: HEALTHCHECK is not supported"),
        ("FROM small\nVOLUME /data\n", "line 2: VOLUME is not supported"),
        (
            "FROM small\nADD https://example.org/x /x\n",
            "line 2: ADD of https://example.org/x is not supported",
        ),
        ("FROM small\nRUN <<EOF\ntrue\nEOF\n", "line 2: here-documents"),
        ("FROM small\nCOPY missing /\n", "line 2: there is no missing in the context"),
        ("FROM small\nCOPY ../../../etc/shadow /\n", "line 2: there is no ../../../etc/shadow"),
        ("FROM small\nCOPY leads/shadow /\n", "line 2: there is no leads/shadow"),
        ("FROM small\nFORM x\n", "line 2: there is no instruction 'FORM'"),
        ("FROM small\nENV A\n", "line 2: ENV A has no value"),
        ("FROM small\nCOPY --chown=nobody . /\n", "line 2: there is no user 'nobody' in the session"),
        ("FROM small\nRUN echo ${BROKEN\nENV A=${BROKEN\n", "line 3: "),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_line(
    build: Build, context: Path, text: str, error: str
) -> None:
    (context / "leads").symlink_to("/etc")
    with pytest.raises(errors.WaypointError) as refused:
        build(text)
    assert error in refused.value.message
    assert refused.value.hint
    assert "app" not in [base.name for base in waypoint.Client().bases.list()]


def test_what_a_hostile_folder_says_to_ignore_keeps_nothing_waiting(build: Build, context: Path) -> None:
    said = context / ".dockerignore"
    (context / "here").touch()
    os.mkfifo(said)
    with pytest.raises(errors.WaypointError, match="dockerignore"):
        build("FROM small\nCOPY here /\n")
    said.unlink()
    said.symlink_to("/dev/zero")  # in the folder, where there is none
    assert build("FROM small\nCOPY here /\n")
    said.unlink()
    with said.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(errors.UsageError, match="too large"):
        build("FROM small\nCOPY here /\n")


def test_a_session_of_the_same_name_is_not_touched(
    build: Build, sessions: Callable[..., waypoint.Session]
) -> None:
    own = sessions("build-app", base="small", net="none")
    own.run("echo mine > /mine").check()
    with pytest.raises(errors.UsageError, match="builds no base"):
        build("FROM small\nRUN true\n")
    assert own.run("cat /mine").output == "mine\n"


def test_the_command_line_builds_and_the_policy_holds(
    home: Home, build: Build, context: Path, wp: Callable[..., Any]
) -> None:
    (context / "Other").write_text("FROM small\nARG A=1\nRUN echo $A > /a\n")
    done = wp("base", "import", "cli", str(context / "Other"), "--arg", "A=2", check=True)
    assert done.out == "cli\n"
    assert look("cat /a", base="cli") == ["2"]
    assert wp("base", "import", "x", str(context / "Other"), "--arg", "B=2").code == 2
    (context / "Other").write_text("FROM small\nRUN git push origin topic\n")
    policy = home.path / "policy.toml"
    policy.write_text('[decisions]\nirreversible = "deny"\nexternal-reversible = "deny"\n')
    try:
        refused = wp("base", "import", "pushed", str(context / "Other"))
        assert "the policy does not let this run" in refused.err
    finally:
        policy.unlink()


def test_a_file_begins_with_an_oci_image_in_its_context(home: Home, build: Build, context: Path) -> None:
    root = home.path / "pool/bases/small/files"
    image_folder(root, context / "image", {"Env": ["FROM_IMAGE=yes"], "WorkingDir": "/srv"})
    build("FROM ./image\nRUN echo $FROM_IMAGE > here\n")
    assert look("cat /srv/here") == ["yes"]
    assert waypoint.Client().bases.info("app").image.workdir == "/srv"
    steps = build("FROM ./image\nRUN echo $FROM_IMAGE > here\n", name="again")
    assert [step.split(":")[0] for step in steps] == ["step 1 of 1 was done before"]
