"""What a command that can reach the outside tells about itself: whom it talks to, whether it writes there.

Rules ask for these things by name (`when = { method = "POST|PUT", place = "outside" }`); the names are
explained at the top of rules.toml. What stands in a variable is not known, and counts as outside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from waypoint.policy.bash import Word
from waypoint.policy.wrappers import Part, is_local

Facts = dict[str, str]


class Arguments(NamedTuple):
    """The words of a command, taken apart."""

    plain: list[Word]
    """Those that are neither options nor their values."""
    options: dict[str, list[Word]]
    """Options by name, with their values."""

    def value(self, *names: str) -> Word | None:
        """The value of the first of these options that has one."""
        for name in names:
            for word in self.options.get(name, ()):
                if word.text:
                    return word
        return None

    def has(self, *names: str) -> bool:
        return any(name in self.options for name in names)


_NOTHING = Word("")


def take_apart(words: Sequence[Word], values: frozenset[str], *, greedy: bool = False) -> Arguments:
    """Options and the rest. `greedy`: an option nobody knows takes the next word with it."""
    plain: list[Word] = []
    options: dict[str, list[Word]] = {}
    at = 1
    while at < len(words):
        word = words[at]
        text = word.text
        at += 1
        if text == "--":
            plain += words[at:]
            break
        if not text.startswith("-") or text == "-" or re.match(r"-\d+$", text):
            plain.append(word)
            continue
        name, equals, value = text.partition("=")
        if equals:
            options.setdefault(name, []).append(Word(value, word.open))
            continue
        if text in values:
            options.setdefault(text, []).append(words[at] if at < len(words) else _NOTHING)
            at += 1
            continue
        if at < len(words) and words[at].text in ("false", "none", "off"):
            options.setdefault(text, []).append(words[at])
            at += 1
            continue
        options.setdefault(text, []).append(_NOTHING)
        if not text.startswith("--") and len(text) > 2:
            # `-sXPOST`: flags, until one that takes a value takes the rest.
            for index, letter in enumerate(text[1:], 1):
                rest = text[index + 1 :]
                if f"-{letter}" in values:
                    if rest:
                        options.setdefault(f"-{letter}", []).append(Word(rest, word.open))
                    else:
                        options.setdefault(f"-{letter}", []).append(
                            words[at] if at < len(words) else _NOTHING
                        )
                        at += 1
                    break
                options.setdefault(f"-{letter}", []).append(_NOTHING)
        elif greedy and at < len(words) and not words[at].text.startswith("-"):
            options[text].append(words[at])
            at += 1
    return Arguments(plain, options)


def facts_of(part: Part, arguments: Arguments) -> Facts:
    """What can be said about a command; nothing for most."""
    look = _LOOKS.get(part.program)
    return look(part, arguments) if look else {}


# ---- where ---------------------------------------------------------------------------------------


def _place(hosts: Sequence[Word | str]) -> str:
    """`inside` when all of them are the session itself."""
    texts = [(host, False) if isinstance(host, str) else (host.text, host.open) for host in hosts]
    return "inside" if texts and all(is_local(text) and not unsure for text, unsure in texts) else "outside"


_URL = re.compile(
    r"(?i)(?:([a-z][a-z0-9+.-]*)://)?(?:[^/@\s]*@)?(\[[^\]]*\]|[^/:?#\s]*)(?::(\d+))?(.*)", re.DOTALL
)


def host_of(url: str) -> str:
    found = _URL.match(url)
    return found[2] if found else ""


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without user, password and query."""
    found = _URL.match(url)
    if not found:
        return url
    scheme = f"{found[1]}://" if found[1] else ""
    port = f":{found[3]}" if found[3] else ""
    return f"{scheme}{found[2]}{port}{re.split(r'[?#]', found[4])[0]}"


def _web(method: str, urls: Sequence[Word], headers: Sequence[Word] = ()) -> Facts:
    hosts = [word._replace(text=host_of(word.text), open=_open_host(word)) for word in urls]
    facts = {
        "method": method,
        "place": _place(hosts) if urls else "outside",
        "url": " ".join(without_secrets(word.text) for word in urls),
        "host": " ".join(host.text for host in hosts),
    }
    for header in headers:
        if found := re.match(r"(?i)idempotency-key\s*:\s*(\S+)", header.text):
            facts["idempotency"] = found[1]
    return facts


