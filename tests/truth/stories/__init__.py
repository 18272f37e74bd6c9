"""The stories: written ones by what they are about, and random ones."""

from __future__ import annotations

from tests.truth.stories import databases, files, git, graphs, live, packages, work
from tests.truth.story import Story

WRITTEN: tuple[Story, ...] = (
    *files.STORIES,
    *git.STORIES,
    *databases.STORIES,
    *live.STORIES,
    *packages.STORIES,
    *graphs.STORIES,
    *work.STORIES,
)
