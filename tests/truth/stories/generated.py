"""Random stories: operations whose effects the oracle sees, put together by a number that repeats them.

Operations work on few names, so that they meet each other: what one has written the next renames, replaces,
links or deletes. An operation that finds nothing to work on does nothing, which is a case as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.truth.story import Step, Story

_TOP = "/srv/r"
_FOLDERS = ("a", "b", "c", "a/x", "b/y", "c/x/z")
_PORTS = (7001, 7002, 7003)

Pick = random.Random
Operation = Callable[[Pick], str]


def random_story(seed: int, points: int = 6) -> Story:
    """The story of a number."""
    pick = random.Random(seed)
    with_graph = pick.random() < 0.4
    names = ["start"]
    steps = [Step(f"mkdir -p {_TOP}/{{{','.join(_FOLDERS)}}} && cd {_TOP}", name="p0")]
    groups = [_FILES] * 3 + pick.choices([_FILES, _TREES, _GIT, _SQLITE, _LIVE, _SHELL, _BASE, _SYSTEM], k=4)
    for number in range(1, points + 1):
        commands = [pick.choice(pick.choice(groups))(pick) for _ in range(pick.randint(1, 4))]
        way = pick.random() if with_graph else 1.0
        steps.append(
            Step(
                "; ".join(f"{{ {command}; }} >/dev/null 2>&1" for command in commands),
                name=f"p{number}",
                restore=pick.choice(names) if way < 0.25 else "",
                fork=pick.choice(names) if 0.25 <= way < 0.4 else "",
                undo=0.4 <= way < 0.45 and any(step.restore for step in steps[-1:]),
                fails=True,
                intent=f"step {number}",
            )
        )
        names.append(f"p{number}")
    return Story(f"random {seed}", tuple(steps), needs=("git", "sqlite3"), seed=seed)


def _folder(pick: Pick) -> str:
    return f"{_TOP}/{pick.choice(_FOLDERS)}"


def _span(pick: Pick) -> str:
    """Some of forty names."""
    first = pick.randint(1, 40)
    return f"{{{first}..{min(40, first + pick.choice((0, 1, 5, 20, 39)))}}}"


# ---- files ---------------------------------------------------------------------------------------


def _write(pick: Pick) -> str:
    words = pick.choice(("one", "two", "three $n", "$RANDOM"))
    return f"for n in {_span(pick)}; do echo {words} > {_folder(pick)}/f$n; done"


def _append(pick: Pick) -> str:
    return f"for n in {_span(pick)}; do echo more >> {_folder(pick)}/f$n; done"


def _delete(pick: Pick) -> str:
    return f"rm -f {_folder(pick)}/f{_span(pick)}"


def _rename(pick: Pick) -> str:
    folder, target = _folder(pick), pick.choice((_folder(pick), ""))
    name = pick.choice(("f$n", "g$n", "f$((41 - n))"))
    return f"for n in {_span(pick)}; do mv {folder}/f$n {target or folder}/{name}; done"


def _mode(pick: Pick) -> str:
    return f"chmod {pick.choice(('600', '644', '755', 'u+s', '000'))} {_folder(pick)}/f{_span(pick)}"


def _owner(pick: Pick) -> str:
    return f"chown {pick.choice(('0:0', '7:8', '1000:0'))} {_folder(pick)}/f{_span(pick)}"


def _attribute(pick: Pick) -> str:
    number, value = pick.randint(1, 40), pick.choice(("x", "y"))
    path = f"{_folder(pick)}/f{number}"
    return f"""python3 -c 'import os; os.setxattr("{path}", "user.{value}", b"{value}")'"""


def _link(pick: Pick) -> str:
    kind = pick.choice(("-sfn", "-fn"))
    return f"ln {kind} {_folder(pick)}/f{pick.randint(1, 40)} {_folder(pick)}/f{pick.randint(1, 40)}"


def _swap(pick: Pick) -> str:
    folder, one, other = _folder(pick), pick.randint(1, 40), pick.randint(1, 40)
    return f"cd {folder} && mv f{one} t && mv f{other} f{one}; mv t f{other}; cd {_TOP}"


def _replace(pick: Pick) -> str:
    path = f"{_folder(pick)}/f{pick.randint(1, 40)}"
    return pick.choice(
        (
            f"rm -rf {path}; mkdir {path}",
            f"rm -rf {path}; mkfifo {path}",
            f"cp {path} {path}.t; mv {path}.t {path}",
        )
    )


def _odd_name(pick: Pick) -> str:
    name = pick.choice((r"$'\xff\xfe'", r"$'a\nb'", "'  '", "ünï", "'→'", "'[x]'", r"$'\x1b[1m'"))
    folder = _folder(pick)
    return pick.choice((f"echo 1 >> {folder}/{name}", f"mv {folder}/{name} {_folder(pick)}/{name}"))


def _size(pick: Pick) -> str:
    path = f"{_folder(pick)}/big{pick.randint(1, 3)}"
    return f"truncate -s {pick.choice((0, 1, 5000, 1048576, 3000000))} {path}"


_FILES: tuple[Operation, ...] = (
    *(_write, _write, _write, _append, _append, _delete, _rename, _rename, _mode, _owner, _attribute),
    *(_link, _swap, _replace, _odd_name, _size),
)

# ---- folders -------------------------------------------------------------------------------------


def _move_folder(pick: Pick) -> str:
    return f"mv -n {_folder(pick)} {_folder(pick)}{pick.choice(('', '2', '/in'))}"


def _swap_folders(pick: Pick) -> str:
    one, other = _folder(pick), _folder(pick)
    return f"mv {one} {_TOP}/t && mv {other} {one}; mv {_TOP}/t {other}"


def _delete_folder(pick: Pick) -> str:
    return f"rm -rf {_folder(pick)}"


def _copy_folder(pick: Pick) -> str:
    return f"cp -a {_folder(pick)} {_folder(pick)}{pick.choice(('', '-copy'))}"


def _make_again(_: Pick) -> str:
    return f"mkdir -p {_TOP}/{{{','.join(_FOLDERS)}}}"


_TREES: tuple[Operation, ...] = (
    _move_folder,
    _swap_folders,
    _delete_folder,
    _copy_folder,
    _make_again,
    _write,
)

# ---- the base ------------------------------------------------------------------------------------


def _base_folder(pick: Pick) -> str:
    return "/usr/local/lib/python3.11/" + pick.choice(("json", "email", "html", "xml", "wsgiref", "curses"))


def _base_moves(pick: Pick) -> str:
    folder = _base_folder(pick)
    return pick.choice(
        (
            f"mv {folder} {folder}.moved",
            f"mv {folder}.moved {folder}",
            f"mv {folder} {_folder(pick)}/",
            f"rm -rf {folder}",
            f"rm -f {folder}/[a-m]*",
            f"echo x >> {folder}/__init__.py",
            f"mkdir {folder}",
            f"chmod 700 {folder}",
            f"cp -a {folder} {folder}.moved && rm -rf {folder}",
        )
    )


_BASE: tuple[Operation, ...] = (_base_moves,)

# ---- repositories --------------------------------------------------------------------------------


def _git(command: str) -> Operation:
    def make(pick: Pick) -> str:
        start = "[ -d .git ] || { git init -q; git config gc.auto 0; }"
        names = {"branch": pick.choice(("main", "one", "two")), "n": str(pick.randint(1, 20))}
        return f"cd {_TOP}/a; {start}; {command.format(**names)}; cd {_TOP}"

    return make


_GIT: tuple[Operation, ...] = (
    _git("echo {n} >> f{n}; git add -A; git commit -qm 'commit {n}'"),
    _git("echo {n} >> f{n}; git add -A; git commit -qm 'commit {n}'"),
    _git("git checkout -q {branch} || git checkout -q -b {branch}"),
    _git("git reset -q --hard HEAD~1"),
    _git("git reset -q HEAD~1"),
    _git("git merge -q --no-edit {branch}"),
    _git("git branch -D {branch}"),
    _git("git checkout -q --detach"),
    _git("echo x > f{n}; git add f{n}; echo y >> f{n}"),
    _git("git rm -q --cached f{n}"),
    _git("echo 'f1*' > .gitignore"),
    _git("git commit -q --amend -m 'amended {n}'"),
    _git("git rebase -q {branch} || git rebase --abort"),
    _git("git cherry-pick {branch} || git cherry-pick --abort"),
    _git("git gc -q"),
    _write,
)

# ---- databases -----------------------------------------------------------------------------------


def _sql(statement: str) -> Operation:
    def make(pick: Pick) -> str:
        names = {"n": str(pick.randint(1, 60)), "table": pick.choice(("t", "u"))}
        return f'cd {_TOP} && sqlite3 data.db "{statement.format(**names)}"'

    return make


_SQLITE: tuple[Operation, ...] = (
    _sql("create table {table} (id integer primary key, v)"),
    _sql("create table {table} (k, v)"),
    _sql("insert into {table} values ({n}, 'v{n}')"),
    _sql(
        "with recursive n(i) as (select 1 union all select i+1 from n where i < {n})"
        " insert into {table} select i + 100, 'x' from n"
    ),
    _sql("update {table} set v = '{n}' where rowid > {n}"),
    _sql("delete from {table} where rowid < {n}"),
    _sql("drop table {table}"),
    _sql("alter table {table} rename to w{n}"),
    _sql("create index i{n} on {table} (v)"),
    _sql("pragma journal_mode = wal; insert into {table} values (500 + {n}, null)"),
    _sql("vacuum"),
)

# ---- the live side -------------------------------------------------------------------------------


def _serve(pick: Pick) -> str:
    port = pick.choice(_PORTS)
    return (
        f"(: </dev/tcp/127.0.0.1/{port}) || {{ python3 -m http.server {port} >/dev/null 2>&1 & }}; for i in {{1..60}}; do"
        f" (: </dev/tcp/127.0.0.1/{port}) 2>/dev/null && break; sleep 0.05; done"
    )


def _sleep(pick: Pick) -> str:
    return f"sleep {pick.randint(1000, 1010)} & until grep -q ^sleep /proc/$!/cmdline; do :; done"


def _end(pick: Pick) -> str:
    return f"kill %{pick.randint(1, 3)} && wait %{pick.randint(1, 3)}"


def _end_all(_: Pick) -> str:
    return "kill $(jobs -p); wait"


_LIVE: tuple[Operation, ...] = (_serve, _sleep, _sleep, _end, _end_all)


def _shell(command: str) -> Operation:
    def make(pick: Pick) -> str:
        return command.format(n=pick.randint(1, 4), value=pick.choice(("blue", "green", "$RANDOM")))

    return make


_SHELL: tuple[Operation, ...] = (
    _shell("export V{n}={value}"),
    _shell("W{n}={value}"),
    _shell("unset V{n} W{n}"),
    _shell("alias l{n}='ls {value}'"),
    _shell("unalias l{n}"),
    _shell("eval 'f{n}() {{ echo {value}; }}'"),
    _shell("unset -f f{n}"),
    _shell("umask 02{n}"),
    _shell("shopt -s nullglob"),
    _shell("shopt -u nullglob"),
    _shell("trap 'echo {value}' USR1"),
    _shell("trap - USR1"),
    _shell("A{n}=(a {value})"),
    _shell("cd /srv; cd /etc"),
)

# ---- the system ----------------------------------------------------------------------------------

_CRON, _UNITS, _USER_UNITS = "/etc/cron.d", "/etc/systemd/system", "/root/.config/systemd/user"


def _admin(command: str) -> Operation:
    def make(pick: Pick) -> str:
        names = {
            "n": str(pick.randint(1, 3)),
            "m": str(pick.randint(1, 3)),
            "units": pick.choice((_UNITS, _USER_UNITS)),
        }
        return command.format(**names)

    return make


_SYSTEM: tuple[Operation, ...] = (
    _admin(f"echo '{{n}} * * * * root true' >> {_CRON}/job{{m}}"),
    _admin(f"echo '# {{n}}' >> {_CRON}/job{{m}}"),
    _admin(f"rm -f {_CRON}/job{{n}}"),
    _admin("grep -q ^g{n}: /etc/group || echo 'g{n}:x:210{n}:' >> /etc/group"),
    _admin("sed -i 's/^g{n}:.*/g{n}:x:210{m}:root/' /etc/group"),
    _admin("sed -i '/^g{n}:/d' /etc/group"),
    _admin("grep -q ^u{n}: /etc/passwd || echo 'u{n}:x:200{n}:200{n}::/home/u{m}:/bin/sh' >> /etc/passwd"),
    _admin("grep -q ^u{n}: /etc/shadow || echo 'u{n}:$6$a{m}$b:19000::::::' >> /etc/shadow"),
    _admin("sed -i '/^u{n}:/d' /etc/passwd /etc/shadow"),
    _admin("sed -i 's/^u{n}:[^:]*/u{n}:!/' /etc/shadow"),
    _admin("mkdir -p {units}; echo '# {n}' >> {units}/app{m}.service"),
    _admin("mkdir -p {units}/default.target.wants; ln -sf ../app{n}.service {units}/default.target.wants/"),
    _admin("rm -f {units}/app{n}.service {units}/default.target.wants/app{m}.service"),
    _admin(f"cp /usr/bin/true {_TOP}/tool{{n}}; setcap cap_net_raw+ep {_TOP}/tool{{m}}"),
    _admin(f"setcap cap_net_admin+ep {_TOP}/tool{{n}}; mv {_TOP}/tool{{n}} {_TOP}/tool{{m}}"),
)
