"""Restores, undo and forks: points that are not in one line."""

from __future__ import annotations

from tests.truth.story import Step, Story, story

STORIES: tuple[Story, ...] = (
    story(
        "back and on another way",
        Step("mkdir /srv/g && cd /srv/g && echo 1 > a && export STEP=1", name="one"),
        Step(
            "echo 2 > b && echo more >> a; sleep 700 & until grep -q ^sleep /proc/$!/cmdline; do :; done; STEP=2",
            name="two",
        ),
        Step("rm a; mv b c", name="three"),
        Step("echo other > d", restore="one", name="other"),
        Step("echo 9 > e && rm a", restore="two"),
        Step("echo 10 > f", undo=True),
        Step("cd / && rm -r /srv/g", restore="other"),
    ),
    story(
        "forks of a point",
        Step("mkdir /srv/g && cd /srv/g && for n in {1..30}; do echo $n > f$n; done", name="start1"),
        Step("for n in {1..10}; do echo a >> f$n; done; export WHO=a", fork="start1", name="left"),
        Step(
            "for n in {5..15}; do rm f$n; done; export WHO=b; sleep 900 & until grep -q ^sleep /proc/$!/cmdline; do :; done",
            fork="start1",
            name="right",
        ),
        Step("mv f20 g20 && mkdir d && mv f2* d/", fork="left", name="left2"),
        Step("mv /srv/g /srv/h && echo x > /srv/h/x", fork="right"),
    ),
    story(
        "a repository and its other way",
        Step(
            "mkdir /srv/g && cd /srv/g && git init -q && echo 1 > a && git add . && git commit -qm one",
            name="one",
        ),
        Step("echo 2 >> a && git commit -qam two && echo u > u", name="two"),
        Step("echo 3 >> a && git commit -qam three && git branch side", restore="one", name="three"),
        Step("git reset -q --hard HEAD~1", name="back"),
        Step("git checkout -q -b side2 && echo 4 > b && git add . && git commit -qm four", fork="two"),
        needs=("git",),
    ),
)