def _open_host(word: Word) -> bool:
    """A variable in the path does not make the host unknown."""
    found = _URL.match(word.text)
    return word.open and (not found or not found[1] or bool(re.search(r"[$`]", found[2])))


def _curl(_: Part, arguments: Arguments) -> Facts:
    has, value = arguments.has, arguments.value
    bodies = ("-d", "--data", "--data-raw", "--data-binary", "--data-urlencode", "--data-ascii", "--json")
    if given := value("-X", "--request"):
        method = "" if given.open else given.text.upper()
    elif has("-T", "--upload-file"):
        method = "PUT"
    elif has("-F", "--form", "--form-string") or (has(*bodies) and not has("-G", "--get")):
        method = "POST"
    else:
        method = "HEAD" if has("-I", "--head") else "GET"
    if has("-Q", "--quote"):
        method = "POST"
    if has("-K", "--config") or method in ("CONNECT", "TRACE"):
        method = ""
    urls = [*arguments.plain, *arguments.options.get("--url", ())]
    if any(re.match(r"(?i)(?!https?:|ftps?:|file:)[a-z][a-z0-9+.-]*://", url.text) for url in urls):
        method = ""  # gopher, ldap, mqtt and the like: what they send is in the rest
    headers = [*arguments.options.get("-H", ()), *arguments.options.get("--header", ())]
    facts = _web(method, urls, headers)
    if any(has(option) for option in _DETOURS):
        facts["place"] = "outside"
    return facts


_DETOURS = (
    *("-x", "--proxy", "--preproxy", "--socks4", "--socks4a", "--socks5", "--socks5-hostname"),
    *("--connect-to", "--resolve", "--unix-socket", "--abstract-unix-socket", "--doh-url", "-K", "--config"),
)
"""Options by which a request to one host goes to another."""


def _wget(_: Part, arguments: Arguments) -> Facts:
    given = arguments.value("--method")
    if given:
        method = "" if given.open else given.text.upper()
    else:
        method = "POST" if arguments.has("--post-data", "--post-file") else "GET"
    if arguments.has("-i", "--input-file") and not arguments.plain:
        return {"method": method, "place": "outside", "url": "", "host": ""}
    return _web(method, arguments.plain, arguments.options.get("--header", ()))


def _httpie(part: Part, arguments: Arguments) -> Facts:
    plain = arguments.plain
    method = ""
    if plain and re.fullmatch(r"[A-Z]+", plain[0].text):
        method, plain = plain[0].text, plain[1:]
    elif plain and plain[0].open:
        return {"place": "outside", "url": "", "host": ""}
    items = plain[1:]
    if not method:
        # `name:value` is a header, all other items are data.
        data = any(re.match(r"[^:=@]+(:=|=(?!=)|@)", item.text) or item.open for item in items)
        method = "POST" if data or part.fed or arguments.has("--raw") else "GET"
    urls = [word._replace(text=re.sub(r"^:(?=\d|/|$)", "localhost:", word.text)) for word in plain[:1]]
    return _web(method, urls, items)


def _api(_: Part, arguments: Arguments) -> Facts:
    """`gh api`: a field makes it a POST."""
    given = arguments.value("-X", "--method")
    fields = arguments.has("-f", "-F", "--field", "--raw-field", "--input")
    method = given.text.upper() if given else "POST" if fields else "GET"
    graphql = any(word.text == "graphql" for word in arguments.plain)
    if graphql and not any(
        "mutation" in word.text for name in ("-f", "-F") for word in arguments.options.get(name, ())
    ):
        method = "GET"
    return {"method": method}


# ---- files to and from elsewhere -----------------------------------------------------------------

_REMOTE = re.compile(r"(?:[\w.-]+@)?(\[[^\]]+\]|[\w.$-]+):(?!/?\\)|(?:rsync|scp|sftp)://(?:[^@/]*@)?([^/:]+)")


