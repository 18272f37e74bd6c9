/* The shim: preloaded into CRIU, never into anything else. It corrects what CRIU cannot do by itself.

   Limits. CRIU asks for the resource limits of every process it saves, with prlimit(2) through libc's syscall(). For a
   process of another user the kernel requires CAP_SYS_RESOURCE for that, even of root, and many sandboxed machines do
   not have it. The same numbers are in /proc/PID/limits, which every process may read. So when prlimit(2) is refused and
   was only to read, the answer is taken from there.

   Terminals inside the tree (tmux, screen, script). Only a session leader can acquire a controlling terminal; other
   processes inherit it at fork. CRIU forks the whole tree first and opens terminals later, so that the leader would get
   its terminal back and its children would not: no /dev/tty, no job control. Here the keeper has created these terminals
   before CRIU starts and holds them open. The shim gives a leader its terminal at the moment it calls setsid(), before it
   has children (WAYPOINT_LEADERS), and returns the keeper's masters where CRIU opens /dev/pts/ptmx (WAYPOINT_PTYS).
   CRIU would look for the right index by opening one terminal after the other, at most 32. So that the shim knows which
   one is meant, the path of a master is saved with as many "./" in front as its index: it leads to the same file.

   /dev/tty. A descriptor opened by that name (ssh, getpass, a shell that prints to it) CRIU saves only for a session
   leader that is saved too. To CRIU it is shown as the terminal it leads to, /dev/pts/N.

   Orphans. A daemon whose session leader has ended is restored through a helper that takes the leader's place and ends,
   upon which the nearest subreaper adopts the daemon. CRIU makes the root of the tree a subreaper again only later; pid 1
   would adopt the daemon, and the next checkpoint would not hold it.

   The keeper's session. The anchor is a member of the session that the keeper leads, and the keeper is not saved. CRIU
   looks for a process's session leader among its ancestors; for a process that belongs to the keeper's session below one
   that has left it (a child started before setsid()) there would be none. In the images the anchor is the leader of that
   session (engine/images.py), and CRIU finds it. When CRIU then has the anchor call setsid(), no session is created: the
   anchor is in the keeper's from its birth, and getsid() calls that one the anchor's.

   Programs in a memfd. CRIU saves the file of a program as one that has a name, or had one. It is shown a copy of the
   memfd, a file that was created without a name.

   Watches on links. CRIU looks for the path of a watched file, and sets the watch again, by opening that path; it would
   find the file that a link leads to. What it opens for that purpose alone (O_PATH) is the link itself.

   Interrupted calls. Freezing a task interrupts the call it sleeps in. The kernel would restart the call, but CRIU ends
   those calls with EINTR that the kernel restarts from internal state (poll, relative sleeps, waits with a timeout), in
   the saved tree and in the one that runs on. A program without signal handlers need not expect that: script(1) takes it
   for the end. Where the call can be repeated with the same arguments, CRIU is shown one of the simple kind.

   Stopped tasks. CRIU knows tasks that SIGSTOP or SIGTSTP has stopped. A background job that used the terminal was
   stopped by SIGTTIN or SIGTTOU; it continues in the same way.

   Locks. CRIU waits for a file lock that it does not get at once. On a file that is shared with the outside (a bind
   mount) the holder may be the very session that is being forked, and CRIU would wait without end.

   Dirty memory. With soft-dirty bits CRIU saves only pages that were written since an earlier dump. Many kernels have no
   such bits, but can report what was written since it was write-protected through a userfaultfd in asynchronous mode
   (engine/memory.py has registered the large memory of processes with one). With WAYPOINT_TRACK set the one is shown to
   CRIU as the other: "written" where it asks for "soft-dirty", and when it clears the bits of a task, all pages that were
   written are protected again. Memory that is not registered counts as written.

   Everything here is raw system calls and a buffer on the stack. CRIU calls syscall() in places where neither malloc nor
   stdio may be used. And the shim is compiled with the libc of this machine and loaded with another one, so it uses
   nothing of either but errno and environ. */

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
#include <sys/vfs.h>
#include <unistd.h>

#include "waypoint.h"

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

