/* Descriptors that are no sockets: files, pipes, terminals, and the kernel's own objects; and locks. */

#include "actor.h"

#include <pty.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <termios.h>

#define FAR 1000000

/* ---- files ----------------------------------------------------------------------------------- */

static int flags_of(long bits)
{
	static const int flags[] = { O_APPEND, O_NONBLOCK, O_CLOEXEC, O_SYNC, O_DSYNC, O_NOATIME, O_DIRECT };
	int result = 0;

	for (int i = 0; i < 7; i++)
		result |= bits >> i & 1 ? flags[i] : 0;
	return result;
}

static void fill(const char *name, long size, long seed)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	char data[4096];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (char)(seed + (long)i * 7);
	for (long at = 0; fd >= 0 && at < size; at += (long)sizeof(data))
		tried(pwrite(fd, data, size - at < 4096 ? (size_t)(size - at) : sizeof(data), at));
	close(fd);
}

/* A file by its number: how it is opened, its size, the position in it. */
static void op_open(const struct operation *o)
{
	static const int modes[] = { O_RDONLY, O_WRONLY, O_RDWR };
	const char *name = file_name(o->number[0]);
	int fd;

	fill(name, o->number[3], o->number[0]);
	fd = keep(open(name, modes[o->number[1] % 3] | flags_of(o->number[2])));
	if (fd >= 0)
		lseek(fd, o->number[4], SEEK_SET);
}

/* 0: a folder; 1: O_PATH; 2: without a name; 3: a path of a folder; 4: a link itself */
static void op_odd_open(const struct operation *o)
{
	int fd;

	switch (o->number[0]) {
	case 0: keep(open(".", O_RDONLY | O_DIRECTORY | flags_of(o->number[1] & 4))); break;
	case 1:
		fill("pathed", 3, 1);
		keep(open("pathed", O_PATH | flags_of(o->number[1] & 4)));
		break;
	case 2:
		fd = keep(open(".", O_TMPFILE | (o->number[1] & 1 ? O_RDWR : O_WRONLY), 0640));
		if (fd >= 0)
			tried(write(fd, "without a name", 14));
		break;
	case 3: keep(open("..", O_PATH | O_DIRECTORY)); break;
	case 4:
		tried(symlink("nowhere", "link"));
		keep(open("link", O_PATH | O_NOFOLLOW));
		break;
	}
}

static void op_special(const struct operation *o)
{
	static const char *paths[] = { "/dev/null", "/dev/zero", "/dev/urandom", "/dev/full", "/proc/self/status", "/proc/self/fd",
				       "/proc/meminfo", "/proc/self/maps", "/proc/self", "/sys/kernel/mm/transparent_hugepage/enabled",
				       "/proc/1/status", "/dev/shm", "/proc/self/ns/net", "/proc/self/exe" };
	char data[64];
	int fd = keep(open(paths[o->number[0] % 14], O_RDONLY | flags_of(o->number[1] & 6)));

	if (fd >= 0 && o->number[2] && o->number[0] % 14 > 3)
		tried(read(fd, data, sizeof(data)));
}

/* What becomes of the name of a file that may be open. 0: none; 1: another; 2: another file's; 3: one more; 4: one more
   in place of it */
static void op_rename(const struct operation *o)
{
	const char *name = file_name(o->number[0]), *other = file_name(o->number[0] + 10);

	switch (o->number[1]) {
	case 0: tried(unlink(name)); break;
	case 1: tried(rename(name, other)); break;
	case 2:
		fill(other, 7, 3);
		tried(rename(other, name));
		break;
	case 3: tried(link(name, other)); break;
	case 4:
		tried(link(name, other));
		tried(unlink(name));
		break;
	}
}

static void op_dup(const struct operation *o)
{
	int fd = descriptor(o->number[0]);

	if (fd < 0)
		return;
	if (o->number[1])
		keep(dup3(fd, 100 + (int)o->number[1], o->number[2] & 1 ? O_CLOEXEC : 0));
	else
		keep(dup(fd));
}

static void op_close(const struct operation *o)
{
	int fd = descriptor(o->number[0]);

	if (fd >= 0)
		close(fd); /* its number stays in the table: what uses it fails, or means another */
}

static void op_standard(const struct operation *o)
{
	int fd = descriptor(o->number[0]);

	if (fd >= 0)
		tried(dup2(fd, (int)o->number[1] % 3));
}

static void op_flags(const struct operation *o)
{
	int fd = descriptor(o->number[0]);

	if (fd < 0)
		return;
	tried(fcntl(fd, F_SETFD, o->number[1] & 1));
	if (o->number[1] & 2)
		tried(fcntl(fd, F_SETFL, flags_of(o->number[2] & 0x63)));
	if (o->number[1] & 4) {
		tried(fcntl(fd, F_SETOWN, o->number[2] & 1 ? getpid() : -getpgrp()));
		tried(fcntl(fd, F_SETSIG, o->number[2] & 2 ? SIGIO : 0));
	}
	if (o->number[1] & 8)
		tried(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC));
}

