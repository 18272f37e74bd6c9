"""The pool: where the files of all sessions, checkpoints and bases live.

A **tree** is a folder that can be snapshotted as one. On btrfs it is a subvolume and a snapshot is one
ioctl: no program is executed, no data is moved, and the kernel enforces that a read-only tree stays as it
is. Any host gets such a pool from a sparse file that is mounted like a disk. Where the kernel has no btrfs
or no loop devices the same interface is kept over reflinks, else over plain copies; both are slower.

**Protocol**: what every pool can do. **Btrfs**, **folder**: its implementations. **Image**: the sparse file.
**Subvolume**: what btrfs says about one tree. **Loop**: loop devices. **Lifecycle**: opening and closing the
pool of a home. **Holders**: which processes keep it open. **Deltas**: which paths differ between two trees.
**Extents**: what a deletion would give back.

docs/storage.md has the layout, the mount options with their reasons and the consistency rules.
"""
