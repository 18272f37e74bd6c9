"""Redaction: what is a secret goes, what is none stays, and nothing takes long."""

from __future__ import annotations

import random
import secrets
import string
import time
from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.history.redaction import MASK, Redactor, is_secret_file, name_grade

plain = Redactor()


def shown(text: str) -> str:
    return plain.redact(text).text


# Made here rather than written down: this file must not trip anybody's scanner.
LETTERS = "aZ3bY4cX5dW6eV7fU8gT9hS0iR1jQ2kP3lO4mN5nM6oL7pK8qJ9r"
SHAPES = {
    "AKIA": "AKIA" + "Q7WERTY4UIOP2ASD",
    "ghp_": "ghp_" + LETTERS[:36],
    "github_pat_": "github_pat_" + LETTERS[:22] + "_" + LETTERS[:50],
    "glpat-": "glpat-" + LETTERS[:20],
    "xoxb-": "xoxb-" + "123456789012-" + LETTERS[:24],
    "sk_live_": "sk_live_" + LETTERS[:24],
    "sk-": "sk-" + LETTERS[:48],
    "sk-ant-": "sk-ant-" + "api03-" + LETTERS[:48],
    "sk-proj-": "sk-proj-" + LETTERS[:48],
    "AIza": "AIza" + LETTERS[:35],
    "eyJ": "eyJ" + LETTERS[:17] + "." + "eyJ" + LETTERS[:30] + "." + LETTERS[:43],
    "npm_": "npm_" + LETTERS[:36],
    "pypi-": "pypi-" + "AgEIcHlwaS5vcmc" + LETTERS[:40],
    "hf_": "hf_" + LETTERS[:34],
    "hooks.slack.com/services/": "hooks.slack.com/services/" + "T01234567/B01234567/" + LETTERS[:24],
}


@pytest.mark.parametrize(("prefix", "key"), SHAPES.items())
@pytest.mark.parametrize(
    "around", ["{}", "got {} from them", '"{}"', "x={}", "+{}\n", "(https://{})", "a,{},b"]
)
def test_keys_are_known_by_their_shape_wherever_they_are(prefix: str, key: str, around: str) -> None:
    found = plain.redact(around.format(key))
    assert found.text == around.format(prefix + MASK)
    assert found.count == 1