static int is_ready(int fd)
{
	struct stat info;

	if (fstat(fd, &info) || S_ISREG(info.st_mode))
		return !fstat(fd, &info);
	return S_ISFIFO(info.st_mode) && fcntl(fd, F_GETPIPE_SZ) > 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
}

/* Bytes into a file or pipe; no more than a pipe has room for. */
static void op_write(const struct operation *o)
{
	int fd = descriptor(o->number[0]), flags;
	char data[4096];

	memset(data, (int)('a' + o->number[1] % 26), sizeof(data));
	if (fd < 0 || !is_ready(fd))
		return;
	flags = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	tried(write(fd, data, (size_t)(o->number[1] % 4096)));
	fcntl(fd, F_SETFL, flags);
}

static void op_seek(const struct operation *o)
{
	int fd = descriptor(o->number[0]);

	if (fd >= 0)
		tried(lseek(fd, o->number[1], SEEK_SET));
}

/* 0: flock; 1: POSIX; 2: OFD; 3: a lease */
static void op_lock(const struct operation *o)
{
	int fd = descriptor(o->number[1]), write = o->number[2] & 1;
	struct flock range = { .l_type = write ? F_WRLCK : F_RDLCK, .l_start = o->number[3], .l_len = o->number[4] };

	if (fd < 0)
		return;
	switch (o->number[0]) {
	case 0: tried(flock(fd, (write ? LOCK_EX : LOCK_SH) | LOCK_NB)); break;
	case 1: tried(fcntl(fd, F_SETLK, &range)); break;
	case 2: tried(fcntl(fd, F_OFD_SETLK, &range)); break;
	case 3: tried(fcntl(fd, F_SETLEASE, write ? F_WRLCK : F_RDLCK)); break;
	}
}

/* ---- pipes and terminals --------------------------------------------------------------------- */

static void op_pipe(const struct operation *o)
{
	int ends[2];

	if (tried(pipe2(ends, flags_of(o->number[0] & 6))) < 0)
		return;
	keep(ends[0]);
	keep(ends[1]);
	if (o->number[1])
		tried(fcntl(ends[0], F_SETPIPE_SZ, 4096L << o->number[1]));
	if (o->number[2])
		tried(write(ends[1], "0123456789abcdefghijklmnopqrstuvwxyz", (size_t)(o->number[2] % 36)));
	if (o->number[3] == 1)
		close(ends[1]);
	if (o->number[3] == 2)
		close(ends[0]);
}

static void op_fifo(const struct operation *o)
{
	char name[16];
	int fd;

	snprintf(name, sizeof(name), "fifo%ld", o->number[0]);
	tried(mkfifo(name, 0666));
	fd = keep(open(name, O_RDWR | O_NONBLOCK));
	if (fd >= 0)
		tried(write(fd, "through a fifo", (size_t)(o->number[1] % 15)));
	if (o->number[2] & 1)
		keep(open(name, O_RDONLY | O_NONBLOCK));
	if (o->number[2] & 2)
		keep(open(name, O_WRONLY | O_NONBLOCK));
	if (o->number[2] & 4 && fd >= 0)
		close(fd);
	if (o->number[2] & 8)
		tried(unlink(name));
}

static void op_terminal(const struct operation *o)
{
	struct winsize size = { (unsigned short)(10 + o->number[1] % 90), (unsigned short)(20 + o->number[1]), 3, 4 };
	struct termios settings;
	int master, slave, on = 1;

	if (tried(openpty(&master, &slave, NULL, NULL, &size)) < 0)
		return;
	keep(master);
	keep(slave);
	tcgetattr(slave, &settings);
	settings.c_lflag ^= (tcflag_t)(o->number[2] & 1 ? ICANON : 0) | (tcflag_t)(o->number[2] & 2 ? ECHO : 0);
	settings.c_iflag ^= (tcflag_t)(o->number[2] & 4 ? ICRNL : 0);
	settings.c_oflag ^= (tcflag_t)(o->number[2] & 8 ? OPOST : 0);
	settings.c_cc[VINTR] = (cc_t)(o->number[2] % 30 + 1);
	settings.c_cc[VMIN] = (cc_t)(o->number[2] % 5);
	tcsetattr(slave, TCSANOW, &settings);
	if (o->number[3] & 1)
		tried(ioctl(master, TIOCPKT, &on));
	if (o->number[3] & 2 && setsid() > 0)
		tried(ioctl(slave, TIOCSCTTY, 0));
	if (o->number[3] & 4)
		tried(write(slave, "shown", 5));
	if (o->number[3] & 8)
		tried(write(master, "typed\n", 6));
	if (o->number[3] & 16)
		tried(ioctl(slave, TIOCEXCL));
	if (o->number[3] & 32)
		close(slave);
}