/* Sets errno as libc does. */
static long libc_result(long result)
{
	if (result < 0 && result >= -LAST_ERRNO) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* The titles of resources in fs/proc/base.c. */
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

/* Writes /proc/PID/limits into `path`, which is large enough; pid 0 is the caller itself. */
static void write_limits_path(char *path, long pid)
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

	write_limits_path(path, pid);
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

/* Reads "1024" or "unlimited" after blanks. Returns the place behind it, or NULL if there is none. */
static const char *read_value(const char *at, uint64_t *value)
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

static int read_limit(long pid, long resource, struct limit *answer)
{
	const char *title = title_of(resource), *line, *at, *wanted;
	char text[LIMITS_BYTES];
	struct limit limit;

	if (!title || pid < 0 || read_limits(pid, text) < 0)
		return 0;
	for (line = text; *line; line = *at ? at + 1 : at) {
		for (at = line, wanted = title; *wanted && *at == *wanted; at++)
			wanted++;
		if (!*wanted && *at == ' ' && (at = read_value(at, &limit.soft)) && read_value(at, &limit.hard)) {
			*answer = limit;
			return 1;
		}
		for (at = line; *at && *at != '\n'; at++)
			;
	}
	return 0;
}

static int equals(const char *text, long length, const char *word)
{
	for (; length && *word; length--)
		if (*text++ != *word++)
			return 0;
	return !length && !*word;
}

/* Replaces libc's. Six arguments are read for every call; the kernel ignores those it does not need. */
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
	    read_limit((int)a, (int)b, (struct limit *)d))
		result = 0;
	return libc_result(result);
}

/* ---- terminals ------------------------------------------------------------------------------- */

#define KEEPER 1 /* pid 1 of the box, which CRIU runs in */

static struct pty { /* master and slave: the keeper's descriptors of them */
	int index, master, slave;
} ptys[MAX_PTYS];
static struct leader {
	int pid, index;
} leaders[MAX_PTYS];
static int pty_count, leader_count;
static long criu;
static int tracking; /* see "dirty memory" */