@pytest.mark.parametrize(
    "name",
    [
        "TOKEN", "API_KEY", "SECRET", "DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "GITHUB_TOKEN",
        "STRIPE_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "SECRET_KEY_BASE", "clientSecret",
        "apiKey", "access_token", "_authToken", "NPM_AUTH", "SESSION_COOKIE", "SENTRY_DSN", "passphrase",
        "DJANGO_SECRET_KEY", "KEY", "PASS", "CREDENTIALS", "SSHPASS_PASSWORD", "API_KEY_2", "X-Api-Key",
        "Authorization",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert name_grade(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "PWD", "OLDPWD", "KEYBOARD", "MONKEY", "KEYMAP", "AUTHOR", "GIT_AUTHOR_NAME",
        "SSH_AUTH_SOCK", "XAUTHORITY", "SSH_ASKPASS", "TOKENIZERS_PARALLELISM", "MAX_TOKENS",
        "max_output_tokens", "PASSWORD_FILE", "TOKEN_URL", "KEY_PATH", "PUBLIC_KEY", "primary_key",
        "GPG_KEY", "COMPASS", "BYPASS", "PASSENGER_APP", "HOME", "LS_COLORS", "cookie_banner",
        "auth_backend", "HISTFILE", "KEYTIMEOUT", "secretName", "password-stdin", "",
    ],
)  # fmt: skip
def test_names_of_nothing_of_the_kind(name: str) -> None:
    assert name_grade(name) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("export API_TOKEN=abcdef", "export API_TOKEN=[redacted]"),
        ("DB_PASSWORD='correct horse'", "DB_PASSWORD='[redacted]'"),
        ('password = "hunter2"', 'password = "[redacted]"'),
        ('{"password": "hunter2", "user": "ann"}', '{"password": "[redacted]", "user": "ann"}'),
        (r'{\"client_secret\": \"hunter2\"}', r"{\"client_secret\": \"[redacted]\"}"),
        ("password: hunter2", "password: [redacted]"),
        ("- password: swordfish\n- user: ann", "- password: [redacted]\n- user: ann"),
        ("login failed: password=swordfish host=db", "login failed: password=[redacted] host=db"),
        ("config[secret_key] = 'a b c'", "config[secret_key] = '[redacted]'"),
        ("api_key: str = 'hunter2'", "api_key: str = '[redacted]'"),
        ("GET /x?access_token=abc123def&page=2", "GET /x?access_token=[redacted]&page=2"),
        ("postgres://app:s3cr3t@db:5432/app", "postgres://app:[redacted]@db:5432/app"),
        ("redis://:s3cr3t@cache/0", "redis://:[redacted]@cache/0"),
        ("https://user:p@ss@host/x", "https://user:[redacted]@host/x"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]"),
        ("-H 'Authorization: Token 0123456789abcdef'", "-H 'Authorization: Token [redacted]'"),
        ("got Bearer abcdef123456 back", "got Bearer [redacted] back"),
        (f"Basic {b64encode(b'ann:hunter2').decode()}", "Basic [redacted]"),
        ("Set-Cookie: sid=abc; Path=/", "Set-Cookie: [redacted]"),
        ("X-Api-Key: 12ab34cd", "X-Api-Key: [redacted]"),
        ("<password>hunter2</password>", "<password>[redacted]</password>"),
        ("//registry.example.org/:_authToken=abc-def-1", "//registry.example.org/:_authToken=[redacted]"),
        ("tool --password=hunter2 --verbose", "tool --password=[redacted] --verbose"),
        ("tool --password hunter2 --verbose", "tool --password [redacted] --verbose"),
        ("tool --api-key 'a b'", "tool --api-key '[redacted]'"),
        ("mysql -u root -phunter2 shop", "mysql -u root -p[redacted] shop"),
        ("sshpass -p hunter2 ssh box", "sshpass -p [redacted] ssh box"),
        ("docker login -u ann -p hunter2 host", "docker login -u ann -p [redacted] host"),
        ("curl -u ann:hunter2 https://host/", "curl -u ann:[redacted] https://host/"),
        ("redis-cli -a hunter2 ping", "redis-cli -a [redacted] ping"),
        ("openssl rsa -passin pass:hunter2", "openssl rsa -passin pass:[redacted]"),
        ("openssl enc -aes-256-cbc -k hunter2 -in x", "openssl enc -aes-256-cbc -k [redacted] -in x"),
        ("zip -P hunter2 a.zip x", "zip -P [redacted] a.zip x"),
        ("7z a -phunter2 x.7z y", "7z a -p[redacted] x.7z y"),
        ("echo ann:hunter2 | chpasswd", "echo ann:[redacted] | chpasswd"),
        ("echo 'ann:hunter2' | sudo chpasswd", "echo 'ann:[redacted]' | sudo chpasswd"),
        ("chpasswd <<< ann:hunter2", "chpasswd <<< ann:[redacted]"),
        ("chpasswd <<EOF\nann:hunter2\nEOF", "chpasswd <<EOF\nann:[redacted]\nEOF"),
        ("smbclient -U ann%hunter2 //h/s", "smbclient -U ann%[redacted] //h/s"),
        ("AZURE_PAT=abcd1234efgh5678", "AZURE_PAT=[redacted]"),
        ("ldapsearch -x -w hunter2 -b dc", "ldapsearch -x -w [redacted] -b dc"),
        ("mosquitto_pub -u a -P hunter2 -t x", "mosquitto_pub -u a -P [redacted] -t x"),
        ("mongosh -u a -p hunter2", "mongosh -u a -p [redacted]"),
        ("htpasswd -b .htpasswd ann hunter2", "htpasswd -b .htpasswd ann [redacted]"),
        ("snmpwalk -v2c -c hunter2 host", "snmpwalk -v2c -c [redacted] host"),
        ("lftp -u ann,hunter2 host", "lftp -u ann,[redacted] host"),
        ("vault login hunter2", "vault login [redacted]"),
        ("echo hunter2 | sudo -S ls", "echo [redacted] | sudo -S ls"),
        ("echo hunter2 | podman login --password-stdin", "echo [redacted] | podman login --password-stdin"),
        (f"your API key is {LETTERS[:32]} now", "your API key is [redacted] now"),
        ('token="unfinished1x2', 'token="[redacted]'),
    ],
)  # fmt: skip
def test_values_are_known_by_their_place(text: str, expected: str) -> None:
    found = plain.redact(text)
    assert found.text == expected
    assert found.count == 1


