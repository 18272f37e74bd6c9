"""Packages of all kinds, made by the story itself; accounts, and what runs or is allowed by itself."""

from __future__ import annotations

from tests.truth.story import Story, story

WHEEL = """
make_wheel() { python3 - "$@" <<'EOF'
import sys, zipfile
name, version, *needs = sys.argv[1:]
about = f"{name}-{version}.dist-info"
with zipfile.ZipFile(f"/srv/wheels/{name}-{version}-py3-none-any.whl", "w") as file:
    file.writestr(f"{name}.py", f"VERSION = {version!r}\\n")
    head = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    file.writestr(f"{about}/METADATA", head + "".join(f"Requires-Dist: {need}\\n" for need in needs))
    file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    file.writestr(f"{about}/RECORD", "")
EOF
}
"""
PIP = "python3 -m pip --disable-pip-version-check --no-cache-dir -q --python .venv/bin/python"
_DEB = """
make_deb() { rm -rf /tmp/deb; mkdir -p /tmp/deb/DEBIAN /tmp/deb/opt/$1; echo "$2" > /tmp/deb/opt/$1/version
printf 'Package: %s\\nVersion: %s\\nArchitecture: all\\nMaintainer: x <x@example.org>\\nDescription: made for a story\\n' \\
  "$1" "$2" > /tmp/deb/DEBIAN/control
dpkg-deb -b /tmp/deb /srv/$1_$2.deb >/dev/null; rm -rf /tmp/deb; }
"""

_CONDA = """
conda_add() { python3 - "$@" <<'EOF'
import json, os, sys
place, name, version, wanted, *depends = sys.argv[1:]
os.makedirs(f"{place}/conda-meta", exist_ok=True)
os.makedirs(f"{place}/lib", exist_ok=True)
open(f"{place}/lib/{name}.so", "w").write(version)
about = {"name": name, "version": version, "requested_spec": wanted, "depends": depends, "files": []}
json.dump(about, open(f"{place}/conda-meta/{name}-{version}-0.json", "w"))
EOF
}
"""
_LOCK = """
lock() { python3 - "$@" <<'EOF'
import json, sys
names = [word.split("@") for word in sys.argv[1:]]
packages = {"": {"name": "app"}, **{f"node_modules/{name}": {"version": version} for name, version in names}}
packages[f"node_modules/{names[0][0]}"]["dependencies"] = {name: "*" for name, _ in names[1:]}
json.dump({"lockfileVersion": 3, "packages": packages}, open("package-lock.json", "w"))
EOF
}
"""
_KEY = """
make_key() { python3 - "$@" <<'EOF'
import base64, sys
kind = b"ssh-ed25519"
key = len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + sys.argv[1].encode().ljust(32, b"k")
print("ssh-ed25519", base64.b64encode(key).decode(), *sys.argv[2:])
EOF
}
"""

