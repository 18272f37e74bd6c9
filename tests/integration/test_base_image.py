"""What an image says about its programs: kept with the base, and taken by sessions over it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import waypoint
from waypoint import errors
from waypoint.home import Home


def image_folder(root: Path, folder: Path, config: dict[str, Any]) -> Path:
    """An OCI image layout with this root file system as its only layer."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> dict[str, Any]:
        digest = sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(root, ".")
    manifest = {
        "config": put(json.dumps({"os": "linux", "config": config}).encode()),
        "layers": [put(layer.getvalue())],
    }
    index = {"schemaVersion": 2, "manifests": [put(json.dumps(manifest).encode())]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


@pytest.fixture(scope="module")
def image(home: Home, make_root: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base that was imported from an image."""
    folder = tmp_path_factory.mktemp("image")
    make_root(folder / "root")
    (folder / "root/srv/app").mkdir(parents=True)
    (folder / "root/opt/bin").mkdir(parents=True)
    (folder / "root/etc/passwd").write_text("root:x:0:0::/root:/bin/bash\napp:x:1000:1000::/srv:/bin/bash\n")
    config = {
        "Env": [
            "PATH=/opt/bin:/bin",
            "GREETING=good morning",
            "API_TOKEN=ghp_0123456789abcdefABCDEF0123456789abcd",
        ],
        "WorkingDir": "/srv/app",
        "User": "app",
        "Cmd": ["bash", "-l"],
    }
    path = image_folder(folder / "root", folder / "image", config)
    return waypoint.Client().bases.import_("image", path).name


def test_what_an_image_says_is_shown_without_its_secrets(image: str, wp: Callable[..., Any]) -> None:
    shown = wp("base", "info", image, check=True).out
    assert "variable  GREETING=good morning\n" in shown
    assert "folder    /srv/app\n" in shown
    assert "user      app\n" in shown
    assert "command   bash -l\n" in shown
    assert "ghp_0123" not in shown + wp("base", "ls", "--json", check=True).out
    assert "API_TOKEN" in shown
    assert "as app, in /srv/app, 3 variables" in wp("base", "ls", check=True).out
    assert wp("base", "info", "nothing").code == 4


def test_info_names_the_sessions_over_a_base(
    image: str, wp: Callable[..., Any], sessions: Callable[..., Any]
) -> None:
    assert wp("base", "info", image, "--json", check=True).json["sessions"] == []
    sessions("over", base=image, net="none")
    assert wp("base", "info", image, "--json", check=True).json["sessions"] == ["over"]


def test_a_session_over_an_image_starts_as_the_image_says(
    image: str, sessions: Callable[..., waypoint.Session]
) -> None:
    session = sessions("app", base=image, net="none")
    said = "echo $UID; pwd; echo $HOME $GREETING $PATH"
    own = "1000\n/srv/app\n/srv good morning /dev/waypoint/bin/inside:/opt/bin:/bin\n"
    assert session.run(said).output == own
    assert session.spawn(["/bin/bash", "-c", said], shell_env=False).communicate()[0] == own.encode()
    session.run("cd /; exit")
    assert session.run("echo $GREETING").output == "good morning\n"
    [fork] = session.checkpoint().fork(1)
    assert fork.run(said).output.startswith("1000\n")
    names = [one.run("cat /proc/sys/kernel/hostname").output.strip() for one in (session, fork)]
    assert names == ["app", fork.name]
    other = sessions("root", base=image, net="none", user="root", env={"GREETING": "hello"}, cwd="/etc")
    assert other.run(said).output == ("0\n/etc\n/root hello /dev/waypoint/bin/inside:/opt/bin:/bin\n")
    with pytest.raises(errors.NotFound, match="no folder /nowhere"):
        sessions("lost", base=image, net="none", cwd="/nowhere")