@pytest.mark.parametrize(
    "text",
    [
        "commit 3f66b574b9ca5953cfd84b78fe1b887748de6477 (HEAD -> main)",
        "3f66b574b9ca5953cfd84b78fe1b887748de6477",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        '"integrity": "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeo=="',
        "request 550e8400-e29b-41d4-a716-446655440000 done in 12 ms",
        "src/components/auth/TokenRefreshButton.test.tsx",
        "/app/node_modules/@babel/helper-validator-identifier/lib/keyword.js",
        "aGVsbG8gd29ybGQ=",
        "2026-03-01T10:27:00Z INFO listening on http://127.0.0.1:8080",
        "PASS src/app.test.js\nTests: 12 passed, 3 failed",
        "pass: 12, fail: 3",
        "PASS=12 FAIL=3",
        "SyntaxError: Unexpected token: punc (;)",
        "usage: prompt_tokens=812 completion_tokens=45 total_tokens=857",
        "def login(user, password=None, token: str | None = None) -> bool:",
        "    return connect(user=user, password=password, key=self.key)",
        "token = self._next_token()",
        'password = os.environ["DB_PASSWORD"]',
        "API_KEY=$API_KEY TOKEN=${TOKEN} ./run",
        "password: ${{ secrets.PYPI_TOKEN }}",
        "  --password PASSWORD   the password to use",
        "  --token TOKEN         a token",
        "docker login --password-stdin host.example.org",
        "match_pat = '*.py'; echo done | sudo ls; zip -r a.zip b; vault login -method=ldap; unzip -P",
        "Enter password: ",
        'label = {"password": "Enter your password"}',
        "invalid password: incorrect",
        '"cookie": "~0.5.0", "js-tokens": "^3.0.0 || ^4.0.0", "password-prompt": "^1.1.3"',
        "SSH_AUTH_SOCK=/run/user/0/agent KEYBOARD=us MONKEY=george",
        "GOOGLE_APPLICATION_CREDENTIALS=/etc/gcloud/creds.json",
        "ssh-keygen: key fingerprint is SHA256:nThbg6kXUpJWGl7E1IGOCspRomTxdCARLviKw6E5SY8",
        "curl -u ann https://host/ && ls -pla && mysql -u root -p shop",
        "git clone https://github.com/example/repo.git && ssh git@github.com",
        "http://localhost:3000/@vite/client",
        "primary_key=order_id sort_key=created_at",
        "bearer authentication is required",
        "basic auth: enabled",
        "key=up keys: ctrl+c",
        "_DD_SIGNATURE = 0x08074b50",
        "CLIENT_AUTH = '1.3.6.1.5.5.7.3.2'",
        "credentials = '{0}:{1}'.format(user, passwd)",
        "self.hide_cookie2 = hide_cookie2",
        'passwords = ["%s", given]',
        'dashes = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"',
        "the secret of this recipe: butter",
        "skip sk-learn and task-management-is-not-a-key-but-a-long-name",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    found = plain.redact(text)
    assert found.text == text
    assert found.count == 0


BODY = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 4)


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
def test_private_keys_lose_everything_between_the_dashes(kind: str) -> None:
    begin, end = f"-----BEGIN {kind}PRIVATE KEY-----", f"-----END {kind}PRIVATE KEY-----"
    found = plain.redact(f"a\n{begin}\n{BODY}\n{end}\nb")
    assert found.text == f"a\n{begin}\n{MASK}\n{end}\nb"
    assert found.count == 1
    written = BODY.replace("\n", "\\n")
    assert shown(f'k = "{begin}\\n{written}\\n{end}"') == f'k = "{begin}{MASK}{end}"'


def test_private_keys_in_diffs_keep_the_margin_and_cut_ones_are_hidden_too() -> None:
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    added = "".join(f"+{line}\n" for line in (begin, *BODY.split("\n"), end))
    assert shown(added) == f"+{begin}\n+{MASK}\n+{end}\n"
    assert "MIIEvQ" not in shown(f"{begin}\n{BODY}")


def test_variables_are_judged_by_name_and_by_value() -> None:
    variables = {
        "PATH": "/usr/bin:/bin",
        "API_TOKEN": "short",
        "GREETING": f"hello {SHAPES['ghp_']}",
        "GITHUB_TOKEN": SHAPES["ghp_"],
        "DATABASE_URL": "postgres://app:pw@db/app",
        "USE_AUTH": "true",
        "MAX_TOKENS": "4096",
        "SSH_KEY": "/root/.ssh/id_ed25519",
        "LANG": "C.UTF-8",
    }
    listed = [{"name": name, "value": value} for name, value in variables.items()]
    found, count = plain.redact_json(listed)
    assert {one["name"]: one["value"] for one in found} == {
        **variables,
        "API_TOKEN": MASK,
        "GREETING": f"hello ghp_{MASK}",
        "GITHUB_TOKEN": f"ghp_{MASK}",
        "DATABASE_URL": f"postgres://app:{MASK}@db/app",
    }
    assert count == 4


def test_json_keeps_its_keys_its_types_and_its_order() -> None:
    given_json = {
        "env": {"API_KEY": "hunter2", "HOME": "/root"},
        "variables": [{"name": "DB_PASSWORD", "before": None, "after": "hunter2"}],
        "packages": [{"ecosystem": "apt", "name": "passwd", "before": "1:4.13", "after": "20260301"}],
        "tables": ({"name": "tokens", "rows_before": 3, "rows_after": 4},),
        "passwords": ["one", "two"],
        "commands": ["tool --token=abcdef1 run", 3, 2.5, True, None],
        "token": 12,
    }
    found, count = plain.redact_json(given_json)
    assert found == {
        **given_json,
        "env": {"API_KEY": MASK, "HOME": "/root"},
        "variables": [{"name": "DB_PASSWORD", "before": None, "after": MASK}],
        "passwords": [MASK, MASK],
        "commands": [f"tool --token={MASK} run", 3, 2.5, True, None],
    }
    assert list(found) == list(given_json)
    assert count == 5


def test_known_values_are_found_anywhere() -> None:
    redactor = Redactor.for_variables(
        {"DB_PASSWORD": "tr0ub4dor&3", "API_TOKEN": "postgres", "HOME": "/home/ann"}
    )
    found = redactor.redact("connecting with tr0ub4dor&3 to postgres at /home/ann")
    assert found.text == f"connecting with {MASK} to postgres at /home/ann"
    assert found.count == 1


def test_env_files_show_names_only_and_key_files_nothing() -> None:
    text = (
        "# settings\nexport NAME=ann\n+REGION: eu-1\nMOTTO=to be; or, not\nPORT=3000\nDEBUG=true\nEMPTY=\n"
        "REF=${NAME}\n"
    )
    found = plain.redact_file("/app/.env.local", text)
    assert found.text == text.replace("=ann", f"={MASK}").replace("eu-1", MASK).replace(
        "to be; or, not", MASK
    )
    assert found.count == 3
    assert plain.redact_file("/app/app.py", "NAME=ann\n").text == "NAME=ann\n"
    netrc = "@@ -1 +1,2 @@\n machine host\n+login ann password hunter2\n"
    assert plain.redact_file("/root/.netrc", netrc).text == f"@@ -1 +1,2 @@\n {MASK}\n+{MASK}\n"
    patch = (
        "--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-name = 1\n+password = 'hunter2'\n"
        "--- /dev/null\n+++ b/.env\t2026-01-01\n@@ -0,0 +1 @@\n+NAME=ann\n"
        "--- a/README\n+++ b/README\n@@ -1 +1 @@\n-NAME=ann\n+NAME=bob\n"
    )
    found = plain.redact_patch(patch)
    assert found.text == patch.replace("hunter2", MASK).replace("+NAME=ann", f"+NAME={MASK}")
    assert found.count == 2
    assert is_secret_file("/root/.ssh/id_ed25519")
    assert not is_secret_file("/root/.ssh/id_ed25519.pub")


# Properties

WORDS = [
    *SHAPES.values(), "password", "token", "API_KEY", "secret", "--password", "Authorization", "Cookie",
    "Bearer", "-p", "mysql", "curl", "-u", "https://", "user:", "@host", "<password>", "</password>",
    "export", "key", "auth", "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----", BODY, MASK,
    "hunter2", "abc123def456ghi", "None", "$TOKEN", "3f66b574b9ca5953cfd84b78fe1b887748de647", '"', "'", "\\",
    "=", ":", " ", "\n", "\t", ",", ";", "(", ")", "[", "]", "{", "}", "&", "|", ".", "-", "_", "+", "é",
    "\x1b[31m", "\0",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)), max_size=24).map("".join)


