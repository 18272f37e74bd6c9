"""Bases from archives that the tests build themselves, honest ones and hostile ones, in real pools."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import importlib
import io
import json
import lzma
import os
import random
import shutil
import stat
import subprocess
import tarfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from waypoint.bases import images, store
from waypoint.bases.store import base_path, import_base, list_bases, remove_base
from waypoint.errors import AlreadyExists, InvalidName, NoSpace, NotFound, UsageError, WaypointError
from waypoint.kernel.pool.holders import pool_holders
from waypoint.kernel.pool.lifecycle import close_pool, open_pool
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import ImageConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a base keeps its owners, which needs root")

MIB = 1 << 20
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
MTIME = "1600000000.123456789"


@pytest.fixture(params=["btrfs", "copy"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pool]:
    """A pool of its own for each test; fails it when it leaves something half-made behind."""
    home = tmp_path / "home"
    found = open_pool(home, size_bytes=300 * MIB, kind=request.param)
    yield found
    assert os.listdir(found.root / "staging") == []
    assert os.listdir(found.root / ".scratch") == []
    assert close_pool(home), pool_holders(home)
    deadline = time.monotonic() + 5
    while str(home) in Path("/proc/self/mountinfo").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert str(home) not in Path("/proc/self/mountinfo").read_text()
    shutil.rmtree(home)


# ---- building archives --------------------------------------------------------------------------


class Archive:
    """A tar under construction."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)

    def add(
        self, name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, **details: Any
    ) -> Archive:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
        member.size = len(content)
        for key, value in details.items():
            setattr(member, key, value)
        self._tar.addfile(member, io.BytesIO(content))
        return self

    def folder(self, name: str, **details: Any) -> Archive:
        return self.add(name, kind=tarfile.DIRTYPE, **details)

    def symlink(self, name: str, to: str) -> Archive:
        return self.add(name, kind=tarfile.SYMTYPE, linkname=to)

    def hardlink(self, name: str, to: str) -> Archive:
        return self.add(name, kind=tarfile.LNKTYPE, linkname=to)

    def bytes(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def small_root() -> Archive:
    return (
        Archive()
        .folder("./")
        .folder("./bin")
        .add("./bin/bash", b"#!", mode=0o755)
        .folder("./etc")
        .add("./etc/hostname", b"box\n")
    )


def saved(tmp_path: Path, content: bytes, name: str = "archive.tar") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def zstd(content: bytes) -> bytes:
    found: bytes = importlib.import_module("zstandard").ZstdCompressor().compress(content)
    return found


class Image:
    """An OCI image layout under construction."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, content: Any, kind: str = "", **more: Any) -> dict[str, Any]:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.blobs[sha256(data)] = data
        return {"mediaType": kind, "digest": sha256(data), "size": len(data), **more}

    def manifest(
        self, *parts: bytes, machine: str | None = None, config: Any = None, **more: Any
    ) -> dict[str, Any]:
        about = {"architecture": machine or images.machine(), "os": "linux", "rootfs": {}}
        kind = "application/vnd.oci.image.manifest.v1+json"
        layer = "application/vnd.oci.image.layer.v1.tar+gzip"
        said = {
            "config": self.put({**about, "config": config}),
            "layers": [self.put(part, layer) for part in parts],
        }
        return self.put({"schemaVersion": 2, "mediaType": kind, **said}, kind, **more)

    def index(self, *descriptors: dict[str, Any]) -> dict[str, Any]:
        kind = "application/vnd.oci.image.index.v1+json"
        return {"schemaVersion": 2, "mediaType": kind, "manifests": list(descriptors)}

    def archive(self, *descriptors: dict[str, Any], root: str = "") -> bytes:
        made = Archive()
        if root:
            made.folder(root)
        made.folder(f"{root}blobs").folder(f"{root}blobs/sha256")
        for digest, data in self.blobs.items():
            made.add(f"{root}blobs/{digest.replace(':', '/')}", data)
        made.add(f"{root}index.json", json.dumps(self.index(*descriptors)).encode())
        return made.add(f"{root}oci-layout", b'{"imageLayoutVersion": "1.0.0"}').bytes()

    def folder(self, at: Path, *descriptors: dict[str, Any]) -> Path:
        """The same unpacked, as `skopeo copy … oci:FOLDER` writes it."""
        with tarfile.open(fileobj=io.BytesIO(self.archive(*descriptors))) as tar:
            tar.extractall(at, filter="data")
        return at


LOWER = (
    small_root()
    .folder("usr")
    .folder("usr/lib")
    .symlink("lib", "usr/lib")
    .add("usr/lib/old.so", b"old")
    .folder("opt")
    .add("opt/gone", b"")
    .add("opt/stays", b"")
    .folder("opaque")
    .add("opaque/hidden", b"")
    .folder("opaque/inner")
    .add("opaque/inner/hidden", b"")
    .bytes()
)
UPPER = (
    Archive()
    .add("lib/new.so", b"through the link")
    .add("opt/.wh.gone")
    .add("opaque/fresh", b"")
    .folder("opaque/inner")
    .add("opaque/inner/fresh", b"")
    .add("opaque/.wh..wh..opq")
    .add("etc/hostname", b"upper\n")
    .bytes()
)


def check_layers(root: Path) -> None:
    assert (root / "usr/lib/new.so").read_bytes() == b"through the link"
    assert (root / "lib").is_symlink()
    assert os.listdir(root / "opt") == ["stays"]
    assert sorted(os.listdir(root / "opaque")) == ["fresh", "inner"]
    assert os.listdir(root / "opaque/inner") == ["fresh"]
    assert (root / "etc/hostname").read_text() == "upper\n"
    assert (root / "bin/bash").exists()


# ---- honest archives ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compress",
    [bytes, gzip.compress, lzma.compress, bz2.compress, zstd],
    ids=["tar", "gz", "xz", "bz2", "zst"],
)
def test_a_tar_is_imported_whatever_it_is_compressed_with_and_called(
    pool: Pool, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    if compress is zstd:
        pytest.importorskip("zstandard")
    file = saved(tmp_path, compress(small_root().bytes()), "misleading.zip")
    heard: list[str] = []
    base = import_base(pool, "box", str(file), heard.append)
    root = base_path(pool, "box")
    assert (root / "etc/hostname").read_text() == "box\n"
    assert pool.is_readonly(root)
    assert base.digest == sha256(file.read_bytes())
    assert (base.name, base.format, base.source, base.file_count) == ("box", "tar", "misleading.zip", 2)
    assert base.size_bytes == len("#!") + len("box\n")
    assert base.warnings == ()
    assert list_bases(pool) == [base]
    assert json.loads((root.parent / "base.json").read_text())["digest"] == base.digest
    assert any("misleading.zip" in said for said in heard)


def test_several_compressed_streams_in_one_file_are_one_archive(pool: Pool, tmp_path: Path) -> None:
    whole = small_root().add("large", random.Random(1).randbytes(3 * MIB)).bytes()
    halves = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    for name, compress in (
        ("gz", gzip.compress),
        ("xz", lzma.compress),
        ("bz2", bz2.compress),
        ("zst", zstd),
    ):
        if compress is zstd and not importlib.util.find_spec("zstandard"):
            continue
        import_base(pool, name, saved(tmp_path, b"".join(map(compress, halves))))
        assert (base_path(pool, name) / "large").stat().st_size == 3 * MIB


def test_everything_about_a_file_is_kept(pool: Pool, tmp_path: Path) -> None:
    attributes = {
        "SCHILY.xattr.security.capability": CAPABILITY.decode("utf-8", "surrogateescape"),
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.user.note": "kept",
    }
    archive = (
        small_root()
        .add("setuid", b"x", mode=0o6755, uid=1234, gid=4321, pax_headers={"mtime": MTIME, **attributes})
        .folder("sticky", mode=0o1777, uid=7, pax_headers={"mtime": MTIME})
        .add("sticky/inside", b"")
        .hardlink("sticky/again", "./setuid")
        .symlink("link", "/etc/hostname")
        .add("pipe", kind=tarfile.FIFOTYPE, mode=0o620)
        .add("größe ☃", b"")
        .add("a" * 200 + "/" + "b" * 250, b"long")
    )
    import_base(pool, "box", saved(tmp_path, archive.bytes()))
    root = base_path(pool, "box")
    status = (root / "setuid").stat()
    assert stat.S_IMODE(status.st_mode) == 0o6755
    assert (status.st_uid, status.st_gid, status.st_nlink) == (1234, 4321, 2)
    assert status.st_mtime_ns == 1600000000123456789
    assert os.getxattr(root / "setuid", "security.capability") == CAPABILITY
    assert "trusted.overlay.opaque" not in os.listxattr(root / "setuid")
    assert os.getxattr(root / "setuid", "user.note") == b"kept"
    assert (root / "sticky/again").samefile(root / "setuid")
    sticky = (root / "sticky").stat()
    assert (stat.S_IMODE(sticky.st_mode), sticky.st_uid, sticky.st_mtime_ns) == (
        0o1777,
        7,
        1600000000123456789,
    )
    assert os.readlink(root / "link") == "/etc/hostname"
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert (root / "größe ☃").exists()
    assert (root / ("a" * 200) / ("b" * 250)).read_bytes() == b"long"


def test_a_sparse_file_stays_sparse(pool: Pool, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.seek(50 * MIB)
        file.write(b"island")
        file.truncate(100 * MIB)
    for form in ("gnu", "posix"):
        target = tmp_path / f"{form}.tar"
        subprocess.run(
            ["tar", f"--format={form}", "-S", "-C", str(source), "-cf", str(target), "."], check=True
        )
        import_base(pool, form, target)
        found = base_path(pool, form) / "sparse"
        assert found.stat().st_size == 100 * MIB
        assert found.stat().st_blocks * 512 < MIB
        with found.open("rb") as file:
            file.seek(50 * MIB - 1)
            assert file.read(8) == b"\0island\0"


def test_device_nodes_are_left_out_and_counted(pool: Pool, tmp_path: Path) -> None:
    archive = (
        small_root()
        .folder("dev")
        .add("dev/null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3)
        .add("dev/sda", kind=tarfile.BLKTYPE, devmajor=8)
    )
    assert import_base(pool, "box", saved(tmp_path, archive.bytes())).skipped_devices == 2
    assert os.listdir(base_path(pool, "box") / "dev") == []


@pytest.mark.parametrize("link", ["", "bin -> usr/bin", "bash -> /bin/dash"])
def test_a_root_without_bash_is_imported_with_a_warning(pool: Pool, tmp_path: Path, link: str) -> None:
    archive = Archive().add("etc/hostname", b"box")
    if link == "bin -> usr/bin":
        archive.symlink("bin", "usr/bin").add("usr/bin/bash", b"#!", mode=0o755)
    elif link:
        archive.add("bin/dash", b"#!", mode=0o755).symlink("bin/bash", "/bin/dash")
    base = import_base(pool, "box", saved(tmp_path, archive.bytes()))
    assert bool(base.warnings) == (link == "")
    assert list_bases(pool) == [base]


def test_layers_of_an_oci_archive_are_applied_in_order(pool: Pool, tmp_path: Path) -> None:
    image = Image()
    manifest = image.manifest(gzip.compress(LOWER), gzip.compress(UPPER))
    base = import_base(pool, "box", saved(tmp_path, image.archive(manifest)))
    assert base.format == "oci"
    check_layers(base_path(pool, "box"))


def test_an_oci_archive_for_many_machines_gives_the_one_for_this(pool: Pool, tmp_path: Path) -> None:
    image = Image()
    ours = {"os": "linux", "architecture": images.machine()}
    strange = image.manifest(gzip.compress(small_root().bytes()), machine="sparc64")
    right = image.manifest(gzip.compress(LOWER), UPPER)
    note = {"vnd.docker.reference.type": "attestation-manifest"}
    inner = image.put(
        image.index(
            {**strange, "platform": {"os": "linux", "architecture": "sparc64"}},
            {**strange, "platform": {"os": "windows", "architecture": images.machine()}},
            {**right, "platform": ours},
            {**strange, "platform": {"os": "unknown", "architecture": "unknown"}, "annotations": note},
        ),
        "application/vnd.oci.image.index.v1+json",
    )
    file = saved(tmp_path, gzip.compress(image.archive(inner, root="./")))
    assert import_base(pool, "box", file).format == "oci"
    check_layers(base_path(pool, "box"))


SAYS = {
    "Env": ["PATH=/opt/bin:/bin", "EMPTY=", "GREETING=good = morning"],
    "User": "app:users",
    "WorkingDir": "/srv//app/./",
    "Entrypoint": ["/bin/serve"],
    "Cmd": ["--port", "80"],
    "ExposedPorts": {"80/tcp": {}, "443/tcp": {}},
    "Labels": {"version": "1"},
}
CONFIG = ImageConfig(
    env={"PATH": "/opt/bin:/bin", "EMPTY": "", "GREETING": "good = morning"},
    user="app:users",
    workdir="/srv/app",
    entrypoint=("/bin/serve",),
    command=("--port", "80"),
    ports=("443/tcp", "80/tcp"),
    labels={"version": "1"},
)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd])
def test_an_oci_folder_is_imported_like_its_archive(
    pool: Pool, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    image = Image()
    manifest = image.manifest(compress(LOWER), compress(UPPER), config=SAYS)
    base = import_base(pool, "box", image.folder(tmp_path / "image", manifest))
    assert (base.format, base.source, base.image) == ("oci", "image", CONFIG)
    assert base.digest == sha256((tmp_path / "image/index.json").read_bytes())
    check_layers(base_path(pool, "box"))
    archived = import_base(pool, "again", saved(tmp_path, image.archive(manifest)))
    assert archived.image == CONFIG
    assert list_bases(pool) == [archived, base]


def test_an_oci_folder_can_neither_lie_nor_lead_out_of_itself(pool: Pool, tmp_path: Path) -> None:
    image = Image()
    folder = image.folder(tmp_path / "image", image.manifest(LOWER, UPPER))
    blob = folder / "blobs" / sha256(UPPER).replace(":", "/")
    blob.write_bytes(UPPER.replace(b"through the link", b"Through the link"))
    refused(pool, folder, "does not match its content")
    blob.unlink()
    refused(pool, folder, "missing")
    outside = saved(tmp_path, UPPER)
    blob.symlink_to(outside)
    refused(pool, folder, "missing")
    blob.unlink()
    os.mkfifo(blob)
    refused(pool, folder, "missing")
    blob.unlink()
    blob.symlink_to(blob.name)
    refused(pool, folder, "invalid path")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"Env": "PATH=/bin"}, "no list"),
        ({"Env": ["=x"]}, "no variable"),
        ({"Env": ["PATH"]}, "no variable"),
        ({"Env": [7]}, "invalid word"),
        ({"Env": ["A=\0"]}, "invalid word"),
        ({"Env": ["A=" + "x" * (1 << 20)]}, "invalid word"),
        ({"WorkingDir": "/srv/../.."}, "leads out"),
        ({"User": ["root"]}, "invalid word"),
        ({"Cmd": "sh"}, "no list"),
        ({"Labels": ["a"]}, "cannot be read"),
        ("text", "cannot be read"),
    ],
)
def test_an_image_that_says_nonsense_about_its_programs_is_refused(
    pool: Pool, tmp_path: Path, said: Any, reason: str
) -> None:
    image = Image()
    refused(pool, saved(tmp_path, image.archive(image.manifest(LOWER, config=said))), reason)


def docker_save(*layers: bytes, says: Any = None, digests: bool = True, damage: bytes = b"") -> bytes:
    """As docker 24 writes it: named by digest, with the layers plain."""
    config = {"architecture": images.machine(), "os": "linux", "config": says}
    if digests:
        config["rootfs"] = {"type": "layers", "diff_ids": [sha256(layer) for layer in layers]}
    about = json.dumps(config).encode()
    names = [f"{number}/layer.tar" for number, _ in enumerate(layers)]
    said = [{"Config": f"{sha256(about)[7:]}.json", "RepoTags": ["box:1"], "Layers": names}]
    archive = Archive().add(said[0]["Config"], about)  # type: ignore[arg-type]
    for name, layer in zip(names, layers, strict=True):
        archive.add(name, layer.replace(damage, damage.upper()) if damage else layer)
    return archive.add("manifest.json", json.dumps(said).encode()).bytes()


def test_what_docker_save_writes_is_compared_with_its_own_digests(pool: Pool, tmp_path: Path) -> None:
    refused(pool, saved(tmp_path, docker_save(LOWER, UPPER, damage=b"through the link")), "does not match")
    unlike_its_name = docker_save(LOWER, UPPER).replace(b'"linux"', b'"Linux"')
    refused(pool, saved(tmp_path, unlike_its_name), "does not match")
    for name, digests in (("old", False), ("box", True)):
        file = saved(tmp_path, docker_save(LOWER, UPPER, says=SAYS, digests=digests))
        assert import_base(pool, name, file).image == CONFIG
        check_layers(base_path(pool, name))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_what_docker_save_writes_is_imported(
    pool: Pool, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    names = ["1" * 64, "2" * 64, "3" * 64]
    config = {"architecture": images.machine(), "os": "linux"}
    said = [{"Config": "c.json", "RepoTags": ["box:1"], "Layers": [f"{name}/layer.tar" for name in names]}]
    archive = (
        Archive()
        .folder(names[0])
        .add(f"{names[0]}/layer.tar", LOWER)
        .add(f"{names[1]}/layer.tar", UPPER)
        .symlink(f"{names[2]}/layer.tar", f"../{names[1]}/layer.tar")
        .add("c.json", json.dumps(config).encode())
        .add("manifest.json", json.dumps(said).encode())
    )
    base = import_base(pool, "box", saved(tmp_path, compress(archive.bytes())))
    assert base.format == "docker-save"
    check_layers(base_path(pool, "box"))


def test_a_whiteout_hides_what_is_below_its_layer_only(pool: Pool, tmp_path: Path) -> None:
    lower = small_root().folder("a").add("a/file", b"lower").add("b", b"lower").bytes()
    upper = Archive().add(".wh.a").add("b", b"upper").add(".wh.b").add("etc/.wh..wh.plnk", b"").bytes()
    image = Image()
    import_base(pool, "box", saved(tmp_path, image.archive(image.manifest(lower, upper))))
    root = base_path(pool, "box")
    assert not (root / "a").exists()
    assert (root / "b").read_bytes() == b"upper"
    assert sorted(os.listdir(root / "etc")) == ["hostname"]


def test_a_layer_replaces_files_by_folders_and_folders_by_files(pool: Pool, tmp_path: Path) -> None:
    lower = (
        small_root()
        .folder("x")
        .folder("x/deep")
        .add("x/deep/f", b"")
        .add("y", b"file")
        .symlink("z", "x")
        .bytes()
    )
    upper = Archive().add("x", b"now a file").folder("y").add("y/f", b"").folder("z").add("z/f", b"").bytes()
    image = Image()
    import_base(pool, "box", saved(tmp_path, image.archive(image.manifest(lower, upper))))
    root = base_path(pool, "box")
    assert (root / "x").read_bytes() == b"now a file"
    assert os.listdir(root / "y") == ["f"]
    assert not (root / "z").is_symlink()


def test_a_plain_tar_keeps_files_that_look_like_whiteouts_or_images(pool: Pool, tmp_path: Path) -> None:
    archive = (
        Archive().folder("blobs").add("blobs/x", b"").add("bin/bash", b"", mode=0o755).add("etc/.wh.x", b"")
    )
    assert import_base(pool, "box", saved(tmp_path, archive.bytes())).format == "tar"
    assert sorted(os.listdir(base_path(pool, "box") / "etc")) == [".wh.x"]


def test_a_folder_is_copied_without_devices_mounts_and_waypoints_home(pool: Pool, tmp_path: Path) -> None:
    source = tmp_path  # the pool's home lies in it
    (source / "bin").mkdir()
    (source / "bin/bash").write_bytes(b"#!")
    (source / "bin/bash").chmod(0o4755)
    (source / "proc").mkdir()
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.setxattr(source / "bin", "trusted.overlay.opaque", b"y")
    os.utime(source / "bin/bash", ns=(10**18, 10**18 + 5))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(source / "proc")], check=True)
    try:
        (source / "proc/not to be seen").touch()
        base = import_base(pool, "box", source)
        again = import_base(pool, "twin", source)
    finally:
        subprocess.run(["umount", str(source / "proc")], check=True)
    root = base_path(pool, "box")
    assert sorted(os.listdir(root)) == ["bin", "proc"]
    assert os.listdir(root / "proc") == []
    assert (root / "bin/bash").stat().st_mtime_ns == 10**18 + 5
    assert stat.S_IMODE((root / "bin/bash").stat().st_mode) == 0o4755
    assert "trusted.overlay.opaque" not in os.listxattr(root / "bin")
    assert (base.format, base.skipped_devices, base.file_count) == ("folder", 1, 1)
    assert base.digest == again.digest
    assert pool.is_readonly(root)


# ---- keeping them -------------------------------------------------------------------------------


def test_names_are_checked_and_taken_once(pool: Pool, tmp_path: Path) -> None:
    file = saved(tmp_path, small_root().bytes())
    for name in ("", ".", "..", "../x", "a/b", "-x", "x" * 65, ".hidden", "a b", "a\n"):
        with pytest.raises(InvalidName):
            import_base(pool, name, file)
        with pytest.raises(InvalidName):
            base_path(pool, name)
    import_base(pool, "debian-12", file)
    with pytest.raises(AlreadyExists, match="debian-12"):
        import_base(pool, "debian-12", file)
    with pytest.raises(NotFound, match="nope") as missing:
        base_path(pool, "nope")
    assert "debian-12" in missing.value.hint
    with pytest.raises(NotFound, match="no-such-file"):
        import_base(pool, "other", tmp_path / "no-such-file")


def test_a_base_in_use_is_not_removed(pool: Pool, tmp_path: Path) -> None:
    import_base(pool, "box", saved(tmp_path, small_root().bytes()))
    with pytest.raises(UsageError, match="work, play") as refused:
        remove_base(pool, "box", used_by=["work", "play"])
    assert refused.value.details["used_by"] == ["work", "play"]
    assert base_path(pool, "box").is_dir()
    pool.delete(remove_base(pool, "box", used_by=[]))
    assert list_bases(pool) == []
    with pytest.raises(NotFound):
        pool.delete(remove_base(pool, "box"))


def test_an_import_that_does_not_fit_leaves_nothing(pool: Pool, tmp_path: Path) -> None:
    if pool.kind != "btrfs":
        pytest.skip("the other pool is as large as the disk")
    file = saved(tmp_path, small_root().add("large", os.urandom(320 * MIB)).bytes())
    with pytest.raises(NoSpace):
        import_base(pool, "box", file)
    assert list_bases(pool) == []
    file.unlink()
    pool.reclaim()
    import_base(pool, "box", saved(tmp_path, small_root().bytes()))


def test_a_bomb_does_not_fill_the_pool_of_the_sessions(pool: Pool, tmp_path: Path) -> None:
    """A small file that holds more than there is room for."""
    if not pool.share(pool.root):
        pytest.skip("nothing is counted in this pool")
    file = tmp_path / "bomb.tar.gz"
    header = tarfile.TarInfo("./zeros")
    header.size = 2 << 30
    zeros = gzip.compress(bytes(32 << 20), 1)
    file.write_bytes(gzip.compress(header.tobuf()) + 64 * zeros + gzip.compress(small_root().bytes()))
    least, ended = [pool.usage().free_bytes], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            least.append(pool.usage().free_bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(NoSpace):
            import_base(pool, "bomb", file)
    finally:
        ended.set()
        watcher.join()
    assert min(least) > 8 << 20, "there is room for the others all the time"
    assert list_bases(pool) == []


def test_an_archive_with_millions_of_entries_or_endless_paths_is_refused(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_MEMBERS", 50)
    many = small_root()
    for number in range(50):
        many.folder(f"./{number}")
    refused(pool, saved(tmp_path, many.bytes()), "more than 50 entries")
    for path in ("d/" * 40_000 + "end", "d" * 300, "/".join(["d" * 200] * 30)):
        with pytest.raises(WaypointError):
            import_base(pool, "hostile", saved(tmp_path, small_root().add(path, b"").bytes()))
    assert list_bases(pool) == []


def test_a_half_written_import_is_not_a_base(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path, small_root().bytes())

    def interrupted(*_: object) -> None:
        assert list_bases(pool) == []
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_write_record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_base(pool, "box", file)
    assert list_bases(pool) == []
    monkeypatch.undo()
    import_base(pool, "box", file)


# ---- hostile archives ---------------------------------------------------------------------------


def refused(pool: Pool, file: Path, match: str = "cannot be imported") -> UsageError:
    with pytest.raises(UsageError, match=match) as found:
        import_base(pool, "hostile", file)
    assert found.value.hint
    assert list_bases(pool) == []
    assert os.listdir(pool.root / "bases") == []
    return found.value


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "..", "/../escaped"])
def test_a_path_that_leads_out_is_refused(pool: Pool, tmp_path: Path, name: str) -> None:
    refused(pool, saved(tmp_path, small_root().add(name, b"x").bytes()), "leads out")
    assert not any(tmp_path.rglob("escaped"))


def test_an_absolute_path_stays_inside(pool: Pool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    archive = small_root().add(f"/{outside}/file", b"x").add("//etc/absolute", b"x")
    import_base(pool, "box", saved(tmp_path, archive.bytes()))
    assert not outside.exists()
    assert (base_path(pool, "box") / str(outside).lstrip("/") / "file").exists()
    assert not Path("/etc/absolute").exists()


@pytest.mark.parametrize("target", ["{outside}", "../../../../../../../../../../../{outside}"])
def test_a_link_that_leads_out_leads_to_a_place_inside(pool: Pool, tmp_path: Path, target: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    to = target.format(outside=str(outside).lstrip("/") if target.startswith("..") else outside)
    archive = small_root().symlink("exit", to).folder(str(outside).lstrip("/"))
    archive.add("exit/victim", b"written").add("exit/new", b"written").add("exit/.wh.victim", b"")
    import_base(pool, "box", saved(tmp_path, archive.bytes()))
    assert os.listdir(outside) == ["victim"]
    assert (outside / "victim").read_text() == "untouched"
    inside = base_path(pool, "box") / str(outside).lstrip("/")
    assert (inside / "victim").read_bytes() == b"written"


def test_whiteouts_cannot_reach_out_either(pool: Pool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "folder/victim").touch()
    lower = small_root().symlink("exit", str(outside)).folder(str(outside).lstrip("/")).bytes()
    for name in ("exit/.wh.folder", "exit/.wh..wh..opq"):
        image = Image()
        import_base(
            pool, "box", saved(tmp_path, image.archive(image.manifest(lower, Archive().add(name).bytes())))
        )
        assert (outside / "folder/victim").exists()
        pool.delete(remove_base(pool, "box"))
    for name in (".wh..", ".wh...", "etc/.wh...", ".wh."):
        image = Image()
        refused(
            pool,
            saved(tmp_path, image.archive(image.manifest(lower, Archive().add(name).bytes()))),
            "whiteout of nothing",
        )
    assert (outside / "folder/victim").exists()


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../etc/passwd", "exit/passwd", "./missing", "etc", "/", ""]
)
def test_a_hard_link_to_what_is_not_in_the_archive_is_refused(
    pool: Pool, tmp_path: Path, target: str
) -> None:
    archive = small_root().symlink("exit", "/../../../../etc").hardlink("stolen", target)
    refused(pool, saved(tmp_path, archive.bytes()))
    assert Path("/etc/passwd").stat().st_nlink == 1


def test_a_file_is_never_written_through_a_link(pool: Pool, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    archive = small_root().symlink("file", str(victim)).add("file", b"written").symlink("twin", "file")
    archive.hardlink("hard", "twin").add("hard", b"x").folder("file2").symlink("file2", "/").add(
        "file2", b"y"
    )
    import_base(pool, "box", saved(tmp_path, archive.bytes()))
    assert victim.read_text() == "untouched"
    assert (base_path(pool, "box") / "file").read_bytes() == b"written"


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (Archive().add("x" * 300, b"").bytes(), "invalid path"),
        (Archive().add("/".join(["d" * 200] * 30), b"").bytes(), "invalid path"),
        (Archive().symlink("loop", "loop").add("loop/file", b"").bytes(), "invalid path"),
        (Archive().symlink("link", "").bytes(), "without a target"),
        (Archive().add("file", b"").add("file/below", b"").bytes(), "invalid path"),
        (
            Archive().symlink("dangling", "nowhere").add("dangling/file", b"").bytes(),
            "link to a missing folder",
        ),
        (Archive().add("file", b"", pax_headers={"path": "a\0b"}).bytes(), "NUL"),
        (Archive().add("file", b"", pax_headers={"uid": str(1 << 40)}).bytes(), "owner"),
        (Archive().add("file", b"", pax_headers={"uid": "-5"}).bytes(), "owner"),
        (Archive().add("file", b"", pax_headers={"mtime": "never"}).bytes(), "damaged"),
        (Archive().add("file", b"", pax_headers={"mtime": "1e400"}).bytes(), "damaged"),
        (Archive().add("file", b"", pax_headers={"size": "-1024"}).bytes(), "cannot be imported"),
        (Archive().add("file", b"", pax_headers={"size": str(1 << 62)}).bytes(), "cannot be imported"),
        (Archive().add("file", b"", kind=b"Q").bytes(), "cannot be imported"),
        (Archive().bytes(), "empty"),
        (Archive().folder("only").bytes(), "contains no files"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_archive_is_refused_with_the_reason(
    pool: Pool, tmp_path: Path, archive: bytes, reason: str
) -> None:
    refused(pool, saved(tmp_path, archive), reason)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 10240, b"hello", b"PK\3\4" + bytes(3000), random.Random(3).randbytes(9000)]
)
def test_a_file_that_is_not_an_archive_is_refused(pool: Pool, tmp_path: Path, content: bytes) -> None:
    refused(pool, saved(tmp_path, content), "cannot be imported")


def test_an_enormous_header_is_refused_without_reading_it(pool: Pool, tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type = tarfile.XHDTYPE
    header.size = 40 << 30
    refused(pool, saved(tmp_path, header.tobuf(tarfile.GNU_FORMAT) + bytes(4096)), "header of")
    chain = tarfile.TarInfo("pax")
    chain.type, chain.size = tarfile.XHDTYPE, 0
    refused(pool, saved(tmp_path, chain.tobuf() * 5000 + bytes(1024)))


def test_an_archive_that_is_cut_off_anywhere_is_refused(pool: Pool, tmp_path: Path) -> None:
    whole = small_root().add("large", random.Random(2).randbytes(5000)).bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for cut in [*range(0, end, 512), *range(100, end, 1700)]:
        refused(pool, saved(tmp_path, whole[:cut]))
    packed = [gzip.compress(whole), lzma.compress(whole), bz2.compress(whole)]
    for content in packed:
        for cut in (20, len(content) // 2, len(content) - 1):
            refused(pool, saved(tmp_path, content[:cut]))


def test_damaged_archives_are_imported_or_refused_but_never_crash(pool: Pool, tmp_path: Path) -> None:
    image = Image()
    honest = [
        small_root()
        .symlink("l", "etc")
        .hardlink("h", "./bin/bash")
        .add("x", b"x" * 600, pax_headers={"mtime": MTIME})
        .bytes(),
        gzip.compress(small_root().bytes()),
        image.archive(image.manifest(gzip.compress(LOWER), UPPER)),
    ]
    chance = random.Random(7)
    outside = tmp_path / "outside"
    outside.mkdir()
    for at in range(150):
        content = bytearray(honest[at % 3])
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        with contextlib.suppress(WaypointError):
            import_base(pool, "damaged", saved(outside, bytes(content)))
            pool.delete(remove_base(pool, "damaged"))
        assert os.listdir(outside) == ["archive.tar"]
        assert list_bases(pool) == []


def test_a_flipped_bit_in_a_layer_is_noticed(pool: Pool, tmp_path: Path) -> None:
    image = Image()
    manifest = image.manifest(LOWER, UPPER)
    whole = image.archive(manifest)
    at = whole.index(b"through the link")
    refused(pool, saved(tmp_path, whole[:at] + b"T" + whole[at + 1 :]), "does not match its content")


def test_images_that_cannot_be_used_are_refused_with_a_reason(pool: Pool, tmp_path: Path) -> None:
    root = gzip.compress(small_root().bytes())
    image = Image()
    one, other = image.manifest(root), image.manifest(root, root)
    strange = image.manifest(root, machine="sparc64")
    platform = {"os": "linux", "architecture": "sparc64"}
    named = {"org.opencontainers.image.ref.name": "second"}
    refused(
        pool, saved(tmp_path, image.archive(one, {**other, "annotations": named})), "several images .*second"
    )
    refused(pool, saved(tmp_path, image.archive({**strange, "platform": platform})), "only for linux/sparc64")
    refused(pool, saved(tmp_path, image.archive(strange)), "image for linux/sparc64")
    refused(pool, saved(tmp_path, image.archive()), "no image")
    refused(pool, saved(tmp_path, image.archive({"digest": "sha256:../../x"})), "unknown format")
    refused(pool, saved(tmp_path, image.archive({"digest": sha256(b"missing")})), "missing")
    refused(pool, saved(tmp_path, image.archive({"nothing": 1})), "cannot be read")
    secret = image.put({"layers": [image.put(root, "application/vnd.oci.image.layer.v1.tar+encrypted")]})
    refused(pool, saved(tmp_path, image.archive(secret)), "encrypted")
    refused(pool, saved(tmp_path, image.archive(image.put({"layers": []}))), "no layers")
    refused(pool, saved(tmp_path, image.archive(image.put({"subject": 1}))), "not an image")
    refused(pool, saved(tmp_path, image.archive(image.manifest(b"no tar at all"))), "layer 1")
    two = json.dumps([{"Layers": [], "RepoTags": ["a:1"]}, {"Layers": [], "RepoTags": ["b:1"]}]).encode()
    refused(pool, saved(tmp_path, Archive().add("manifest.json", two).bytes()), "a:1, b:1")
    refused(pool, saved(tmp_path, Archive().add("manifest.json", b"[{").bytes()))
    lost = json.dumps([{"Layers": ["nope/layer.tar"]}]).encode()
    refused(pool, saved(tmp_path, Archive().add("manifest.json", lost).bytes()), "missing")


def test_an_index_that_refers_to_indexes_without_end_is_refused(pool: Pool, tmp_path: Path) -> None:
    image = Image()
    descriptor = image.manifest(small_root().bytes())
    for _ in range(10):
        descriptor = image.put(image.index(descriptor))
    refused(pool, saved(tmp_path, image.archive(descriptor)), "nested too deeply")


def test_something_else_than_a_file_is_refused(pool: Pool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    refused(pool, tmp_path / "fifo", "neither a file nor a folder")