def _copy(_: Part, arguments: Arguments) -> Facts:
    words = arguments.plain
    if not words:
        return {"direction": "none"}
    found = _REMOTE.match(words[-1].text)
    if found and "/" not in words[-1].text.partition(":")[0].replace("://", ""):
        host = found[1] or found[2]
        return {"direction": "none" if is_local(host) else "out", "host": without_secrets(words[-1].text)}
    if words[-1].open and words[-1].text.startswith(("$", "`")):
        return {"direction": "out", "host": words[-1].text}
    # The source is removed over there.
    taken = arguments.has("--remove-source-files") and any(_REMOTE.match(word.text) for word in words[:-1])
    return {"direction": "out" if taken else "in", "host": words[0].text}


def _bucket(_: Part, arguments: Arguments) -> Facts:
    paths = arguments.plain[2:]
    if len(paths) < 2:
        return {}
    out = paths[1].text.startswith("s3://") or paths[1].open
    return {"direction": "out" if out else "in"}


# ---- clouds ----

_VERBS = re.compile(
    r"(list|describe|get|show|read|info|search|lookup|tail|print|ls|cat|du|stat|hash|explain|exists|check|"
    r"download|logs|what-if|validate|query|wait|test-iam-permissions|delete|destroy|remove|purge|reset|failover|drain|"
    r"deploy|publish|send|call|execute|submit|import|restore|abandon|disable|invoke|run|cancel|revoke|swap|up|"
    r"start|stop|create|update|set|add|enable|attach|detach|move|copy|cp|mv|rm|rsync|resize|restart|reboot|ssh|scp|"
    r"login|logout|power-cycle|rebuild|sync|terminate|apply|patch|upload|assign|grant)(-[a-z-]+)?$"
)


def _cloud(_: Part, arguments: Arguments) -> Facts:
    """`gcloud compute instances create list`: the first word that is a verb is the verb."""
    for word in arguments.plain[1:]:  # the first is what it is about: `gcloud run deploy`
        if word.open:
            return {}
        if _VERBS.match(word.text):
            return {"verb": word.text}
    return {}


# ---- git -----------------------------------------------------------------------------------------

_TRUNKS = re.compile(
    r"(?i)(main|master|trunk|production|prod|release.*|stable|staging|live|deploy|develop|gh-pages|HEAD)$"
)


def _git(_: Part, arguments: Arguments) -> Facts:
    if not arguments.plain or arguments.plain[0].text != "push":
        return {}
    words = arguments.plain[1:]
    if not words and arguments.options.get("--repo"):
        words = arguments.options["--repo"]
    facts = {"place": "outside", "refs": _refs(words[1:], arguments)}
    remote = words[0] if words else None
    if remote and not remote.open and re.match(r"(/|\.\.?(/|$)|~|file://)", remote.text):
        facts["place"] = "inside"
    if remote:
        facts["host"] = without_secrets(remote.text)
    return facts


def _refs(words: Sequence[Word], arguments: Arguments) -> str:
    kinds = set()
    if arguments.has("--all", "--branches"):
        kinds.add("trunk")
    if arguments.has("--tags", "--follow-tags"):
        kinds.add("tags")
    for word in words:
        target = word.text.rpartition(":")[2].removeprefix("refs/heads/").removeprefix("+")
        if word.text.startswith("+"):
            kinds.add("forced")
        elif word.text.startswith(":"):
            kinds.add("deleted")
        elif word.open and re.search(r"[$`…]|\{\}", target):
            kinds.add("unseen")
        elif target.startswith("refs/tags/") or re.fullmatch(r"v?\d+(\.\d+)+.*", target):
            kinds.add("tags")
        elif _TRUNKS.match(target):
            kinds.add("trunk")
        else:
            kinds.add("branch")
    for kind in ("forced", "deleted", "unseen", "trunk", "tags", "branch"):
        if kind in kinds:
            return kind
    return "unseen"


# ---- databases -----------------------------------------------------------------------------------

