"""Repositories: commits, branches, everything that moves them, and files that git does not know."""

from __future__ import annotations

from tests.truth.story import Step, Story, story

_START = (
    "mkdir -p /srv/app && cd /srv/app && git init -q && echo 'print(1)' > app.py && printf '*.log\\nbuild/\\n' "
    "> .gitignore && git add -A && git commit -qm 'first version'"
)

STORIES: tuple[Story, ...] = (
    story(
        "commits",
        _START,
        "echo 'print(2)' >> app.py && git commit -qam 'second' && echo x > notes.txt",
        "git add notes.txt && echo y > other && echo z > debug.log",
        "git commit -qm 'notes' && for n in 1 2 3; do echo $n > f$n && git add . && git commit -qm \"file $n\"; done",
        "rm f1 && git rm -q --cached f2 && echo changed > f3",
        needs=("git",),
    ),
    story(
        "reset, amend and squash",
        _START,
        'for n in 1 2 3 4; do echo $n >> app.py && git commit -qam "step $n"; done',
        "git reset -q --hard HEAD~2",
        "echo 9 >> app.py && git commit -qam 'nine' && git commit -q --amend -m 'nine, said better'",
        "git reset -q --soft HEAD~2 && git commit -qm 'squashed'",
        "git reset -q HEAD~1",
        needs=("git",),
    ),
    story(
        "branches and merges",
        _START,
        "git checkout -q -b feature && echo f > feature.py && git add . && git commit -qm 'a feature'",
        "git checkout -q main && echo m >> app.py && git commit -qam 'on main'",
        "git merge -q --no-edit feature",
        "git branch -d feature -q && git tag v1 && git checkout -q --detach HEAD~1",
        "git checkout -q -b side && echo s > side && git add . && git commit -qm 'on the side' && git checkout -q main",
        "git branch -m side lane && git checkout -q lane",
        needs=("git",),
    ),
    story(
        "rebase and cherry-pick",
        _START,
        "git checkout -q -b topic && echo t1 > t1 && git add . && git commit -qm t1 && echo t2 > t2 && git add ."
        " && git commit -qm t2",
        "git checkout -q main && echo b > base.py && git add . && git commit -qm 'base moves'",
        "git checkout -q topic && git rebase -q main",
        "git checkout -q main && git cherry-pick topic >/dev/null",
        Step(
            "echo conflict > t1 && git add . && git commit -qm 'in the way' && git rebase -q topic",
            fails=True,
        ),
        "git rebase --abort && git revert --no-edit HEAD >/dev/null",
        needs=("git",),
    ),
    story(
        "worktrees and stash",
        _START,
        "git worktree add -q /srv/tree -b tree && echo w > /srv/tree/w",
        "cd /srv/tree && git add . && git commit -qm 'in the tree' && cd /srv/app",
        "echo dirty >> app.py && git stash -q",
        "git stash pop -q && git commit -qam 'dirty no more' && git worktree remove --force /srv/tree",
        needs=("git",),
    ),
    story(
        "clone, fetch and push inside the session",
        f"{_START} && cd /srv && git clone -q --bare app hub.git && git clone -q hub.git work",
        "cd /srv/work && echo w > w && git add . && git commit -qm 'from work'",
        "git push -q origin main",
        "cd /srv/app && git remote add hub /srv/hub.git && git fetch -q hub && git merge -q hub/main",
        "cd /srv/work && git checkout -q -b next && echo n > n && git add . && git commit -qm n",
        "git push -q origin next",
        "rm -r /srv/app",
        needs=("git",),
    ),
    story(
        "a repository is moved and removed",
        _START,
        "cd /srv && mv app moved && cd moved && echo m > m && git add . && git commit -qm moved",
        "mkdir build && for n in 1 2 3; do echo $n > build/$n; echo $n > $n.log; echo $n > u$n; done",
        "rm -rf .git",
        "git init -q && git add -A && git commit -qm 'anew'",
        needs=("git",),
    ),
    story(
        "branches that are not checked out",
        _START,
        "git branch side && git branch keep",
        'git checkout -q side && for n in 1 2 3; do echo $n > s$n && git add . && git commit -qm "side $n"; done'
        " && git checkout -q main && git tag t",
        "git branch -f side side~2 && git branch -D keep -q && git tag -f t side >/dev/null",
        "git checkout -q side && echo other > app.py && git commit -qam 'another app' && git checkout -q main"
        " && echo main > app.py && git commit -qam 'the app'",
        Step("git merge -q side", fails=True),
        "git merge --abort",
        "git checkout -q --detach side && git branch -f main side && git branch lane main~1",
        "git checkout -q main && git branch -m trunk && git update-ref -d refs/heads/lane",
        needs=("git",),
    ),
    story(
        "packs, tags and many files",
        _START,
        "mkdir src && for n in {1..80}; do echo $n > src/m$n.py; done && git add . && git commit -qm 'eighty modules'",
        "git gc -q && git tag -a v2 -m 'two' && echo x >> src/m1.py",
        "git checkout -q -- src && git rm -q -r src && git commit -qm 'no modules'",
        "mkdir __pycache__ && for n in {1..30}; do echo $n > __pycache__/m$n.pyc; done && echo u > u",
        "git checkout -q HEAD~1 && git pack-refs --all",
        needs=("git",),
    ),
)
