/* The shim: preloaded into CRIU, never into anything else. It mends what CRIU cannot do by itself.

   Limits. CRIU asks for the resource limits of every process it saves, with prlimit(2) through libc's
   syscall(). For a process of another user the kernel wants CAP_SYS_RESOURCE for that, even of root,
   and many sandboxed machines do not have it. The same numbers are in /proc/PID/limits for everybody
   to read. So: when prlimit(2) is refused and only wanted to read, the answer is taken from there.

   Terminals of the tree's own (tmux, screen, script). Only a session leader can acquire a controlling
   terminal; others have it from their parent, by fork. CRIU forks the whole tree first and opens
   terminals later, so that the leader would get its own back and its children none: no /dev/tty, no job
   control. Here the keeper has made these terminals before CRIU starts and holds them open, and the shim
   gives a leader its terminal at the moment it calls setsid(), before it has children (WAYPOINT_LEADERS),
   and hands out the keeper's masters where CRIU opens /dev/pts/ptmx (WAYPOINT_PTYS). Which one is wanted
   CRIU would find out by opening one after the other, and at most 32; so that the shim can know, the
   path of a master is saved with as many "./" in front as its index: the same path for everybody else.

   /dev/tty. A descriptor opened by that name (ssh, getpass, a shell that prints to it) CRIU saves only for a
   session leader that is saved too. To CRIU it is shown as what it leads to, /dev/pts/N.

   Orphans. A daemon whose session leader has ended is restored by way of a helper that takes the leader's
   place and ends, upon which the nearest subreaper adopts the daemon. CRIU makes the root of the tree a
   subreaper again only later; pid 1 would adopt it, and the next checkpoint would not hold it.

   Interrupted calls. To freeze a task is to interrupt the call it sleeps in. The kernel would restart it, but
   those calls that it restarts with the help of notes of its own (poll, relative sleeps, waits with
   a timeout) CRIU ends with EINTR, in the saved tree and in the one that runs on. A program without signal
   handlers need not expect that: script(1) takes it for the end. Where the arguments alone tell what
   is to be done again, CRIU is told that the call is one of the simple kind.

   Stopped tasks. CRIU knows those that SIGSTOP or SIGTSTP has stopped. A background job that touched the
   terminal was stopped by SIGTTIN or SIGTTOU; which one it was makes no difference to how it goes on.

   Locks. CRIU waits for a file lock it cannot have at once. On a file that is shared with the outside (a
   bind mount) the holder may be the very session that is being forked, and would be waited for forever.

   Dirty memory. CRIU saves only what was written since an earlier dump where the kernel has soft-dirty bits. Many
   have none, but can tell what was written since it was write-protected through a userfaultfd in asynchronous
   mode (tracking.py has put the large memory of processes under one). With WAYPOINT_TRACK set the one is shown
   to CRIU as the other: "written" where it asks for "soft-dirty", and when it wants the bits of a task cleared,
   all that was written is protected again. Memory that nobody has under such a watch counts as written.

   Everything here is raw system calls and a buffer on the stack. CRIU calls syscall() in places where
   neither malloc nor stdio may be used, and the shim is compiled on one machine's libc and loaded with
   another, so it had better need nothing from either but errno and environ. */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* libc's headers would define what is defined here */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <unistd.h>

#define LAST_ERRNO 4095
#define LIMITS_BYTES 4096 /* the kernel prints sixteen lines of 77 columns and a heading */

struct limit { /* struct rlimit64 */
	uint64_t soft, hard;
};