@given(texts)
@settings(max_examples=600, deadline=None)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = plain.redact(text)
    again = plain.redact(once.text)
    assert again.text == once.text
    assert again.count == 0


@given(texts)
@settings(max_examples=300, deadline=None)
def test_every_replacement_is_counted_and_costs_no_more_than_its_mask(text: str) -> None:
    found = plain.redact(text)
    assert len(found.text) <= len(text) + found.count * (len(MASK) + 2)
    assert (found.count == 0) == (found.text == text)
    assert found.text.count(MASK) <= text.count(MASK) + found.count


@given(st.text(alphabet=string.ascii_lowercase + " \n.,", max_size=400))
@settings(max_examples=300, deadline=None)
def test_prose_without_names_and_shapes_is_untouched(text: str) -> None:
    assert plain.redact(text).text == text


@given(st.sampled_from(sorted(SHAPES)), texts, texts)
@settings(max_examples=300, deadline=None)
def test_a_key_never_survives_between_anything(prefix: str, before: str, after: str) -> None:
    key = SHAPES[prefix][:-4] + "ZZ99"
    assert key not in plain.redact(f"{before} {key} {after}").text


@given(
    st.recursive(
        texts | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
    )
)
@settings(max_examples=150, deadline=None)
def test_json_keeps_its_shape(value: object) -> None:
    def shape(item: object) -> object:
        if isinstance(item, dict):
            return {key: shape(below) for key, below in item.items()}
        return [shape(below) for below in item] if isinstance(item, list) else type(item)

    assert shape(plain.redact_json(value)[0]) == shape(value)