_READS = re.compile(
    r"(?is)\s*(select|show|explain|describe|desc|table|values|with\s(?!.*\b(insert|update|delete|merge)\b)|\\(d|l|c|conninfo|timing"
    r"|x|echo|q|z|encoding)|use\s|set\s|help|status|begin|commit|rollback|fetch|analyze\s*$)(?!.*\binto\s+(outfile|dumpfile)\b)"
)
_WRITES_WITHIN = re.compile(
    r"(?i)\b(nextval|setval|pg_terminate_backend|pg_cancel_backend|lo_import|dblink|pg_read_file|xp_cmdshell|into\s+\w+\s+from|for\s+update)\b"
)
_REDIS_READS = re.compile(
    r"(?i)(get|mget|keys|scan|info|ping|ttl|pttl|exists|type|llen|lrange|hget|hgetall|hkeys|hlen|hmget|smembers|scard|"
    r"sismember|zrange|zscore|zcard|dbsize|strlen|time|echo|lastsave|memory|object|monitor|client|config|command|xlen|xrange)$"
)
_MONGO_READS = re.compile(
    r"(?is)\s*(db(\.getSiblingDB\([^)]*\))?(\.\w+|\['\w+'\])?\.(find|findOne|count|countDocuments|estimatedDocumentCount|aggregate|"
    r"distinct|stats|getIndexes|explain|version|serverStatus|hostInfo|getCollectionNames|getName|runCommand\(\{\s*ping)\b"
    r"|show\s+\w+|rs\.status\(\)|sh\.status\(\)|print)"
)


def _statements(texts: Sequence[Word], reads: re.Pattern[str]) -> str:
    """Whether statements only read; `unseen` when not all of them can be seen."""
    if not texts or any(word.open for word in texts):
        text = ";".join(word.text for word in texts)
        wrote = re.search(
            r"(?i)\b(insert|update|delete|drop|truncate|alter|create|grant|revoke|dropDatabase)\b", text
        )
        return "writes" if wrote else "unseen"
    statements = [
        one
        for word in texts
        for one in re.split(r";|\n", word.text)
        if one.strip() and not one.strip().startswith("--")
    ]
    joined = " ".join(" ".join(word.text for word in texts).split())
    if re.match(r"(?i)\s*(select|with)\b", joined) and ";" not in joined.rstrip("; "):
        statements = [joined]
    quiet = all(reads.match(one) and not _WRITES_WITHIN.search(one) for one in statements)
    return "reads" if quiet and not re.search(r"\\(!|copy|o|g|i|w)\b", joined) else "writes"


def _server(part: Part, host: Word | None, url: Word | None, variables: Sequence[str]) -> Facts:
    """Which database server: an option, a URL, a variable, else the one of the session."""
    if url is not None and (
        re.match(r"(?i)[a-z][a-z0-9+]*://", url.text)
        or url.open
        or re.search(r"\b(host(addr)?|service)=", url.text)
    ):
        if "service=" in url.text:
            host = url
        elif found := re.search(r"\bhost(?:addr)?=(\S+)", url.text):
            host = url._replace(text=found[1])
        elif url.open and not host_of(url.text).strip("$"):
            host = url
        elif re.match(r"(?i)[a-z][a-z0-9+]*://", url.text):
            host = url._replace(text=host_of(url.text) or "localhost", open=_open_host(url))
        else:
            host = url
    if host is None:
        host = next((value for name, value in part.sets if name in variables), None)
    if host is None or (host.text.startswith("/") and not host.open):
        return {"place": "inside", "host": "localhost"}
    return {"place": _place([host]), "host": host.text}


def _sql(part: Part, arguments: Arguments) -> Facts:
    plain = arguments.plain
    url = arguments.value("-d", "--dbname", "--url", "-u") or (plain[0] if plain else None)
    if part.program in ("mysql", "mariadb", "mysqldump", "mysqladmin"):
        url = None
    host = arguments.value("-h", "--host", "-S")
    facts = _server(part, host, url, ("PGHOST", "PGHOSTADDR", "PGSERVICE", "MYSQL_HOST", "DATABASE_URL"))
    texts = [
        word
        for name in ("-c", "--command", "-e", "--execute", "-q", "--query", "-Q")
        for word in arguments.options.get(name, ())
    ]
    if part.stdin is not None and not texts:
        texts = [part.stdin]
    if arguments.has("-l", "--list", "-V", "--version") and not texts:
        return {**facts, "sql": "reads"}
    if arguments.has("-f", "--file"):
        return {**facts, "sql": "unseen"}
    return {**facts, "sql": _statements(texts, _READS)}


