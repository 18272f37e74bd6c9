"""Files of all kinds, and everything that can happen to them."""

from __future__ import annotations

from tests.truth.story import Step, Story, story

STORIES: tuple[Story, ...] = (
    story(
        "files come and go",
        "mkdir -p /srv/app/lib && cd /srv/app && echo one > one && echo two > two && echo three > lib/three",
        "echo more >> one && rm two && echo 4 > lib/four",
        "mv lib library && echo five > library/five",
        "rm -r library && cd /",
    ),
    story(
        "modes, owners and attributes",
        "mkdir -p /srv/a && cd /srv/a && for n in 1 2 3 4 5 6; do echo $n > f$n; done",
        "chmod 600 f1 && chown 7:8 f2 && chmod u+s,g+s f4"
        """ && python3 -c 'import os; os.setxattr("f3", "user.color", b"green")'""",
        "chmod 644 f1 && chown 0:0 f2 && echo x >> f2"
        """ && python3 -c 'import os; os.removexattr("f3", "user.color"); os.setxattr("f3", "user.n", b"3")'""",
        "chmod 1777 . && chgrp 50 f5 && mv f6 f7 && chmod 400 f7",
    ),
    story(
        "links and special files",
        "mkdir -p /srv/l/d && cd /srv/l && echo 1 > a && ln -s a link && ln a hard && mkfifo pipe"
        " && mkfifo zero && ln -s /etc/hosts away"
        """ && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("talk")'""",
        "ln -sfn d link && rm pipe && echo 2 >> hard && rm talk && mkdir talk && chmod 600 zero",
        "rm link && echo text > link && mv d link-to-d && rm zero && mkdir zero && rm a",
        "rm -r zero && ln -s nowhere zero && ln hard hard2 && ln -s '' empty 2>/dev/null; true",
    ),
    story(
        "folders and links themselves",
        "mkdir -p /srv/f/a/b /srv/f/c && cd /srv/f && echo 1 > a/1 && echo 2 > a/b/2 && ln -s a link",
        "chmod 700 a && echo 3 > a/3 && chown 7:8 a/b && rm a/b/2 && ln -sfn c link",
        "rm link && mkdir link && echo x > link/x && chmod 755 a && mv a/1 a/one",
        "mv a z && chmod 1777 z && echo 4 > z/4 && rm -r c && ln -s z c",
    ),
    story(
        "swaps and rotations",
        "mkdir -p /srv/s/x /srv/s/y && cd /srv/s && echo a > a && echo b > b && echo x > x/f && echo y > y/f",
        "mv a t && mv b a && mv t b",
        "mv x t && mv y x && mv t y",
        "mv x y/x && mv y z && echo new > y && rm b",
        "mv z/x x && rm -r z && mv y z && mv a b",
    ),
    story(
        "a folder of the base is moved and changed",
        "cd /etc && mv cron.d cron.e && echo 1 > cron.e/job && mv hosts hosts.bak && cp hosts.bak hosts",
        "mv /usr/share /usr/shared && echo x > /usr/shared/x && rm -r /var/log",
        "mv /usr/shared /usr/share && mkdir /var/log && echo boot > /var/log/syslog && chmod 600 /etc/passwd",
        "rm -r /usr/local/lib/python3.11/json && mv /usr/local/lib/python3.11/email /opt/email",
        "mkdir /usr/local/lib/python3.11/json && mv /opt/email /usr/local/lib/python3.11/email"
        " && rm -r /usr/local/lib/python3.11/email/mime",
    ),
    story(
        "large, sparse and binary files",
        "mkdir /srv/big && cd /srv/big && head -c 3000000 /dev/zero > zeros && truncate -s 80M sparse"
        " && head -c 100000 /usr/bin/git > part && : > empty",
        "truncate -s 5 zeros && printf x | dd of=part bs=1 seek=5000 conv=notrunc 2>/dev/null && rm sparse",
        "truncate -s 0 part && printf 1234 > empty && truncate -s 3000000 zeros",
        "rm * && : > empty",
    ),
    story(
        "names that are hard to write",
        r"""mkdir -p /srv/n && cd /srv/n && : > $'new\nline' && echo 1 > ' space ' && echo 2 > $'\xff\xfe'"""
        r""" && echo 3 > ünïcode && echo 4 > $'tab\there' && echo 5 > '-rf' && echo 6 > '*' && echo 7 > 'A' """
        r""" && echo 8 > a && mkdir $'d\xfft' && echo 9 > $'d\xfft/in'""",
        r"""mv $'\xff\xfe' $'\xff\xfd' && echo more >> ünïcode && rm -- '-rf' && mv A B && mv a A && rm '*' """,
        r"""mv $'d\xfft' $'d\xfdt' && echo x >> $'d\xfdt/in' && rm $'new\nline' && echo "a → b" > 'a → b' """,
        r"""rm -r ./* && echo 'quote"d' > '"q"' && echo b > 'back\slash' && echo c > $'\e[31mred'""",
    ),
    story(
        "deep and many",
        "mkdir -p /srv/deep && cd /srv/deep && for n in {1..60}; do mkdir d$n && cd d$n; done"
        " && echo bottom > f && cd /srv/deep && mkdir many && cd many && for n in {1..400}; do echo $n > f$n; done",
        "cd /srv/deep && mv d1/d2/d3 up && for n in {1..100}; do echo more >> many/f$n; done"
        " && for n in {101..200}; do rm many/f$n; done && for n in {201..300}; do mv many/f$n many/g$n; done",
        "mkdir other && mv many/g* other/ && chmod 600 many/* && cd / && mv /srv/deep/up /srv/up",
        "rm -r /srv/deep && mkdir -p /srv/deep/many && echo 1 > /srv/deep/many/f1",
    ),
    story(
        "shared memory and temporary files",
        "echo 1 > /dev/shm/segment && mkdir /dev/shm/d && echo 2 > /dev/shm/d/x && echo 3 > /tmp/t",
        "mv /dev/shm/d /dev/shm/e && rm /dev/shm/segment && mv /tmp/t /var/tmp/t",
        "cp /dev/shm/e/x /srv/x && rm -r /dev/shm/e /var/tmp/t",
    ),
    story(
        "written again and the same",
        "mkdir /srv/w && cd /srv/w && echo 1 > a && echo 2 > b && echo 3 > c",
        Step("cp a t && mv t a && touch b && echo 3 > c", intent="nothing changes"),
        "echo 9 > a && echo 1 > a && chmod 600 b && chmod 644 b && echo 9 > c",
        "sed -i s/9/8/ c && cp -p c d && rm c && cp /etc/hosts h && cat h > /etc/hosts",
    ),
)