# Time

MEGABYTE = 1_000_000
JUNK = {
    "letters": "a",
    "words": "lorem ipsum dolor sit amet\n",
    "random": "".join(random.Random(7).choices(string.printable, k=9973)),
    "base64": b64encode(random.Random(7).randbytes(9000)).decode(),
    "assignments": "a=b c: d ",
    "nested": "key=",
    "nested with quotes": "password=\"'",
    "keys": "token ",
    "urls": "a://b:c",
    "url": "://",
    "at": "https://a:b@",
    "pem": "-----BEGIN RSA PRIVATE KEY-----",
    "pem lines": "-----BEGIN PRIVATE KEY-----\nAAAA\n",
    "jwt": "eyJeyJ",
    "dashes": "-----",
    "sk": "sk-",
    "headers": "cookie: authorization: ",
    "elements": "<password>",
    "commands": "mysql curl -u -p sshpass -a ",
    "flags": "--password --token ",
    "hidden": "PASSWORD=hunter2 ",
    "quotes": 'secret="',
    "braces": f'secret="{"{}}" * 60}x" ',
    "digits": f'password="{"1." * 4000}x!" ',
    "dollars": "TOKEN=${" + "a." * 90 + " ",
    "backslashes": 'secret="\\',
}


@pytest.mark.parametrize("name", JUNK)
def test_junk_is_gone_through_in_linear_time(name: str) -> None:
    def seconds(size: int) -> float:
        text = (JUNK[name] * (size // len(JUNK[name]) + 1))[:size]
        start = time.process_time()
        plain.redact(text)
        return time.process_time() - start

    small = seconds(MEGABYTE // 10)
    assert seconds(MEGABYTE) < 30 * small + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["letters", "words", "random", "base64", "assignments"])
def test_five_megabytes_of_junk_take_seconds(name: str) -> None:
    text = (JUNK[name] * (5 * MEGABYTE // len(JUNK[name])))[: 5 * MEGABYTE]
    start = time.process_time()
    plain.redact(text)
    assert time.process_time() - start < 15


def test_a_random_secret_after_its_name_never_shows() -> None:
    for _ in range(200):
        # Without a digit it could as well be words, and what begins with a dash another option.
        value = f"k{secrets.token_urlsafe(18)}7{secrets.token_urlsafe(4)}"
        for text in (
            f"API_TOKEN={value}",
            f'"api_token": "{value}"',
            f"--api-token {value}",
            f"token: {value}",
        ):
            assert value not in shown(text), text


def test_a_part_of_a_line_is_redacted_as_the_whole_is() -> None:
    """`echo ann:hunter2` alone has no secret: what follows makes it one."""
    whole = "echo ann:hunter2 | chpasswd"
    assert plain.redact("echo ann:hunter2").count == 0
    assert plain.knowing(whole).redact("echo ann:hunter2").text == "echo ann:[redacted]"
    assert plain.knowing("ls -l").redact("ls -l").text == "ls -l"
    known = Redactor(["correct-horse-1"]).knowing(whole)
    assert known.redact("correct-horse-1 hunter2 hunter22").text == "[redacted] [redacted] hunter22"
