"""Facts about a command that can act outside the session: which host it talks to, whether it writes there.

Rules refer to these facts by name (`when = { method = "POST|PUT", place = "outside" }`). The names are
explained at the top of rules.toml. A host in a variable is unknown and counts as outside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from waypoint.policy.bash import Word, parse
from waypoint.policy.words import is_local, program_of
from waypoint.policy.wrappers import Part

Facts = dict[str, str]


class Arguments(NamedTuple):
    """The words of a command, split into options and the rest."""

    plain: list[Word]
    """Words that are neither options nor their values."""
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


_NO_VALUE = Word("")


def split_options(words: Sequence[Word], values: frozenset[str], *, greedy: bool = False) -> Arguments:
    """Splits options from the rest. `values`: options that take a value; `greedy`: an unknown option takes
    the next word as its value."""
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
            options.setdefault(name, []).append(Word(value, word.dynamic))
            continue
        following = words[at] if at < len(words) else _NO_VALUE
        if text in values:
            options.setdefault(text, []).append(following)
            at += 1
            continue
        if following.text in ("false", "none", "off"):
            options.setdefault(text, []).append(following)
            at += 1
            continue
        options.setdefault(text, []).append(_NO_VALUE)
        if not text.startswith("--") and len(text) > 2:
            # `-sXPOST`: flags, until one that takes a value takes the rest.
            for index, letter in enumerate(text[1:], 1):
                rest = text[index + 1 :]
                if f"-{letter}" in values:
                    options.setdefault(f"-{letter}", []).append(
                        Word(rest, word.dynamic) if rest else following
                    )
                    at += not rest
                    break
                options.setdefault(f"-{letter}", []).append(_NO_VALUE)
        elif greedy and at < len(words) and not following.text.startswith("-"):
            options[text].append(following)
            at += 1
    return Arguments(plain, options)


def facts_of(part: Part, arguments: Arguments) -> Facts:
    """The facts about a command; empty for most programs."""
    function = _FACT_FUNCTIONS.get(part.program)
    return function(part, arguments) if function else {}


# ---- hosts ---------------------------------------------------------------------------------------


def _place(hosts: Sequence[Word]) -> str:
    """`inside` if all hosts are the session itself."""
    inside = hosts and all(is_local(host.text) and not host.dynamic for host in hosts)
    return "inside" if inside else "outside"


_URL = re.compile(
    r"(?i)(?:([a-z][a-z0-9+.-]*)://)?(?:[^/@\s]*@)?(\[[^\]]*\]|[^/:?#\s]*)(?::(\d+))?(.*)", re.DOTALL
)


def host_of(url: str) -> str:
    match = _URL.match(url)
    return match[2] if match else ""


def without_secrets(url: str) -> str:
    """A URL that can be shown: without user, password and query."""
    match = _URL.match(url)
    if not match:
        return url
    scheme = f"{match[1]}://" if match[1] else ""
    port = f":{match[3]}" if match[3] else ""
    return f"{scheme}{match[2]}{port}{re.split(r'[?#]', match[4])[0]}"


# ---- what is sent ---------------------------------------------------------------------------------

_SYSTEM_FACTS = frozenset({
    "uname", "arch", "date", "nproc", "lsb_release", "getconf", "dpkg", "rpm", "echo", "printf", "seq",
    "expr", "id", "whoami", "hostname", "pwd", "uuidgen", "curl", "wget", "mktemp", "true", "basename",
    "dirname", "lscpu",
})  # fmt: skip
"""Programs whose output says nothing of the files of the session, or comes from outside itself."""
_FILTERS = frozenset(
    {"tr", "cut", "sed", "awk", "grep", "head", "tail", "sort", "uniq", "jq", "wc", "xargs", "rev"}
)
_GIT_NAMES = frozenset({"rev-parse", "describe", "branch", "symbolic-ref", "rev-list", "tag", "ls-remote"})
_SUBSTITUTION = re.compile(r"\$\((?!\()|`")


def sent_by(words: Iterable[Word]) -> str:
    """`output` if one of these words holds what another command prints, and that may be the content of a
    file: it would leave the machine with the request."""
    for word in words:
        for match in _SUBSTITUTION.finditer(word.text) if word.dynamic else ():
            if match[0] == "`":
                inner = word.text[match.end() :].partition("`")[0]
            else:
                inner = _balanced(word.text[match.end() :])
            if not _prints_system_facts(inner):
                return "output"
    return ""


def _balanced(text: str) -> str:
    depth = 1
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:index]
    return text


def _prints_system_facts(line: str) -> bool:
    parsed = parse(line)
    for command in parsed.commands:
        texts = [word.text for word in command.words]
        name = program_of(texts[0]) if texts else ""
        if any(text.startswith(("/", "~", "./", "../", "@")) for text in texts[1:]) or command.reads_file:
            return False
        if name == "git":
            if not (len(texts) > 1 and texts[1] in _GIT_NAMES):
                return False
        elif name not in _SYSTEM_FACTS and not (name in _FILTERS and command.piped):
            return False
    return bool(parsed.commands) and not parsed.unseen


def _web(method: str, urls: Sequence[Word], headers: Sequence[Word] = ()) -> Facts:
    hosts = [word._replace(text=host_of(word.text), dynamic=_host_is_dynamic(word)) for word in urls]
    facts = {
        "method": method,
        "place": _place(hosts) if urls else "outside",
        "url": " ".join(without_secrets(word.text) for word in urls),
        "host": " ".join(host.text for host in hosts),
    }
    for header in headers:
        if match := re.match(r"(?i)idempotency-key\s*:\s*(\S+)", header.text):
            facts["idempotency"] = match[1]
    return facts


def _host_is_dynamic(url: Word) -> bool:
    """Whether the host is unknown. A variable in the path alone does not make it so."""
    match = _URL.match(url.text)
    return url.dynamic and (not match or not match[1] or bool(re.search(r"[$`]", match[2])))


def _curl(_: Part, arguments: Arguments) -> Facts:
    has, value = arguments.has, arguments.value
    bodies = ("-d", "--data", "--data-raw", "--data-binary", "--data-urlencode", "--data-ascii", "--json")
    if request := value("-X", "--request"):
        method = "" if request.dynamic else request.text.upper()
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
        method = ""  # gopher, ldap, mqtt …: the URL itself can contain data to send
    headers = [*arguments.options.get("-H", ()), *arguments.options.get("--header", ())]
    facts = _web(method, urls, headers)
    facts["sends"] = _sent_by_curl(arguments, urls, headers)
    if has(*_CURL_REDIRECTING):
        facts["place"] = "outside"
    return facts


def _sent_by_curl(arguments: Arguments, urls: Sequence[Word], headers: Sequence[Word]) -> str:
    """What a request that only reads sends all the same."""

    def values(*names: str) -> list[Word]:
        return [word for name in names for word in arguments.options.get(name, ())]

    data = values("-d", "--data", "--data-binary", "--data-ascii", "--json")
    encoded = values("--data-urlencode")
    if any(word.text.startswith("@") for word in (*data, *headers)):
        return "file"
    if any(re.match(r"[^=]*@", word.text) for word in encoded):
        return "file"
    if any("@" in word.text for word in values("--variable")):
        return "file"
    other = values(
        "-u",
        "--user",
        "-A",
        "--user-agent",
        "-e",
        "--referer",
        "-b",
        "--cookie",
        "--expand-url",
        "--data-raw",
    )
    return sent_by((*urls, *headers, *data, *encoded, *other))


_CURL_REDIRECTING = (
    "-x", "--proxy", "--preproxy", "--socks4", "--socks4a", "--socks5", "--socks5-hostname", "--connect-to",
    "--resolve", "--unix-socket", "--abstract-unix-socket", "--doh-url", "-K", "--config",
)  # fmt: skip
"""Options with which a request to one host is sent to another."""


def _wget(_: Part, arguments: Arguments) -> Facts:
    option = arguments.value("--method")
    if option:
        method = "" if option.dynamic else option.text.upper()
    else:
        method = "POST" if arguments.has("--post-data", "--post-file") else "GET"
    if arguments.has("-i", "--input-file") and not arguments.plain:
        return {"method": method, "place": "outside", "url": "", "host": ""}
    headers = arguments.options.get("--header", ())
    others = [
        word
        for name in ("-U", "--user-agent", "--referer", "--user", "--password")
        for word in arguments.options.get(name, ())
    ]
    facts = _web(method, arguments.plain, headers)
    return {**facts, "sends": sent_by((*arguments.plain, *headers, *others))}


def _httpie(part: Part, arguments: Arguments) -> Facts:
    plain = arguments.plain
    method = ""
    if plain and re.fullmatch(r"[A-Z]+", plain[0].text):
        method, plain = plain[0].text, plain[1:]
    elif plain and plain[0].dynamic:
        return {"place": "outside", "url": "", "host": ""}
    items = plain[1:]
    if not method:
        # `name:value` is a header, all other items are data.
        data = any(re.match(r"[^:=@]+(:=|=(?!=)|@)", item.text) or item.dynamic for item in items)
        method = "POST" if data or part.has_input or arguments.has("--raw") else "GET"
    urls = [word._replace(text=re.sub(r"^:(?=\d|/|$)", "localhost:", word.text)) for word in plain[:1]]
    sends = "file" if any(re.match(r"[^:=@]+(:@|=@|==@|@)", item.text) for item in items) else sent_by(plain)
    return {**_web(method, urls, items), "sends": sends}


def _api(_: Part, arguments: Arguments) -> Facts:
    """`gh api`: a field makes it a POST."""
    option = arguments.value("-X", "--method")
    fields = arguments.has("-f", "-F", "--field", "--raw-field", "--input")
    method = option.text.upper() if option else "POST" if fields else "GET"
    graphql = any(word.text == "graphql" for word in arguments.plain)
    if graphql and not any(
        "mutation" in word.text for name in ("-f", "-F") for word in arguments.options.get(name, ())
    ):
        method = "GET"
    return {"method": method}


# ---- file transfers ------------------------------------------------------------------------------

_REMOTE = re.compile(r"(?:[\w.-]+@)?(\[[^\]]+\]|[\w.$-]+):(?!/?\\)|(?:rsync|scp|sftp)://(?:[^@/]*@)?([^/:]+)")


def _copy(_: Part, arguments: Arguments) -> Facts:
    words = arguments.plain
    if not words:
        return {"direction": "none"}
    match = _REMOTE.match(words[-1].text)
    if match and "/" not in words[-1].text.partition(":")[0].replace("://", ""):
        host = match[1] or match[2]
        return {"direction": "none" if is_local(host) else "out", "host": without_secrets(words[-1].text)}
    if words[-1].dynamic and words[-1].text.startswith(("$", "`")):
        return {"direction": "out", "host": words[-1].text}
    # The source on the remote host is removed.
    removes = arguments.has("--remove-source-files") and any(_REMOTE.match(word.text) for word in words[:-1])
    return {"direction": "out" if removes else "in", "host": words[0].text}


def _bucket(_: Part, arguments: Arguments) -> Facts:
    paths = arguments.plain[2:]
    if len(paths) < 2:
        return {}
    out = paths[1].text.startswith("s3://") or paths[1].dynamic
    return {"direction": "out" if out else "in"}


# ---- clouds --------------------------------------------------------------------------------------

_CLOUD_VERBS = re.compile(
    r"(list|describe|get|show|read|info|search|lookup|tail|print|ls|cat|du|stat|hash|explain|exists|check|"
    r"download|logs|what-if|validate|query|wait|test-iam-permissions|delete|destroy|remove|purge|reset|failover|drain|"
    r"deploy|publish|send|call|execute|submit|import|restore|abandon|disable|invoke|run|cancel|revoke|swap|up|"
    r"start|stop|create|update|set|add|enable|attach|detach|move|copy|cp|mv|rm|rsync|resize|restart|reboot|ssh|scp|"
    r"login|logout|power-cycle|rebuild|sync|terminate|apply|patch|upload|assign|grant)(-[a-z-]+)?$"
)


def _cloud(_: Part, arguments: Arguments) -> Facts:
    """`gcloud compute instances create list`: the first word that is a known verb counts."""
    for word in arguments.plain[1:]:  # the first word names the service: `gcloud run deploy`
        if word.dynamic:
            return {}
        if _CLOUD_VERBS.match(word.text):
            return {"verb": word.text}
    return {}


# ---- git -----------------------------------------------------------------------------------------

_MAIN_BRANCHES = re.compile(
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
    if remote and not remote.dynamic and re.match(r"(/|\.\.?(/|$)|~|file://)", remote.text):
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
        elif word.dynamic and re.search(r"[$`…]|\{\}", target):
            kinds.add("unseen")
        elif target.startswith("refs/tags/") or re.fullmatch(r"v?\d+(\.\d+)+.*", target):
            kinds.add("tags")
        elif _MAIN_BRANCHES.match(target):
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
    """Whether statements only read; `unseen` if not all of them are known."""
    if not texts or any(word.dynamic for word in texts):
        text = ";".join(word.text for word in texts)
        writes = re.search(
            r"(?i)\b(insert|update|delete|drop|truncate|alter|create|grant|revoke|dropDatabase)\b", text
        )
        return "writes" if writes else "unseen"
    lines = (line for word in texts for line in re.split(r";|\n", word.text))
    statements = [line for line in lines if line.strip() and not line.strip().startswith("--")]
    joined = " ".join(" ".join(word.text for word in texts).split())
    if re.match(r"(?i)\s*(select|with)\b", joined) and ";" not in joined.rstrip("; "):
        statements = [joined]
    only_reads = all(reads.match(text) and not _WRITES_WITHIN.search(text) for text in statements)
    return "reads" if only_reads and not re.search(r"\\(!|copy|o|g|i|w)\b", joined) else "writes"


def _server(part: Part, host: Word | None, url: Word | None, variables: Sequence[str]) -> Facts:
    """The database server: from an option, a URL or a variable, else the one in the session."""
    if url is not None and (
        re.match(r"(?i)[a-z][a-z0-9+]*://", url.text)
        or url.dynamic
        or re.search(r"\b(host(addr)?|service)=", url.text)
    ):
        if "service=" in url.text:
            host = url
        elif match := re.search(r"\bhost(?:addr)?=(\S+)", url.text):
            host = url._replace(text=match[1])
        elif url.dynamic and not host_of(url.text).strip("$"):
            host = url
        elif re.match(r"(?i)[a-z][a-z0-9+]*://", url.text):
            host = url._replace(text=host_of(url.text) or "localhost", dynamic=_host_is_dynamic(url))
        else:
            host = url
    if host is None:
        host = next((value for name, value in part.assignments if name in variables), None)
    if host is None or (host.text.startswith("/") and not host.dynamic):
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
    if url and not url.dynamic and "://" not in url.text:
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
            reads = re.compile(rf"\s*(?:{_REDIS_READS.pattern[4:-1]})\b", re.IGNORECASE)
            return {**facts, "sql": _statements([part.stdin], reads)}
        only_reads = arguments.has(
            "--scan", "--stat", "--bigkeys", "--memkeys", "--hotkeys", "--latency", "--version"
        )
        return {**facts, "sql": "reads" if only_reads else "unseen"}
    second = words[1].text.lower() if len(words) > 1 else ""
    only_reads = (
        bool(_REDIS_READS.match(words[0].text))
        and not words[0].dynamic
        and second not in ("set", "kill", "resetstat", "rewrite", "pause")
    )
    return {**facts, "sql": "reads" if only_reads else "writes"}


def _sent_to(part: Part, words: Sequence[Word]) -> str:
    """What a connection is given: `text` of the line, `data` that is not in it, or nothing yet."""
    if part.stdin is not None and not part.stdin.dynamic:
        return "text"
    return "data" if part.has_input or sent_by(words) else ""


def _connection(part: Part, arguments: Arguments) -> Facts:
    facts = _peer(part, arguments)
    starts = arguments.has("-e", "-c", "--exec", "--sh-exec", "--lua-exec") and part.program != "openssl"
    starts = starts or any(
        re.match(r"(?i)(exec|system|shell|open|file|gopen):", word.text) for word in arguments.plain
    )
    return {**facts, "sends": "data" if starts else _sent_to(part, arguments.plain)}


def _login(part: Part, _: Arguments) -> Facts:
    """A program on another machine that is given what is not in the line."""
    return {"sends": "data" if part.has_input and (part.stdin is None or part.stdin.dynamic) else ""}


def _lookup(part: Part, arguments: Arguments) -> Facts:
    """Questions to name servers and the like: the question itself can carry data."""
    sends = sent_by(part.words[1:]) or ("file" if part.has_input and part.program == "nslookup" else "")
    return {
        "place": _place(arguments.plain),
        "sends": sends,
        "host": " ".join(w.text for w in arguments.plain),
    }


def _transfer(part: Part, arguments: Arguments) -> Facts:
    """Clients for the files of other machines: they read their commands from options or from their input."""
    text = " ".join(word.text for word in part.words[1:])
    if part.stdin is not None:
        text = f"{text}\n{part.stdin.text}"
    writes = re.search(
        r"(?i)\b(m?put|reput|mirror\s+(-\w*R|--reverse)|mkdir|m?rm|rmdir|m?del(ete)?|rename|chmod|append|send)\b",
        text,
    )
    unseen = part.has_input and part.stdin is None
    return {"sends": "file" if writes else "data" if unseen or arguments.has("-b") else ""}


def _archive(part: Part, arguments: Arguments) -> Facts:
    """`tar cf host:archive`: the archive is on another machine."""
    names = list(arguments.options.get("-f", ())) + list(arguments.options.get("--file", ()))
    words = part.words[1:]
    if words and not words[0].text.startswith("-") and "f" in words[0].text and len(words) > 1:
        names.append(words[1])  # the old notation: `tar cf NAME`
    for name in names:
        host, colon, _ = name.text.partition(":")
        if colon and host and "/" not in host and not arguments.has("--force-local"):
            host = host.rpartition("@")[2]
            return {"place": "inside" if is_local(host) else "outside", "host": name.text}
    return {"place": "inside"}


def _peer(part: Part, arguments: Arguments) -> Facts:
    if part.program == "socat":
        network = re.compile(r"(?i)(tcp|udp|openssl|ssl|sctp|proxy|socks)(?!.*listen)")
        addresses = [word.text for word in arguments.plain if network.match(word.text)]
        hosts = [address.split(":")[1] if ":" in address else address for address in addresses]
        place = _place([Word(host) for host in hosts]) if hosts else "inside"
        return {"place": place, "host": " ".join(hosts)}
    if arguments.has("-l", "--listen"):
        return {"place": "inside", "host": "localhost"}
    host = arguments.plain[0] if arguments.plain else None
    if address := arguments.value("-connect"):
        host = address._replace(text=address.text.rpartition(":")[0])
    return {"place": _place([host]) if host else "outside", "host": host.text if host else ""}


_CLOUDS = "gcloud az doctl hcloud linode-cli vultr-cli scw oci ibmcloud openstack exo"
_SQL_CLIENTS = (
    "psql pg_dump pg_dumpall pg_restore createdb dropdb createuser dropuser "
    "mysql mariadb mysqldump mysqladmin cqlsh clickhouse-client sqlcmd"
)
_LOOKUPS = "dig nslookup host drill kdig whois ping ping6 traceroute tracepath mtr nmap finger logger getent"
_FACT_FUNCTIONS: Mapping[str, Callable[[Part, Arguments], Facts]] = {
    "curl": _curl,
    "wget": _wget,
    **dict.fromkeys(("http", "https", "xh", "xhs"), _httpie),
    **dict.fromkeys(("gh", "glab"), _api),
    **dict.fromkeys(("rsync", "scp"), _copy),
    "aws": _bucket,
    **dict.fromkeys(_CLOUDS.split(), _cloud),
    "git": _git,
    **dict.fromkeys(_SQL_CLIENTS.split(), _sql),
    **dict.fromkeys(("mongosh", "mongo", "mongodump", "mongorestore"), _mongo),
    "redis-cli": _redis,
    "ssh": _login,
    **dict.fromkeys(("nc", "ncat", "netcat", "telnet", "socat", "openssl"), _connection),
    **dict.fromkeys(_LOOKUPS.split(), _lookup),
    **dict.fromkeys(("sftp", "ftp", "lftp", "ncftp", "tftp", "smbclient"), _transfer),
    "tar": _archive,
}
