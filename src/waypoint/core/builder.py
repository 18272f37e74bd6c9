"""Where the core meets the machine: building boxes with their network and limits, and taking them away."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from waypoint.box.box import Box, drop_inside, end_keeper, keepers, socket_path
from waypoint.box.filesystems import note_file_systems
from waypoint.box.keeper import Keeper
from waypoint.box.limits import BoxLimits, limits_of
from waypoint.box.plan import BoxSpec
from waypoint.box.volume import (
    empty_hidden,
    examine_base,
    hidden_paths,
    make_volume,
    note_hidden,
    write_first_files,
)
from waypoint.core.contacts import Contacts
from waypoint.errors import MachineError, WaypointError
from waypoint.home import Home
from waypoint.kernel import cgroups, faults, locks
from waypoint.kernel.network.resolver import resolver_config
from waypoint.kernel.network.sockets import Connection
from waypoint.kernel.network.veth import Network
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import BoxOptions, Record, Size

log = logging.getLogger("waypoint")


class BoxFacts(Record, frozen=True):
    """What a restore has to know about the box a point was taken in."""

    addresses: tuple[str, ...] = ()
    open_files: tuple[str, ...] = ()
    forwarded: tuple[Connection, ...] = ()
    """The connections that the daemon had carried into it: nothing is at their other ends any more."""


class BoxBuilder(Protocol):
    """Makes boxes and takes them away."""

    def make_volume(self, volume: Path, name: str, options: BoxOptions, base: Path) -> None:
        """The volume of a new session over a base."""

    def build(
        self, volume: Path, name: str, options: BoxOptions, base: Path, size: Size, facts: BoxFacts
    ) -> Box:
        """A box with its network and limits, with nothing running in it. It is named like its volume."""

    def standing(self) -> dict[str, int]:
        """The boxes that stand now: id and host pid of the keeper."""

    def find(self, box_id: str) -> Box | None:
        """A box that an earlier daemon built, if it still stands. OSError when it stands and does not
        answer."""

    def connect(self, box: Box) -> Keeper:
        """A second connection to its keeper, for what it reports by itself."""

    def remove(self, box: Box) -> None:
        """Ends everything in a box and takes away what belonged to it. Its volume stays."""

    def remove_unowned(self, box_id: str, pid: int) -> None:
        """Ends a box that no daemon serves, if it has not ended by itself, and takes away what belonged to
        it: an earlier daemon died while it was building it, say."""

    def remove_groups(self, owned: Collection[str]) -> None:
        """Removes control groups without a box: an earlier daemon died before it started the keeper."""


class HostBuilder:
    """Builds boxes on this machine."""

    def __init__(
        self,
        home: Home,
        engine: Path,
        kdat: Path | None,
        pool: Pool,
        network: Network,
        contacts: Contacts,
        usual_limits: BoxLimits,
    ) -> None:
        self._home, self._engine, self._kdat = home, engine, kdat
        self._usual_limits = usual_limits
        self._pool, self._network, self._contacts = pool, network, contacts
        self._preparing = locks.lock("network preparation")
        self._network_ready = False

    def make_volume(self, volume: Path, name: str, options: BoxOptions, base: Path) -> None:
        self._pool.create(volume)
        layered = examine_base(base, self._home).layered
        make_volume(volume, layered)
        note_file_systems(volume, base, layered)
        write_first_files(volume, base, _first_files(name, options, base))
        empty_hidden(volume, base, self._home, options)
        note_hidden(volume, hidden_paths(options, base, self._home))

    def build(
        self, volume: Path, name: str, options: BoxOptions, base: Path, size: Size, facts: BoxFacts
    ) -> Box:
        box_id = volume.name
        spec = BoxSpec(
            home=self._home,
            engine=self._engine,
            volume=volume,
            name=name,
            options=options,
            base=base,
            size=size,
            kdat=self._kdat,
            open_files=facts.open_files,
        )
        limits = limits_of(options, self._usual_limits)
        with contextlib.ExitStack() as undo:
            faults.reach("box.begun")
            self._pool.limit(volume, limits.disk_bytes)
            group = cgroups.create(self._home.tag, box_id, limits.groups)
            undo.callback(group.remove)
            faults.reach("box.grouped")
            box = Box.build(spec)
            undo.callback(drop_inside, self._home, box_id)
            undo.callback(box.kill, self._home)
            undo.enter_context(box.end_named("build a box"))
            faults.reach("box.started")
            for pid in {box.pid, box.first_pid}:
                group.add(pid)
            box.use_group(group.tree)
            box.open_files = limits.open_files
            if options.net == "nat":
                self._prepare_network()
                space = box.open_namespace("net")
                try:
                    undo.callback(self._network.detach, box_id)
                    self._network.attach(box_id, space, keep=facts.addresses)
                    faults.reach("box.attached")
                finally:
                    os.close(space)
            undo.pop_all()
        return box

    def _prepare_network(self) -> None:
        with self._preparing:
            if not self._network_ready:
                with self._contacts.counters_replaced():
                    self._network.prepare()
                self._network_ready = True

    def standing(self) -> dict[str, int]:
        return keepers(self._home)

    def find(self, box_id: str) -> Box | None:
        return Box.find(self._home, box_id, self._home.sessions / box_id)

    def connect(self, box: Box) -> Keeper:
        return Keeper(socket_path(self._home, box.id))

    def remove(self, box: Box) -> None:
        box.kill(self._home)
        # Its cable went with its network namespace.
        cgroups.find(self._home.tag, box.id).remove()
        drop_inside(self._home, box.id)

    def remove_unowned(self, box_id: str, pid: int) -> None:
        end_keeper(self._home, box_id, pid)
        self._network.detach(box_id)
        cgroups.find(self._home.tag, box_id).remove()
        drop_inside(self._home, box_id)

    def remove_groups(self, owned: Collection[str]) -> None:
        for box_id in cgroups.box_ids(self._home.tag) - {*owned}:
            try:
                cgroups.find(self._home.tag, box_id).remove()
            except WaypointError as error:
                log.warning("a control group without a box is left: %s", error)


def _add_early(group: cgroups.Cgroup, pid: int) -> None:
    """The kernel takes its time for the first process of a group, while this one works. (It has ended when it
    was quick; the keeper is added in any case.)"""
    with contextlib.suppress(MachineError):
        group.add(pid)


def _first_files(name: str, options: BoxOptions, base: Path) -> dict[str, str]:
    """What a box needs to know of its network and its name, where the base does not say it."""
    files = {}
    if options.net == "nat":
        files["/etc/resolv.conf"] = resolver_config().text
    elif options.net == "host" and base != Path("/"):
        with contextlib.suppress(OSError):
            files["/etc/resolv.conf"] = Path("/etc/resolv.conf").read_text()
    if base != Path("/"):
        files["/etc/hostname"] = f"{name}\n"
        files["/etc/hosts"] = f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost\n"
    return files
