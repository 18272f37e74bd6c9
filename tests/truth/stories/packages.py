"""Packages of Python, node and Debian, made by the story itself; accounts and scheduled commands."""

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
)