def _mongo(part: Part, arguments: Arguments) -> Facts:
    url = arguments.plain[0] if arguments.plain and not arguments.plain[0].text.endswith(".js") else None
    if url and not url.open and "://" not in url.text:
        url = url._replace(text=f"mongodb://{url.text}") if "/" in url.text or "." in url.text else None
    facts = _server(part, arguments.value("--host"), url, ("MONGO_URL", "MONGODB_URI"))
    scripts = any(word.text.endswith(".js") for word in arguments.plain) or arguments.has("-f", "--file")
    texts = list(arguments.options.get("--eval", ())) or ([part.stdin] if part.stdin else [])
    return {**facts, "sql": "unseen" if scripts else _statements(texts, _MONGO_READS)}


def _redis(part: Part, arguments: Arguments) -> Facts:
    facts = _server(part, arguments.value("-h", "-s"), arguments.value("-u"), ("REDIS_URL",))
    words = arguments.plain
    if not words:
        if part.stdin is not None:
            return {
                **facts,
                "sql": _statements(
                    [part.stdin], re.compile(rf"\s*(?:{_REDIS_READS.pattern[4:-1]})\b", re.IGNORECASE)
                ),
            }
        looks = arguments.has(
            "--scan", "--stat", "--bigkeys", "--memkeys", "--hotkeys", "--latency", "--version"
        )
        return {**facts, "sql": "reads" if looks else "unseen"}
    second = words[1].text.lower() if len(words) > 1 else ""
    quiet = (
        _REDIS_READS.match(words[0].text)
        and not words[0].open
        and second not in ("set", "kill", "resetstat", "rewrite", "pause")
    )
    return {**facts, "sql": "reads" if quiet else "writes"}


def _connection(part: Part, arguments: Arguments) -> Facts:
    if part.program == "socat":
        ends = [word.text for word in arguments.plain]
        out = [
            one
            for one in ends
            if re.match(r"(?i)(tcp|udp|openssl|ssl|sctp|proxy|socks)", one) and "listen" not in one.lower()
        ]
        hosts = [one.split(":")[1] if one.count(":") else one for one in out]
        return {"place": _place(hosts) if hosts else "inside", "host": " ".join(hosts)}
    if arguments.has("-l", "--listen"):
        return {"place": "inside", "host": "localhost"}
    given = arguments.value("-connect")
    host = (
        given._replace(text=given.text.rpartition(":")[0])
        if given
        else arguments.plain[0]
        if arguments.plain
        else None
    )
    return {"place": _place([host]) if host else "outside", "host": host.text if host else ""}


_Look = Callable[[Part, Arguments], Facts]
_LOOKS: Mapping[str, _Look] = {
    "curl": _curl,
    "wget": _wget,
    **dict.fromkeys(("http", "https", "xh", "xhs"), _httpie),
    **dict.fromkeys(("gh", "glab"), _api),
    **dict.fromkeys(("rsync", "scp"), _copy),
    "aws": _bucket,
    **dict.fromkeys(
        (
            *("gcloud", "az", "doctl", "hcloud", "linode-cli", "vultr-cli", "scw", "oci", "ibmcloud"),
            *("openstack", "exo"),
        ),
        _cloud,
    ),
    "git": _git,
    **dict.fromkeys(
        (
            *("psql", "pg_dump", "pg_dumpall", "pg_restore", "createdb", "dropdb", "createuser", "dropuser"),
            *("mysql", "mariadb", "mysqldump", "mysqladmin", "cqlsh", "clickhouse-client", "sqlcmd"),
        ),
        _sql,
    ),
    **dict.fromkeys(("mongosh", "mongo", "mongodump", "mongorestore"), _mongo),
    "redis-cli": _redis,
    **dict.fromkeys(("nc", "ncat", "netcat", "telnet", "socat"), _connection),
}