#if defined(__x86_64__)
static long kernel(long number, long a, long b, long c, long d, long e, long f)
{
	register long fourth __asm__("r10") = d;
	register long fifth __asm__("r8") = e;
	register long sixth __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
static long kernel(long number, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc #0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
}
#else
#error "the shim knows x86-64 and aarch64"
#endif

/* As libc hands a result on. */
static long settle(long result)
{
	if (result < 0 && result >= -LAST_ERRNO) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* How fs/proc/base.c titles each resource. */
static const char *title_of(long resource)
{
	switch (resource) {
	case RLIMIT_CPU: return "Max cpu time";
	case RLIMIT_FSIZE: return "Max file size";
	case RLIMIT_DATA: return "Max data size";
	case RLIMIT_STACK: return "Max stack size";
	case RLIMIT_CORE: return "Max core file size";
	case RLIMIT_RSS: return "Max resident set";
	case RLIMIT_NPROC: return "Max processes";
	case RLIMIT_NOFILE: return "Max open files";
	case RLIMIT_MEMLOCK: return "Max locked memory";
	case RLIMIT_AS: return "Max address space";
	case RLIMIT_LOCKS: return "Max file locks";
	case RLIMIT_SIGPENDING: return "Max pending signals";
	case RLIMIT_MSGQUEUE: return "Max msgqueue size";
	case RLIMIT_NICE: return "Max nice priority";
	case RLIMIT_RTPRIO: return "Max realtime priority";
	case RLIMIT_RTTIME: return "Max realtime timeout";
	default: return NULL;
	}
}

/* Writes /proc/PID/limits into `path`, which has room for it; pid 0 is the caller itself. */
static void limits_path(char *path, long pid)
{
	char digits[20];
	int count = 0;

	for (const char *part = "/proc/"; *part; part++)
		*path++ = *part;
	if (!pid)
		for (const char *part = "self"; *part; part++)
			*path++ = *part;
	for (; pid > 0; pid /= 10)
		digits[count++] = '0' + pid % 10;
	while (count)
		*path++ = digits[--count];
	for (const char *part = "/limits"; *part; part++)
		*path++ = *part;
	*path = '\0';
}

static long read_limits(long pid, char *text)
{
	char path[sizeof("/proc//limits") + 20];
	long fd, got, length = 0;

	limits_path(path, pid);
	fd = kernel(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
	if (fd < 0)
		return -1;
	do {
		got = kernel(SYS_read, fd, (long)(text + length), LIMITS_BYTES - 1 - length, 0, 0, 0);
		if (got > 0)
			length += got;
	} while ((got > 0 && length < LIMITS_BYTES - 1) || got == -EINTR);
	kernel(SYS_close, fd, 0, 0, 0, 0, 0);
	text[length] = '\0';
	return got < 0 ? -1 : length;
}

/* One "1024" or "unlimited" behind blanks; the place behind it, or NULL if there is none. */
static const char *take_value(const char *at, uint64_t *value)
{
	while (*at == ' ')
		at++;
	if (*at == 'u') {
		*value = UINT64_MAX;
		while (*at >= 'a' && *at <= 'z')
			at++;
		return at;
	}
	if (*at < '0' || *at > '9')
		return NULL;
	for (*value = 0; *at >= '0' && *at <= '9'; at++)
		*value = *value * 10 + (uint64_t)(*at - '0');
	return at;
}

static int limit_from_proc(long pid, long resource, struct limit *answer)
{
	const char *title = title_of(resource), *line, *at, *wanted;
	char text[LIMITS_BYTES];
	struct limit found;

	if (!title || pid < 0 || read_limits(pid, text) < 0)
		return 0;
	for (line = text; *line; line = *at ? at + 1 : at) {
		for (at = line, wanted = title; *wanted && *at == *wanted; at++)
			wanted++;
		if (!*wanted && *at == ' ' && (at = take_value(at, &found.soft)) && take_value(at, &found.hard)) {
			*answer = found;
			return 1;
		}
		for (at = line; *at && *at != '\n'; at++)
			;
	}
	return 0;
}

static int same(const char *text, long length, const char *word)
{
	for (; length && *word; length--)
		if (*text++ != *word++)
			return 0;
	return !length && !*word;
}

/* Takes the place of libc's. Six arguments are read whatever the call: the surplus is not looked at. */
long syscall(long number, ...)
{
	long a, b, c, d, e, f, result;
	va_list arguments;

	va_start(arguments, number);
	a = va_arg(arguments, long);
	b = va_arg(arguments, long);
	c = va_arg(arguments, long);
	d = va_arg(arguments, long);
	e = va_arg(arguments, long);
	f = va_arg(arguments, long);
	va_end(arguments);

	result = kernel(number, a, b, c, d, e, f);
	if (number == SYS_prlimit64 && result == -EPERM && !c && d &&
	    limit_from_proc((int)a, (int)b, (struct limit *)d))
		result = 0;
	return settle(result);
}

/* ---- terminals ------------------------------------------------------------------------------- */

#define MOST_PTYS 128
#define KEEPER 1 /* pid 1 of the box, which CRIU runs in */

static struct pty { /* master and slave: the keeper's descriptors of them */
	int index, master, slave;
} ptys[MOST_PTYS];
static struct leader {
	int pid, index;
} leaders[MOST_PTYS];
static int pty_count, leader_count;
static long criu;
static int tracking; /* dirty memory, below */

/* Reads "1:2:3,4:5:6" into records of `width` numbers each; returns how many. */
static int take_records(const char *text, int *numbers, int width)
{
	int count = 0;

	while (count < MOST_PTYS * width && *text >= '0' && *text <= '9') {
		int number = 0;

		while (*text >= '0' && *text <= '9')
			number = number * 10 + *text++ - '0';
		numbers[count++] = number;
		if (*text)
			text++;
	}
	return count / width;
}

static const char *value_of(const char *name)
{
	for (char **variable = environ; variable && *variable; variable++) {
		const char *at = *variable, *wanted = name;

		while (*wanted && *at == *wanted) {
			at++;
			wanted++;
		}
		if (!*wanted && *at == '=')
			return at + 1;
	}
	return "";
}

__attribute__((constructor)) static void learn(void)
{
	pty_count = take_records(value_of("WAYPOINT_PTYS"), &ptys[0].index, 3);
	leader_count = take_records(value_of("WAYPOINT_LEADERS"), &leaders[0].pid, 2);
	criu = kernel(SYS_getpid, 0, 0, 0, 0, 0, 0);
	tracking = *value_of("WAYPOINT_TRACK") != 0;
}

static const struct pty *pty_of(int index)
{
	for (int i = 0; i < pty_count; i++)
		if (ptys[i].index == index)
			return &ptys[i];
	return NULL;
}

/* A descriptor of the same open file as the keeper's, closed on exec; or minus errno. */
static long from_keeper(int fd)
{
	long keeper = kernel(SYS_pidfd_open, KEEPER, 0, 0, 0, 0, 0), result;

	if (keeper < 0)
		return keeper;
	result = kernel(SYS_pidfd_getfd, keeper, fd, 0, 0, 0, 0);
	kernel(SYS_close, keeper, 0, 0, 0, 0, 0);
	return result;
}

/* A leader that cannot have its terminal must not come back without it: then setsid() has failed. */
pid_t setsid(void)
{
	long session = kernel(SYS_setsid, 0, 0, 0, 0, 0, 0), slave, result = 0;

	for (int i = 0; i < leader_count && session > 0 && !result; i++) {
		const struct pty *pty = leaders[i].pid == session ? pty_of(leaders[i].index) : NULL;

		if (!pty)
			continue;
		slave = from_keeper(pty->slave);
		if (slave < 0) {
			result = slave;
			break;
		}
		result = kernel(SYS_ioctl, slave, TIOCSCTTY, 0, 0, 0, 0);
		kernel(SYS_close, slave, 0, 0, 0, 0, 0);
	}
	return (pid_t)settle(result < 0 ? result : session);
}

/* How many "./" a path to ptmx starts with, behind a slash or not; 0 for any other path. */
static int index_in(const char *path)
{
	const char *end = path, *tail = "ptmx";
	int index = 0;

	if (*path == '/')
		path++;
	while (path[0] == '.' && path[1] == '/') {
		path += 2;
		index++;
	}
	while (*end)
		end++;
	for (int i = 0; i < 4; i++)
		if (end - path < 4 || end[i - 4] != tail[i])
			return 0;
	return index;
}

static void note_opened(int folder, const char *path, long fd);

static int open_at(int folder, const char *path, int flags, int mode)
{
	const struct pty *pty = pty_count ? pty_of(index_in(path)) : NULL;
	const int settable = O_APPEND | O_ASYNC | O_NONBLOCK;
	long fd;

	if (!pty) {
		fd = kernel(SYS_openat, folder, (long)path, flags, mode, 0, 0);
		note_opened(folder, path, fd);
		return (int)settle(fd);
	}
	fd = from_keeper(pty->master);
	if (fd >= 0) {
		kernel(SYS_fcntl, fd, F_SETFL, flags & settable, 0, 0, 0);
		kernel(SYS_fcntl, fd, F_SETFD, flags & O_CLOEXEC ? FD_CLOEXEC : 0, 0, 0, 0);
	}
	return (int)settle(fd);
}

int openat(int folder, const char *path, int flags, ...)
{
	va_list arguments;
	int mode;

	va_start(arguments, flags);
	mode = va_arg(arguments, int);
	va_end(arguments);
	return open_at(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) __attribute__((alias("openat")));

#define DEV_TTY 0x500 /* major 5, minor 0 */
#define PTS_MAJOR 136
#define PTS_NAME_BYTES sizeof("/dev/pts/1048575")

/* The name of the terminal that a descriptor of /dev/tty leads to; its length, or 0 when there is none. */
static int name_of_terminal(int fd, char *name)
{
	static const char folder[] = "/dev/pts/";
	unsigned int device, index, unit = 1;
	int length = 0;

	if (kernel(SYS_ioctl, fd, TIOCGDEV, (long)&device, 0, 0, 0) < 0 || (device >> 8 & 0xfff) != PTS_MAJOR)
		return 0;
	index = (device & 0xff) | (device >> 12 & 0xfff00);
	while (folder[length]) {
		name[length] = folder[length];
		length++;
	}
	while (index / unit >= 10)
		unit *= 10;
	for (; unit; unit /= 10)
		name[length++] = (char)('0' + index / unit % 10);
	name[length] = 0;
	return length;
}

static int stat_of(int fd, struct stat *about)
{
	long result = kernel(SYS_fstat, fd, (long)about, 0, 0, 0, 0);
	char name[PTS_NAME_BYTES];

	if (!result && S_ISCHR(about->st_mode) && about->st_rdev == DEV_TTY && name_of_terminal(fd, name))
		result = kernel(SYS_newfstatat, AT_FDCWD, (long)name, (long)about, 0, 0, 0);
	return (int)settle(result);
}

int fstat(int fd, struct stat *about)
{
	return stat_of(fd, about);
}

int fstat64(int fd, struct stat64 *about)
{
	return stat_of(fd, (struct stat *)about); /* the same on 64 bits */
}

/* CRIU asks what a descriptor leads to when it saves it. */
ssize_t readlink(const char *path, char *buffer, size_t size)
{
	static const char folder[] = "/proc/self/fd/";
	long length = kernel(SYS_readlinkat, AT_FDCWD, (long)path, (long)buffer, size, 0, 0);
	int fd = 0, index = 0;

	if (length < 4 || buffer[0] != '/')
		return settle(length);
	for (size_t i = 0; i < sizeof(folder) - 1; i++)
		if (*path++ != folder[i])
			return length;
	while (*path >= '0' && *path <= '9')
		fd = fd * 10 + *path++ - '0';
	if (same(buffer, length, "/dev/tty") && size >= PTS_NAME_BYTES) {
		int renamed = name_of_terminal(fd, buffer);

		return renamed ? renamed : length;
	}
	if (!same(buffer + length - 4, 4, "ptmx"))
		return length;
	if (kernel(SYS_ioctl, fd, TIOCGPTN, (long)&index, 0, 0, 0) < 0 || index <= 0 || index >= MOST_PTYS ||
	    length + 2 * index >= (long)size)
		return length;
	for (long i = length - 1; i > 0; i--)
		buffer[i + 2 * index] = buffer[i];
	for (long i = 1; i < 1 + 2 * index; i += 2) {
		buffer[i] = '.';
		buffer[i + 1] = '/';
	}
	return length + 2 * index;
}

/* ---- dirty memory ---------------------------------------------------------------------------- */

/* PAGEMAP_SCAN of linux/fs.h, which the headers of this machine may be too old for. */
#define SCAN 0xc0606610UL
#define SCAN_WP_MATCHING 0x1
#define IS_WPALLOWED 0x01
#define IS_WRITTEN 0x02
#define IS_FILE 0x04
#define IS_PRESENT 0x08
#define IS_SWAPPED 0x10
#define IS_SOFT_DIRTY 0x80
#define SOFT_DIRTY_BIT (1ULL << 55) /* of an entry of /proc/PID/pagemap */
#define END_OF_MEMORY 0x7ffffffff000ULL
#define REGIONS 4096

struct scan {
	uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages, inverted, all_of, any_of, told;
};
struct region {
	uint64_t start, end, categories;
};

static int pretending;
static long clear_fd = -1, armed_fd = -1; /* a task's clear_refs, and its pagemap */

static void note_opened(int folder, const char *path, long fd)
{
	int length = 0;

	while (path[length] && length < 16)
		length++;
	if (fd < 0 || !same(path, length, "clear_refs"))
		return;
	if (armed_fd >= 0)
		kernel(SYS_close, armed_fd, 0, 0, 0, 0, 0);
	armed_fd = kernel(SYS_openat, folder, (long)"pagemap", O_RDONLY | O_CLOEXEC, 0, 0, 0);
	clear_fd = fd;
}

/* Protects all of a task's watched memory that was written. The task stands still. (Without room for regions the
   kernel would protect what is not there yet too, and what comes there later would count as unchanged.) */
static long arm(void)
{
	static struct region regions[REGIONS];
	struct scan scan = { .size = sizeof(scan), .flags = SCAN_WP_MATCHING, .end = END_OF_MEMORY,
			     .regions = (uintptr_t)regions, .region_count = REGIONS,
			     .all_of = IS_WPALLOWED | IS_WRITTEN, .any_of = IS_PRESENT | IS_SWAPPED,
			     .told = IS_WRITTEN };
	long result;

	if (armed_fd < 0)
		return -EBADF;
	do {
		result = kernel(SYS_ioctl, armed_fd, SCAN, (long)&scan, 0, 0, 0);
		if (result >= 0 && scan.walk_end <= scan.start)
			result = -EIO;
		scan.start = scan.walk_end;
	} while (result >= 0 && scan.start < scan.end);
	kernel(SYS_close, armed_fd, 0, 0, 0, 0, 0);
	armed_fd = clear_fd = -1;
	return result;
}

ssize_t write(int fd, const void *data, size_t length)
{
	long result;

	if (fd != clear_fd || clear_fd < 0)
		return settle(kernel(SYS_write, fd, (long)data, length, 0, 0, 0));
	if (tracking) {
		result = arm();
		return settle(result < 0 ? result : (long)length);
	}
	/* CRIU finds out what the kernel can do, and keeps the answer for later: it is to believe in tracking. */
	clear_fd = -1;
	pretending = 1;
	return (ssize_t)length;
}

ssize_t read(int fd, void *data, size_t length)
{
	long result = kernel(SYS_read, fd, (long)data, length, 0, 0, 0);

	if (pretending && result == sizeof(uint64_t) && length == sizeof(uint64_t)) {
		*(uint64_t *)data |= SOFT_DIRTY_BIT;
		pretending = 0;
	}
	return settle(result);
}

/* Only where memory is watched now its protection means something: when the kernel moves memory beside some that
   is watched, it may stop watching both and leave the marks of protection behind.

   To tell whether a page belongs to a file the kernel looks at each page's own record, which is ten times as much
   work as all else. Watched memory is in no file, so that needs to be asked only where other memory is found. */
static long scan_written(int fd, struct scan *scan)
{
	struct region *regions = (struct region *)scan->regions;
	const uint64_t own = IS_WPALLOWED | IS_WRITTEN;
	struct scan quick;
	long count;

	scan->told = (scan->told & ~(uint64_t)IS_SOFT_DIRTY) | own;
	quick = *scan;
	quick.all_of &= ~(uint64_t)IS_FILE;
	quick.inverted &= ~(uint64_t)IS_FILE;
	count = kernel(SYS_ioctl, fd, SCAN, (long)&quick, 0, 0, 0);
	scan->walk_end = quick.walk_end;
	for (long i = 0; i < count; i++)
		if (!(regions[i].categories & IS_WPALLOWED)) {
			count = kernel(SYS_ioctl, fd, SCAN, (long)scan, 0, 0, 0);
			break;
		}
	for (long i = 0; i < count; i++) {
		int clean = (regions[i].categories & own) == IS_WPALLOWED;

		regions[i].categories = (regions[i].categories & ~own) | (clean ? 0 : IS_SOFT_DIRTY);
	}
	return count;
}

/* The foreground group of a terminal may have ended when it was saved; then nobody can set it again, and
   the leader's own group, which TIOCSCTTY has set, stays. */
int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	long argument, result;

	va_start(arguments, request);
	argument = va_arg(arguments, long);
	va_end(arguments);
	if (tracking && request == SCAN && ((struct scan *)argument)->told & IS_SOFT_DIRTY)
		return (int)settle(scan_written(fd, (struct scan *)argument));
	result = kernel(SYS_ioctl, fd, (long)request, argument, 0, 0, 0);
	if (request == TIOCSPGRP && leader_count && (result == -ESRCH || result == -EPERM))
		result = 0;
	return (int)settle(result);
}

/* ---- orphans --------------------------------------------------------------------------------- */

/* The root of a tree that is being restored, CRIU's own child, asks this before it has any children. */
pid_t getsid(pid_t pid)
{
	if (kernel(SYS_getppid, 0, 0, 0, 0, 0, 0) == criu)
		kernel(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0, 0);
	return (pid_t)settle(kernel(SYS_getsid, pid, 0, 0, 0, 0, 0));
}

/* ---- tasks: interrupted calls, stop signals -------------------------------------------------- */

#if defined(__x86_64__)
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

/* Whether making the same call again is as good as going on with it. */
static int repeatable(const struct user_regs_struct *r)
{
	switch (r->orig_rax) {
	case SYS_poll: /* mostly without a timeout; a late one is no error, EINTR is */
		return 1;
	case SYS_futex: /* until a point in time */
		return (r->rsi & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
	/* The time left is where the request was, or nobody asked for it; else the caller can go on by itself. */
	case SYS_nanosleep:
		return !r->rsi || r->rsi == r->rdi;
	case SYS_clock_nanosleep:
		return !r->r10 || r->r10 == r->rdx;
	default:
		return 0;
	}
}

static void make_repeatable(struct user_regs_struct *r, size_t length)
{
	if (length == sizeof(*r) && (long)r->orig_rax >= 0 && (long)r->rax == -ERESTART_RESTARTBLOCK && repeatable(r))
		r->rax = -ERESTARTNOHAND;
}
#else
static void make_repeatable(struct user_regs_struct *r, size_t length)
{
	(void)r;
	(void)length;
}
#endif

static void make_known(siginfo_t *info)
{
	if (info->si_code >> 8 == PTRACE_EVENT_STOP && (info->si_signo == SIGTTIN || info->si_signo == SIGTTOU))
		info->si_signo = SIGSTOP;
}

long ptrace(enum __ptrace_request request, ...)
{
	long pid, address, data, result, word;
	va_list arguments;

	va_start(arguments, request);
	pid = va_arg(arguments, long);
	address = va_arg(arguments, long);
	data = va_arg(arguments, long);
	va_end(arguments);
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		/* The kernel puts the word where `data` points; libc returns it. */
		result = kernel(SYS_ptrace, request, (pid_t)pid, address, (long)&word, 0, 0);
		if (result >= 0)
			errno = 0;
		return result < 0 ? settle(result) : word;
	}
	result = kernel(SYS_ptrace, request, (pid_t)pid, address, data, 0, 0);
	if (request == PTRACE_GETREGSET && address == NT_PRSTATUS && result >= 0)
		make_repeatable(((struct iovec *)data)->iov_base, ((struct iovec *)data)->iov_len);
	else if (request == PTRACE_GETREGS && result >= 0)
		make_repeatable((struct user_regs_struct *)data, sizeof(struct user_regs_struct));
	else if (request == PTRACE_GETSIGINFO && result >= 0)
		make_known((siginfo_t *)data);
	return settle(result);
}

/* ---- locks ----------------------------------------------------------------------------------- */

/* (F_GETOWN, whose answer may be a negative number, is not among what CRIU asks for.) */
int fcntl(int fd, int command, ...)
{
	va_list arguments;
	long argument;

	va_start(arguments, command);
	argument = va_arg(arguments, long);
	va_end(arguments);
	if (command == F_SETLKW)
		command = F_SETLK;
	return (int)settle(kernel(SYS_fcntl, fd, command, argument, 0, 0, 0));
}

int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

int flock(int fd, int operation)
{
	return (int)settle(kernel(SYS_flock, fd, operation | LOCK_NB, 0, 0, 0, 0));
}