/* Reads "1:2:3,4:5:6" into records of `width` numbers each; returns how many. */
static int read_records(const char *text, int *numbers, int width)
{
	int count = 0;

	while (count < MAX_PTYS * width && *text >= '0' && *text <= '9') {
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

__attribute__((constructor)) static void read_environment(void)
{
	pty_count = read_records(value_of("WAYPOINT_PTYS"), &ptys[0].index, 3);
	leader_count = read_records(value_of("WAYPOINT_LEADERS"), &leaders[0].pid, 2);
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

/* A copy of one of the keeper's descriptors, closed on exec; or minus errno. */
static long copy_from_keeper(int fd)
{
	long keeper = kernel(SYS_pidfd_open, KEEPER, 0, 0, 0, 0, 0), result;

	if (keeper < 0)
		return keeper;
	result = kernel(SYS_pidfd_getfd, keeper, fd, 0, 0, 0, 0);
	kernel(SYS_close, keeper, 0, 0, 0, 0, 0);
	return result;
}

static long anchor; /* set where the anchor passes for the leader of the keeper's session */

/* The root of a tree that is being restored is CRIU's own child. */
static int is_root(void)
{
	return kernel(SYS_getppid, 0, 0, 0, 0, 0, 0) == criu;
}

/* Before it has children. (Its process group must exist before a helper of CRIU's wants to join it.) */
static void prepare_root(void)
{
	kernel(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0, 0);
	kernel(SYS_setpgid, 0, 0, 0, 0, 0, 0);
}

/* A leader must not be restored without its terminal: if it cannot have it, setsid() fails. */
pid_t setsid(void)
{
	long session, slave, result = 0;

	if (is_root()) {
		prepare_root();
		anchor = kernel(SYS_getpid, 0, 0, 0, 0, 0, 0);
		return (pid_t)anchor;
	}
	session = kernel(SYS_setsid, 0, 0, 0, 0, 0, 0);
	for (int i = 0; i < leader_count && session > 0 && !result; i++) {
		const struct pty *pty = leaders[i].pid == session ? pty_of(leaders[i].index) : NULL;

		if (!pty)
			continue;
		slave = copy_from_keeper(pty->slave);
		if (slave < 0) {
			result = slave;
			break;
		}
		result = kernel(SYS_ioctl, slave, TIOCSCTTY, 0, 0, 0, 0);
		kernel(SYS_close, slave, 0, 0, 0, 0, 0);
	}
	return (pid_t)libc_result(result < 0 ? result : session);
}

/* How many "./" a path to ptmx starts with, after a slash or not; 0 for any other path. */
static int read_index(const char *path)
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

#define PROC_MAGIC 0x9fa0

static int is_proc(int folder)
{
	struct statfs info;

	return !kernel(SYS_fstatfs, folder, (long)&info, 0, 0, 0, 0) && info.f_type == PROC_MAGIC;
}

/* A copy, in a file without a name, of the program that the process with the /proc folder `folder` runs. */
static long copy_program(int folder)
{
	long from = kernel(SYS_openat, folder, (long)"exe", O_RDONLY | O_CLOEXEC, 0, 0, 0), to, result;

	if (from < 0)
		return from;
	to = kernel(SYS_openat, AT_FDCWD, (long)"/", O_TMPFILE | O_RDWR | O_CLOEXEC, 0755, 0, 0);
	do
		result = to < 0 ? to : kernel(SYS_sendfile, to, from, 0, 1 << 30, 0, 0);
	while (result > 0);
	kernel(SYS_close, from, 0, 0, 0, 0, 0);
	if (!result)
		return to;
	if (to >= 0)
		kernel(SYS_close, to, 0, 0, 0, 0, 0);
	return result;
}

/* Opens what CRIU only wants to know the identity of. */
static long open_path(int folder, const char *path, int flags)
{
	static const char memfd[] = "/memfd:";
	char target[sizeof(memfd) - 1];
	struct stat info;
	long fd;

	if (is_proc(folder)) {
		if (equals("exe", 3, path) &&
		    kernel(SYS_readlinkat, folder, (long)path, (long)target, sizeof(target), 0, 0) == sizeof(target) &&
		    equals(target, sizeof(target), memfd))
			return copy_program(folder);
		return kernel(SYS_openat, folder, (long)path, flags, 0, 0, 0);
	}
	fd = kernel(SYS_openat, folder, (long)path, flags | O_NOFOLLOW, 0, 0, 0);
	if (fd >= 0 && !kernel(SYS_fstat, fd, (long)&info, 0, 0, 0, 0) && S_ISLNK(info.st_mode) && !is_proc((int)fd))
		return fd;
	/* Once more: O_NOFOLLOW is among the flags of a descriptor, and this one may be given to a process. */
	if (fd >= 0)
		kernel(SYS_close, fd, 0, 0, 0, 0, 0);
	return kernel(SYS_openat, folder, (long)path, flags, 0, 0, 0);
}

static int open_at(int folder, const char *path, int flags, int mode)
{
	const struct pty *pty = pty_count ? pty_of(read_index(path)) : NULL;
	const int settable = O_APPEND | O_ASYNC | O_NONBLOCK;
	long fd;

	if (!pty) {
		if ((flags & ~(O_CLOEXEC | O_LARGEFILE)) == O_PATH)
			fd = open_path(folder, path, flags);
		else
			fd = kernel(SYS_openat, folder, (long)path, flags, mode, 0, 0);
		note_opened(folder, path, fd);
		return (int)libc_result(fd);
	}
	fd = copy_from_keeper(pty->master);
	if (fd >= 0) {
		kernel(SYS_fcntl, fd, F_SETFL, flags & settable, 0, 0, 0);
		kernel(SYS_fcntl, fd, F_SETFD, flags & O_CLOEXEC ? FD_CLOEXEC : 0, 0, 0, 0);
	}
	return (int)libc_result(fd);
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

/* Writes the name of the terminal that a descriptor of /dev/tty leads to. Returns its length, or 0 when there is none. */
static int write_terminal_name(int fd, char *name)
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

static int stat_descriptor(int fd, struct stat *info)
{
	long result = kernel(SYS_fstat, fd, (long)info, 0, 0, 0, 0);
	char name[PTS_NAME_BYTES];

	if (!result && S_ISCHR(info->st_mode) && info->st_rdev == DEV_TTY && write_terminal_name(fd, name))
		result = kernel(SYS_newfstatat, AT_FDCWD, (long)name, (long)info, 0, 0, 0);
	return (int)libc_result(result);
}

int fstat(int fd, struct stat *info)
{
	return stat_descriptor(fd, info);
}

int fstat64(int fd, struct stat64 *info)
{
	return stat_descriptor(fd, (struct stat *)info); /* the same on 64 bits */
}

/* By this CRIU finds out what a descriptor leads to when it saves it. */
ssize_t readlink(const char *path, char *buffer, size_t size)
{
	static const char folder[] = "/proc/self/fd/";
	long length = kernel(SYS_readlinkat, AT_FDCWD, (long)path, (long)buffer, size, 0, 0);
	int fd = 0, index = 0;

	if (length < 4 || buffer[0] != '/')
		return libc_result(length);
	for (size_t i = 0; i < sizeof(folder) - 1; i++)
		if (*path++ != folder[i])
			return length;
	while (*path >= '0' && *path <= '9')
		fd = fd * 10 + *path++ - '0';
	if (equals(buffer, length, "/dev/tty") && size >= PTS_NAME_BYTES) {
		int renamed = write_terminal_name(fd, buffer);

		return renamed ? renamed : length;
	}
	if (!equals(buffer + length - 4, 4, "ptmx"))
		return length;
	if (kernel(SYS_ioctl, fd, TIOCGPTN, (long)&index, 0, 0, 0) < 0 || index <= 0 || index >= MAX_PTYS ||
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

#define SOFT_DIRTY_BIT (1ULL << 55) /* of an entry of /proc/PID/pagemap */

static int pretending;
static long clear_fd = -1, pagemap_fd = -1; /* a task's clear_refs, and its pagemap */

static void note_opened(int folder, const char *path, long fd)
{
	int length = 0;

	while (path[length] && length < 16)
		length++;
	if (fd < 0 || !equals(path, length, "clear_refs"))
		return;
	if (pagemap_fd >= 0)
		kernel(SYS_close, pagemap_fd, 0, 0, 0, 0, 0);
	pagemap_fd = kernel(SYS_openat, folder, (long)"pagemap", O_RDONLY | O_CLOEXEC, 0, 0, 0);
	clear_fd = fd;
}

/* Protects all of a task's tracked memory that was written. The task stands still. (Without room for regions the kernel
   would also protect pages that do not exist yet, and what is written there first would count as unchanged.) */
static long protect_written(void)
{
	static struct region regions[SCAN_REGIONS];
	struct scan scan = { .size = sizeof(scan), .flags = SCAN_WP_MATCHING, .end = END_OF_MEMORY,
			     .regions = (uintptr_t)regions, .region_count = SCAN_REGIONS,
			     .all_of = IS_WPALLOWED | IS_WRITTEN, .any_of = IS_PRESENT | IS_SWAPPED,
			     .returned = IS_WRITTEN };
	long result;

	if (pagemap_fd < 0)
		return -EBADF;
	do {
		result = kernel(SYS_ioctl, pagemap_fd, SCAN, (long)&scan, 0, 0, 0);
		if (result >= 0 && scan.walk_end <= scan.start)
			result = -EIO;
		scan.start = scan.walk_end;
	} while (result >= 0 && scan.start < scan.end);
	kernel(SYS_close, pagemap_fd, 0, 0, 0, 0, 0);
	pagemap_fd = clear_fd = -1;
	return result;
}

ssize_t write(int fd, const void *data, size_t length)
{
	long result;

	if (fd != clear_fd || clear_fd < 0)
		return libc_result(kernel(SYS_write, fd, (long)data, length, 0, 0, 0));
	if (tracking) {
		result = protect_written();
		return libc_result(result < 0 ? result : (long)length);
	}
	/* CRIU examines what the kernel can do, and stores the answer for later: it must find soft-dirty bits. */
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
	return libc_result(result);
}

/* Protection has a meaning only in memory that is tracked now: when the kernel moves memory next to a tracked area, it may
   stop tracking both and leave the marks of protection behind.

   To find out whether a page belongs to a file the kernel reads each page's own record, which is ten times the rest of
   the work. Tracked memory is in no file, so that is asked only where other memory is found. */
static long scan_written(int fd, struct scan *scan)
{
	struct region *regions = (struct region *)scan->regions;
	const uint64_t own = IS_WPALLOWED | IS_WRITTEN;
	struct scan quick;
	long count;

	scan->returned = (scan->returned & ~(uint64_t)IS_SOFT_DIRTY) | own;
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

/* The foreground group of a terminal may have ended before it was saved. Then it cannot be set again, and the leader's own
   group, which TIOCSCTTY has set, stays. */
int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	long argument, result;

	va_start(arguments, request);
	argument = va_arg(arguments, long);
	va_end(arguments);
	if (tracking && request == SCAN && ((struct scan *)argument)->returned & IS_SOFT_DIRTY)
		return (int)libc_result(scan_written(fd, (struct scan *)argument));
	result = kernel(SYS_ioctl, fd, (long)request, argument, 0, 0, 0);
	if (request == TIOCSPGRP && leader_count && (result == -ESRCH || result == -EPERM))
		result = 0;
	return (int)libc_result(result);
}

/* ---- orphans --------------------------------------------------------------------------------- */

/* The root calls this before it has any children, if it did not call setsid(): in images of earlier versions. */
pid_t getsid(pid_t pid)
{
	long session;

	if (is_root())
		prepare_root();
	session = kernel(SYS_getsid, pid, 0, 0, 0, 0, 0);
	return (pid_t)libc_result(anchor && session == KEEPER ? anchor : session);
}

/* ---- tasks: interrupted calls, stop signals -------------------------------------------------- */

#if defined(__x86_64__)
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

/* Whether repeating the call has the same effect as continuing it. */
static int is_repeatable(const struct user_regs_struct *r)
{
	switch (r->orig_rax) {
	case SYS_poll: /* mostly without a timeout; a late one is no error, EINTR is */
		return 1;
	case SYS_futex: /* until a point in time */
		return (r->rsi & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
	/* The time left is where the request was, or was not requested; otherwise the caller can continue by itself. */
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
	if (length == sizeof(*r) && (long)r->orig_rax >= 0 && (long)r->rax == -ERESTART_RESTARTBLOCK && is_repeatable(r))
		r->rax = -ERESTARTNOHAND;
}
#else
static void make_repeatable(struct user_regs_struct *r, size_t length)
{
	(void)r;
	(void)length;
}
#endif

static void show_as_sigstop(siginfo_t *info)
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
		return result < 0 ? libc_result(result) : word;
	}
	result = kernel(SYS_ptrace, request, (pid_t)pid, address, data, 0, 0);
	if (request == PTRACE_GETREGSET && address == NT_PRSTATUS && result >= 0)
		make_repeatable(((struct iovec *)data)->iov_base, ((struct iovec *)data)->iov_len);
	else if (request == PTRACE_GETREGS && result >= 0)
		make_repeatable((struct user_regs_struct *)data, sizeof(struct user_regs_struct));
	else if (request == PTRACE_GETSIGINFO && result >= 0)
		show_as_sigstop((siginfo_t *)data);
	return libc_result(result);
}

/* ---- locks ----------------------------------------------------------------------------------- */

/* (CRIU does not use F_GETOWN, whose result may be a negative number.) */
int fcntl(int fd, int command, ...)
{
	va_list arguments;
	long argument;

	va_start(arguments, command);
	argument = va_arg(arguments, long);
	va_end(arguments);
	if (command == F_SETLKW)
		command = F_SETLK;
	return (int)libc_result(kernel(SYS_fcntl, fd, command, argument, 0, 0, 0));
}

int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

int flock(int fd, int operation)
{
	return (int)libc_result(kernel(SYS_flock, fd, operation | LOCK_NB, 0, 0, 0, 0));
}