/* ---- objects of the kernel ------------------------------------------------------------------- */

static void op_eventfd(const struct operation *o)
{
	keep(eventfd((unsigned int)o->number[0], flags_of(o->number[1] & 6) | (o->number[1] & 1 ? EFD_SEMAPHORE : 0)));
}

static void op_timerfd(const struct operation *o)
{
	static const int clocks[] = { CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME };
	struct itimerspec setting = { { o->number[2], 9 }, { FAR, 0 } };
	int fd = keep(timerfd_create(clocks[o->number[0] % 3], flags_of(o->number[1] & 6)));

	if (fd < 0 || o->number[3] == 0)
		return;
	if (o->number[3] == 1) { /* it has expired */
		setting.it_interval.tv_sec = FAR;
		setting.it_value = (struct timespec){ 0, 1 };
	}
	if (o->number[3] == 3) /* at a point in time (through the kernel: the time stamp counter may be forbidden) */
		syscall(SYS_clock_gettime, clocks[o->number[0] % 3], &setting.it_value), setting.it_value.tv_sec += FAR;
	tried(timerfd_settime(fd, o->number[3] == 3 ? TFD_TIMER_ABSTIME : 0, &setting, NULL));
	if (o->number[3] == 1)
		usleep(1000);
}

static void op_signalfd(const struct operation *o)
{
	static const int signals[] = { SIGUSR1, SIGUSR2, SIGTERM, SIGHUP, SIGCHLD, SIGURG };
	sigset_t set;

	sigemptyset(&set);
	for (int i = 0; i < 6; i++)
		if (o->number[0] >> i & 1)
			sigaddset(&set, signals[i]);
	keep(signalfd(-1, &set, flags_of(o->number[1] & 6)));
}

/* An epoll with some of the descriptors that there are. */
static void op_epoll(const struct operation *o)
{
	int fd = epoll_create1(flags_of(o->number[0] & 4));

	for (int i = 0; i < 3 && o->number[1]; i++) {
		struct epoll_event event = { .events = EPOLLIN | (o->number[2] & 1 ? EPOLLET : 0) |
						       (o->number[2] & 2 ? EPOLLONESHOT : 0) | (o->number[2] & 4 ? EPOLLOUT : 0),
					     .data.u64 = 0x1122334455UL * (uint64_t)(o->number[3] + i) };
		int member = descriptor(o->number[1] + i * 3);

		if (member >= 0)
			epoll_ctl(fd, EPOLL_CTL_ADD, member, &event);
	}
	keep(fd);
}

static void op_inotify(const struct operation *o)
{
	static const uint32_t masks[] = { IN_MODIFY, IN_CREATE | IN_DELETE, IN_MOVED_FROM | IN_MOVED_TO, IN_ATTRIB | IN_ONESHOT };
	int fd = keep(inotify_init1(flags_of(o->number[0] & 6)));

	if (fd < 0)
		return;
	if (o->number[1] & 1)
		tried(inotify_add_watch(fd, ".", masks[o->number[2] % 4]));
	if (o->number[1] & 2)
		tried(inotify_add_watch(fd, "/etc", masks[o->number[2] / 4 % 4]));
	if (o->number[1] & 4) {
		fill("watched", 5, 5);
		tried(inotify_add_watch(fd, "watched", masks[o->number[2] / 16 % 3]));
	}
	if (o->number[1] & 8)
		tried(inotify_rm_watch(fd, 1));
}

static void op_pidfd(const struct operation *o)
{
	pid_t pids[] = { getpid(), getppid(), 1 };

	keep((int)syscall(SYS_pidfd_open, pids[o->number[0] % 3], o->number[1] & 1 ? O_NONBLOCK : 0));
}

const struct operator file_operators[] = {
	{ "open", op_open },	     { "odd_open", op_odd_open }, { "special", op_special },   { "rename", op_rename },
	{ "dup", op_dup },	     { "close", op_close },	  { "standard", op_standard }, { "flags", op_flags },
	{ "write", op_write },	     { "seek", op_seek },	  { "lock", op_lock },	       { "pipe", op_pipe },
	{ "fifo", op_fifo },	     { "terminal", op_terminal }, { "eventfd", op_eventfd },   { "timerfd", op_timerfd },
	{ "signalfd", op_signalfd }, { "epoll", op_epoll },	  { "inotify", op_inotify },   { "pidfd", op_pidfd },
	{ 0 },
};