STORIES: tuple[Story, ...] = (
    story(
        "python packages",
        f"{WHEEL}mkdir -p /srv/wheels /srv/app && cd /srv/app && python3 -m venv --without-pip .venv && make_wheel tiny 1.0"
        " && make_wheel tiny 1.1 && make_wheel big 2.0 tiny && make_wheel other 0.9",
        f"{PIP} install --no-index --find-links /srv/wheels tiny==1.0 2>/dev/null",
        f"{PIP} install --no-index --find-links /srv/wheels big tiny==1.1 2>/dev/null",
        f"{PIP} install --no-index --find-links /srv/wheels other tiny==1.0 2>/dev/null",
        f"{PIP} uninstall -y tiny other 2>/dev/null",
    ),
    story(
        "node packages",
        "export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false; unset NODE_EXTRA_CA_CERTS;"
        " mkdir -p /srv/p/left /srv/p/right /srv/app && cd /srv/p && for n in left right; do printf"
        ' \'{"name": "%s", "version": "1.0.0"}\' $n > $n/package.json; echo 1 > $n/index.js; (cd $n && npm pack -s'
        ' --pack-destination /srv/p >/dev/null); done && cd /srv/app && echo \'{"name": "app", "version": "0.1.0"}\''
        " > package.json",
        "npm install -s --offline /srv/p/left-1.0.0.tgz >/dev/null",
        "npm install -s --offline /srv/p/right-1.0.0.tgz >/dev/null",
        "npm uninstall -s left >/dev/null",
        "rm -rf node_modules",
        needs=("node", "npm"),
    ),
    story(
        "debian packages",
        f"{_DEB}make_deb hello 1.0; make_deb hello 1.1; make_deb tool 2.0-1",
        "dpkg -i /srv/hello_1.0.deb >/dev/null 2>&1",
        "dpkg -i /srv/hello_1.1.deb /srv/tool_2.0-1.deb >/dev/null 2>&1",
        "dpkg -r hello >/dev/null 2>&1; dpkg -i /srv/hello_1.0.deb >/dev/null 2>&1",
        "dpkg -P hello tool >/dev/null 2>&1",
        needs=("dpkg", "dpkg-deb", "start-stop-daemon", "ldconfig"),
    ),
    story(
        "accounts and scheduled commands",
        "echo 'ada:x:1000:1000:Ada:/home/ada:/bin/bash' >> /etc/passwd && echo 'ada:x:1000:' >> /etc/group",
        "echo '* * * * * root true' > /etc/cron.d/job && sed -i 's#/home/ada#/srv/ada#' /etc/passwd",
        "echo '1 * * * * root false' >> /etc/cron.d/job && sed -i 's/^staff.*/staff:x:50:ada/' /etc/group",
        "rm /etc/cron.d/job && sed -i /^ada/d /etc/passwd /etc/group && sed -i 's/^root:[*]/root:$6$x$y/' /etc/shadow",
    ),
    story(
        "environments of conda",
        f"{_CONDA}conda_add /opt/conda python 3.11.7 python zlib && conda_add /opt/conda zlib 1.3 None"
        " && mkdir -p /opt/conda/pkgs/zlib-1.3-0/lib && echo z > /opt/conda/pkgs/zlib-1.3-0/lib/libz.so",
        "conda_add /opt/conda/envs/ml numpy 1.26.0 numpy blas && conda_add /opt/conda/envs/ml blas 1.0 None"
        " && echo 'import numpy' > /opt/conda/envs/ml/run.py",
        "rm /opt/conda/envs/ml/conda-meta/numpy-* && conda_add /opt/conda/envs/ml numpy 2.0.0 numpy blas",
        "rm /opt/conda/envs/ml/conda-meta/blas-* && conda_add /opt/conda/envs/ml blas 1.1 None",
        "rm -r /opt/conda/envs/ml && conda_add /opt/conda zlib 1.4 None && rm /opt/conda/conda-meta/zlib-1.3-0.json",
    ),
    story(
        "packages that only a lock file names",
        f'{_LOCK}mkdir -p /srv/app && cd /srv/app && echo \'{{"dependencies": {{"left": "^1"}}}}\' > package.json'
        " && lock left@1.0.0",
        "lock left@1.0.0 right@2.0.0",
        "lock left@1.1.0 right@2.0.0 far@0.1.0",
        "lock left@1.1.0",
        "rm package-lock.json",
    ),
    story(
        "groups, passwords and keys that may log in",
        f"{_KEY}mkdir -p /root/.ssh && make_key one ann@here > /root/.ssh/authorized_keys"
        " && echo 'devs:x:2000:' >> /etc/group",
        "make_key two >> /root/.ssh/authorized_keys && sed -i 's/^devs.*/devs:x:2000:daemon,root/' /etc/group"
        " && sed -i 's/^daemon:[*]/daemon:$6$a$b/' /etc/shadow",
        "make_key two > /root/.ssh/authorized_keys && sed -i 's/^devs.*/devs:x:2001:root/' /etc/group"
        " && sed -i 's/^daemon:/daemon:!/' /etc/shadow && echo 'bo:x:1001:1001::/home/bo:/bin/sh' >> /etc/passwd"
        " && echo 'bo:x:1001:' >> /etc/group && echo 'bo:$6$c$d:19000::::::' >> /etc/shadow",
        "rm /root/.ssh/authorized_keys && sed -i /^devs/d /etc/group && sed -i 's/^daemon:!/daemon:/' /etc/shadow"
        " && sed -i '/^bo/d' /etc/passwd /etc/group /etc/shadow",
    ),
    story(
        "units of systemd, of the system and of a user",
        "mkdir -p /etc/systemd/system /root/.config/systemd/user && printf '[Service]\\nExecStart=/bin/true\\n'"
        " > /etc/systemd/system/app.service && printf '[Timer]\\nOnCalendar=daily\\n' >"
        " /root/.config/systemd/user/tidy.timer",
        "mkdir /etc/systemd/system/multi-user.target.wants /root/.config/systemd/user/timers.target.wants"
        " && ln -s ../app.service /etc/systemd/system/multi-user.target.wants/app.service"
        " && ln -s ../tidy.timer /root/.config/systemd/user/timers.target.wants/tidy.timer",
        "sed -i s/true/false/ /etc/systemd/system/app.service && mkdir /etc/systemd/system/app.service.d"
        " && printf '[Service]\\nUser=nobody\\n' > /etc/systemd/system/app.service.d/user.conf"
        " && rm /root/.config/systemd/user/timers.target.wants/tidy.timer",
        "rm -r /etc/systemd/system/* /root/.config/systemd/user/tidy.timer",
    ),
    story(
        "capabilities of programs",
        "mkdir -p /srv/bin /srv/app && cp /usr/bin/true /srv/bin/ping && cp /usr/bin/true /srv/app/serve.bin"
        " && setcap cap_net_raw+ep /srv/bin/ping",
        "setcap cap_net_bind_service+ep /srv/app/serve.bin && mv /srv/bin/ping /srv/bin/ping2",
        "setcap cap_net_raw,cap_net_admin+eip /srv/bin/ping2 && cp /srv/app/serve.bin /srv/app/serve2.bin",
        "setcap -r /srv/bin/ping2 && rm /srv/app/serve.bin",
        needs=("setcap",),
    ),
)
