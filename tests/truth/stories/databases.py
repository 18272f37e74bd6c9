"""Databases: tables, rows and schema; damage."""

from __future__ import annotations

from tests.truth.story import Story, story

_FILL = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < {}) INSERT INTO {} SELECT i, 'v'||i FROM n"

STORIES: tuple[Story, ...] = (
    story(
        "rows of a database",
        "mkdir -p /srv/db && cd /srv/db && sqlite3 app.db 'create table users (id integer primary key, name)'"
        f' && sqlite3 app.db "{_FILL.format(100, "users")}"',
        "sqlite3 app.db \"delete from users where id <= 50; insert into users values (200, 'a'), (201, 'b')\"",
        "sqlite3 app.db \"update users set name = 'x' where id > 90\"",
        "sqlite3 app.db 'create table orders (id, what); insert into orders values (1, 2), (1, 3), (2, 2)'",
        "sqlite3 app.db 'delete from orders where id = 1; drop table users; vacuum'",
        needs=("sqlite3",),
    ),
    story(
        "the schema of a database",
        "mkdir -p /srv/db && cd /srv/db && sqlite3 a.db 'create table t (id integer primary key, a);"
        " create index by_a on t (a); create view v as select a from t; insert into t values (1, 2)'",
        "sqlite3 a.db 'alter table t add column b; create table u (x); insert into u values (1)'",
        "sqlite3 a.db 'alter table u rename to w; drop view v; create unique index by_b on t (b)'",
        "sqlite3 a.db 'drop table w; drop index by_a' && mv a.db b.db",
        "rm b.db",
        needs=("sqlite3",),
    ),
    story(
        "a write-ahead log, and damage",
        "mkdir -p /srv/db && cd /srv/db && sqlite3 w.db 'pragma journal_mode=wal; create table t (a, b);"
        " insert into t values (1, 2)'",
        "sqlite3 w.db 'insert into t values (3, 4)' && cp w.db copy.sqlite",
        "printf 'garbage garbage garbage' | dd of=w.db bs=1 seek=4100 conv=notrunc 2>/dev/null; truncate -s 100 copy.sqlite",
        "rm w.db* && sqlite3 w.db 'create table fresh (a)'",
        needs=("sqlite3",),
    ),
    story(
        "databases with another name, and damaged ones that are replaced",
        "mkdir -p /srv/db/in && cd /srv/db && sqlite3 a.db 'create table t (id integer primary key, v);"
        " insert into t values (1, 2), (2, 3); create table u (x)' && cp a.db in/b.db",
        "mv a.db c.db && mv in out",
        "sqlite3 c.db 'insert into t values (3, 4)' && mv c.db a.db && sqlite3 out/b.db 'create index i on t (v);"
        " create view v as select v from t; create unique index j on u (x)'",
        "head -c 3000 out/b.db > x && mv x out/b.db"
        " && head -c 60 /dev/zero | dd of=a.db bs=1 seek=4096 conv=notrunc 2>/dev/null",
        "cp out/b.db again.db && truncate -s 2000 out/b.db && sqlite3 whole.db 'create table t (a)' && mv whole.db a.db",
        "cp a.db out/b.db && : > a.db && rm again.db",
        "sqlite3 a.db 'create table fresh (a); insert into fresh values (1)' && rm -r out",
        needs=("sqlite3",),
    ),
    story(
        "the data folder of a server",
        "mkdir -p /var/lib/mysql/mysql /var/lib/mysql/shop && cd /var/lib/mysql && echo 1 > ibdata1 && echo u >"
        " mysql/user.frm && echo 1 > shop/orders.ibd && echo 1 > shop/carts.ibd && echo o > shop/db.opt",
        "echo 2 >> shop/orders.ibd && echo 2 >> ibdata1",
        "mkdir next && echo 1 > next/t.ibd && rm shop/carts.ibd && echo own > /srv/notes",
        "rm -r shop && echo 3 >> ibdata1",
        "cd / && rm -r /var/lib/mysql",
    ),
    story(
        "a large table",
        "mkdir -p /srv/db && cd /srv/db && sqlite3 l.db 'create table t (id integer primary key, v)'"
        f' && sqlite3 l.db "{_FILL.format(220000, "t")}"',
        "sqlite3 l.db \"update t set v = 'changed' where id = 77777\"",
        "sqlite3 l.db 'delete from t where id % 2 = 0'",
        needs=("sqlite3",),
    ),
)
