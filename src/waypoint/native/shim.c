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

   Leaders that are no ancestors. A process that a subreaper has adopted may be in a session whose leader is beside it, or
   has ended. CRIU is shown another tree, in which it finds its way (engine/sessions.py). When it forks such a process from
   the leader (WAYPOINT_BIRTHS), the process gets the leader's parent for its own. A leader that has ended is made once more
   and forks the first member of its session; as long as they are made, CRIU takes the session and its group for those of
   the parent (WAYPOINT_DEAD_SESSIONS).

   The group of the tree. Its first process is created in a control group of its own (WAYPOINT_GROUP), which the others
   inherit and CRIU is not in: the daemon freezes it while CRIU works (kernel/cgroups.py).

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

   Inheritable capabilities. A task may have some that are no longer in its bounding set. CRIU takes them from the bounding
   set first, and the kernel then lets a task only keep those that it had. All tasks of a restore begin with all of them.

   Exit codes. CRIU gives a process that has ended, and that its parent has not waited for, an exit code of seven bits; it
   may have eight (a command that a signal has ended: 128 and more). The codes are in WAYPOINT_EXITS.
   It belongs to root then, as CRIU does; a parent learns its user from waitid(2). The users and groups are in
   WAYPOINT_ENDED.

   Removed folders. CRIU makes a folder that was removed, and removes it again at the end, in the order of its images: it
   may come before the files that were removed from it, and is not empty then. It goes after them.

   Flags of pidfds and inotify. CRIU makes them with all the flags that they have, and the kernel takes only two of them
   there. The others are set afterwards, as the program did.

   Semaphores. CRIU knows the count of an eventfd, and not whether it is a semaphore (EFD_SEMAPHORE). It is shown a count
   with the highest of 32 bits set, and creates it with that count.

   Locks. CRIU waits for a file lock that it does not get at once. On a file that is shared with the outside (a bind
   mount) the holder may be the very session that is being forked, and CRIU would wait without end.

   Owners of mapped files. CRIU opens a file that is mapped once more, to map it, with all that the descriptor of a process
   has; also with the process or group that is told of events (F_SETOWN). These may not exist yet, and that file is closed
   again.

   Dirty memory. With soft-dirty bits CRIU saves only pages that were written since an earlier dump. Many kernels have no
   such bits, but can report what was written since it was write-protected through a userfaultfd in asynchronous mode
   (engine/memory.py has registered the large memory of processes with one). With WAYPOINT_TRACK set the one is shown to
   CRIU as the other: "written" where it asks for "soft-dirty", and when it clears the bits of a task, all pages that were
   written are protected again. Memory that is not registered counts as written.

   Memory that comes later. CRIU connects to a page server by a path; here it gets a socket that it has inherited
   (WAYPOINT_PAGES), and the path leads nowhere. The userfaultfds that CRIU creates for the server can also report what was
   written (native/pages.c).

   Peers of unix sockets. A process asks with SO_PEERCRED who made the other end of a connection. CRIU does not save that,
   and makes all connections itself. When a tree is saved the shim writes down what the kernel knows of each unix socket
   (WAYPOINT_PEERS). Before a tree is restored all connections were made by native/peers.c (WAYPOINT_HOLDER), and the
   shim returns those where CRIU wants a pair; what listens does so in the name of its user (WAYPOINT_LISTENERS). Which
   one is meant is in the saved type of the socket, which CRIU passes on.

   A box in a user namespace (WAYPOINT_USERNS: the host's id of its root). CRIU runs as root of the host, the tree does
   not. CRIU would make a user namespace for it, which could not enter the box's other namespaces. So the first process of
   the tree enters the box's user namespace (that of pid 1) right after it was created, and makes there what else CRIU
   wants to be new; the namespace has its map of ids already. There no process may mount: the proc file system that CRIU
   then asks for was mounted before. The file of a program in a memfd is made by root of the host, and given to that of
   the box.

   Everything here is raw system calls and a buffer on the stack. CRIU calls syscall() in places where neither malloc nor
   stdio may be used. And the shim is compiled with the libc of this machine and loaded with another one, so it uses
   nothing of either but errno, environ and fflush(). */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* libc's headers would define what is defined here */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/user.h>
#include <sys/vfs.h>
#include <sys/wait.h>
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

/* ---- births ---------------------------------------------------------------------------------- */

#define MAX_BIRTHS 128 /* MAX_BIRTHS in engine/sessions.py */

static struct birth { /* dead: its session's leader has ended */
	int pid, session, dead;
} births[MAX_BIRTHS];
static struct dead_session {
	int session, shown_session, shown_group;
} dead_sessions[MAX_BIRTHS];
static int birth_count, dead_count;
static int group[2]; /* the process that begins the tree, and the folder of its control group */

static const struct birth *birth_of(int pid)
{
	for (int i = 0; i < birth_count; i++)
		if (births[i].pid == pid)
			return &births[i];
	return NULL;
}

static const struct dead_session *dead_session_of(int session)
{
	for (int i = 0; i < dead_count; i++)
		if (dead_sessions[i].session == session)
			return &dead_sessions[i];
	return NULL;
}

/* The leader comes to life once more, forks the process for its own parent and ends. As clone3(2): returns twice. */
static long fork_in_session(pid_t session, const struct clone_args *wanted)
{
	struct clone_args leader = { .flags = wanted->flags & (CLONE_FILES | CLONE_FS), .exit_signal = SIGCHLD,
				     .set_tid = (uintptr_t)&session, .set_tid_size = 1 };
	struct clone_args child = *wanted;
	uint64_t blocked = 1ULL << (SIGCHLD - 1), before = 0;
	int status = 0;
	long result;

	child.flags |= CLONE_PARENT;
	child.exit_signal = 0; /* the leader's own */
	kernel(SYS_rt_sigprocmask, SIG_BLOCK, (long)&blocked, (long)&before, sizeof(before), 0, 0);
	result = kernel(SYS_clone3, (long)&leader, sizeof(leader), 0, 0, 0, 0);
	if (!result) {
		result = kernel(SYS_setsid, 0, 0, 0, 0, 0, 0);
		if (result > 0)
			result = kernel(SYS_clone3, (long)&child, sizeof(child), 0, 0, 0, 0);
		while (result)
			kernel(SYS_exit_group, result < 0 ? -result : 0, 0, 0, 0, 0, 0);
	} else if (result > 0) {
		long pid = result;

		do
			result = kernel(SYS_wait4, pid, (long)&status, 0, 0, 0, 0);
		while (result == -EINTR);
		if (result == pid)
			result = status ? -(status >> 8 & 0xff ? status >> 8 & 0xff : EINTR) : *(pid_t *)wanted->set_tid;
	}
	kernel(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof(before), 0, 0);
	return result;
}

/* ---- user namespaces ------------------------------------------------------------------------- */

#define NAMESPACES (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET)
#define NEW_FILE_SYSTEM 6 /* FSCONFIG_CMD_CREATE */
#define CANNOT_ENTER 99   /* an exit code */

static int first_id; /* the host's id of root of the box's user namespace; 0 when the box is in none */
static long map_fd = -1;                      /* a map of ids, opened to be written */
static long proc_context = -1, proc_mount = -1; /* as fsopen(2) and fsmount(2) have returned them */

static long create(const struct clone_args *wanted, size_t size);

/* As clone3(2), of the first process of the tree: returns twice. */
static long clone_into_userns(const struct clone_args *wanted, size_t size)
{
	long namespace = kernel(SYS_openat, AT_FDCWD, (long)"/proc/1/ns/user", O_RDONLY | O_CLOEXEC, 0, 0, 0), result;
	struct clone_args args = { 0 };

	for (size_t i = 0; i < size && i < sizeof(args); i++)
		((char *)&args)[i] = ((const char *)wanted)[i];
	args.flags &= ~(uint64_t)(CLONE_NEWUSER | NAMESPACES);
	proc_context = kernel(SYS_fsopen, (long)"proc", 1 /* FSOPEN_CLOEXEC */, 0, 0, 0, 0);
	result = namespace < 0 ? namespace : proc_context;
	if (result >= 0)
		result = kernel(SYS_fsconfig, proc_context, NEW_FILE_SYSTEM, 0, 0, 0, 0);
	if (result >= 0)
		result = proc_mount = kernel(SYS_fsmount, proc_context, 1 /* FSMOUNT_CLOEXEC */, 0, 0, 0, 0);
	if (result >= 0)
		result = create(&args, size);
	if (!result) {
		/* The IPC namespace has to belong to it in any case, or the next dump could not enter it. */
		long failed = kernel(SYS_setns, namespace, CLONE_NEWUSER, 0, 0, 0, 0);

		if (!failed)
			failed = kernel(SYS_unshare, (long)(wanted->flags & NAMESPACES) | CLONE_NEWIPC, 0, 0, 0, 0, 0);
		while (failed)
			kernel(SYS_exit_group, CANNOT_ENTER, 0, 0, 0, 0, 0);
	}
	if (namespace >= 0)
		kernel(SYS_close, namespace, 0, 0, 0, 0, 0);
	return result;
}

static long set_flags(long fd, long flags)
{
	if (fd >= 0)
		kernel(SYS_fcntl, fd, F_SETFL, flags, 0, 0, 0);
	return fd;
}

static long open_pidfd(long pid, long flags)
{
	return set_flags(kernel(SYS_pidfd_open, pid, flags & (O_NONBLOCK | O_EXCL /* PIDFD_THREAD */), 0, 0, 0, 0), flags);
}

int inotify_init1(int flags)
{
	return (int)libc_result(set_flags(kernel(SYS_inotify_init1, flags & (O_NONBLOCK | O_CLOEXEC), 0, 0, 0, 0, 0), flags));
}

/* CRIU's structure may be one without the last field. */
static long clone_into_group(const struct clone_args *wanted, size_t size)
{
	struct clone_args args = { 0 };

	for (size_t i = 0; i < size && i < sizeof(args); i++)
		((char *)&args)[i] = ((const char *)wanted)[i];
	args.flags |= CLONE_INTO_CGROUP;
	args.cgroup = group[1];
	return kernel(SYS_clone3, (long)&args, sizeof(args), 0, 0, 0, 0);
}

/* clone3(2), into the group of the tree if it is the first process of it. */
static long create(const struct clone_args *wanted, size_t size)
{
	if (group[0] && wanted->set_tid_size == 1 && *(pid_t *)wanted->set_tid == group[0])
		return clone_into_group(wanted, size);
	return kernel(SYS_clone3, (long)wanted, (long)size, 0, 0, 0, 0);
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

	if (number == SYS_clone3 && first_id && ((const struct clone_args *)a)->flags & CLONE_NEWUSER)
		return libc_result(clone_into_userns((const struct clone_args *)a, (size_t)b));
	if (proc_mount >= 0 && number == SYS_fsopen && equals((const char *)a, 4, "proc"))
		return libc_result(kernel(SYS_fcntl, proc_context, F_DUPFD_CLOEXEC, 3, 0, 0, 0));
	if (proc_mount >= 0 && number == SYS_fsconfig)
		return 0;
	if (proc_mount >= 0 && number == SYS_fsmount)
		return libc_result(kernel(SYS_fcntl, proc_mount, F_DUPFD_CLOEXEC, 3, 0, 0, 0));
	if (number == SYS_clone3 && group[0]) {
		const struct clone_args *wanted = (const struct clone_args *)a;

		if (wanted->set_tid_size == 1 && *(pid_t *)wanted->set_tid == group[0])
			return libc_result(clone_into_group(wanted, (size_t)b));
	}
	if (number == SYS_clone3 && birth_count) {
		struct clone_args *wanted = (struct clone_args *)a;
		const struct birth *birth = wanted->set_tid_size == 1 ? birth_of(*(pid_t *)wanted->set_tid) : NULL;

		if (birth && birth->dead)
			return libc_result(fork_in_session(birth->session, wanted));
		if (birth) {
			wanted->flags |= CLONE_PARENT;
			wanted->exit_signal = 0;
		}
	}
	if (number == SYS_pidfd_open)
		return libc_result(open_pidfd(a, b));
	result = kernel(number, a, b, c, d, e, f);
	if (number == SYS_prlimit64 && result == -EPERM && !c && d &&
	    read_limit((int)a, (int)b, (struct limit *)d))
		result = 0;
	return libc_result(result);
}

/* ---- terminals ------------------------------------------------------------------------------- */

static int keeper = 1; /* of the box that CRIU runs in */
static int pty_holder = 1; /* the keeper, or who has its terminals */
static struct pty { /* master and slave: the keeper's descriptors of them */
	int index, master, slave;
} ptys[MAX_PTYS];
static struct leader {
	int pid, index;
} leaders[MAX_PTYS];
static int pty_count, leader_count;
static int peers_fd = -1, holder; /* see "peers" */
static char listeners[LISTENERS_BYTES]; /* a copy: CRIU writes the name of its task over the environment */
static long criu;
static int tracking; /* see "dirty memory" */
static int pages_fd = -1; /* see "memory that comes later" */

/* Reads "1:2:3" up to the end or a comma; returns how many numbers. */
static int read_numbers(const char **text, int *numbers, int most)
{
	const char *at = *text;
	int count = 0;

	while (count < most && *at >= '0' && *at <= '9') {
		unsigned int number = 0; /* a user's number needs all bits */

		while (*at >= '0' && *at <= '9')
			number = number * 10 + (unsigned int)(*at++ - '0');
		numbers[count++] = (int)number;
		if (*at == ':')
			at++;
	}
	*text = at;
	return count;
}

/* Reads "1:2:3,4:5:6" into at most `room` records of `width` numbers each; returns how many. */
static int read_records(const char *text, int *numbers, int room, int width)
{
	int count = 0;

	while (count < room && read_numbers(&text, numbers + count * width, width) == width) {
		count++;
		if (*text == ',')
			text++;
	}
	return count;
}

static int read_number(const char *text, int otherwise)
{
	int number;

	return read_numbers(&text, &number, 1) ? number : otherwise;
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
	const char *text;

	pty_count = read_records(value_of("WAYPOINT_PTYS"), &ptys[0].index, MAX_PTYS, 3);
	leader_count = read_records(value_of("WAYPOINT_LEADERS"), &leaders[0].pid, MAX_PTYS, 2);
	criu = kernel(SYS_getpid, 0, 0, 0, 0, 0, 0);
	text = value_of("WAYPOINT_LISTENERS");
	for (size_t i = 0; text[i] && i < sizeof(listeners) - 1; i++)
		listeners[i] = text[i];
	birth_count = read_records(value_of("WAYPOINT_BIRTHS"), &births[0].pid, MAX_BIRTHS, 3);
	dead_count = read_records(value_of("WAYPOINT_DEAD_SESSIONS"), &dead_sessions[0].session, MAX_BIRTHS, 3);
	read_records(value_of("WAYPOINT_GROUP"), group, 1, 2);
	holder = read_number(value_of("WAYPOINT_HOLDER"), 0);
	peers_fd = read_number(value_of("WAYPOINT_PEERS"), -1);
	pages_fd = read_number(value_of("WAYPOINT_PAGES"), -1);
	tracking = *value_of("WAYPOINT_TRACK") != 0;
	first_id = read_number(value_of("WAYPOINT_USERNS"), 0);
	keeper = read_number(value_of("WAYPOINT_KEEPER"), 1);
	pty_holder = read_number(value_of("WAYPOINT_PTY_HOLDER"), keeper);
}

static const struct pty *pty_of(int index)
{
	for (int i = 0; i < pty_count; i++)
		if (ptys[i].index == index)
			return &ptys[i];
	return NULL;
}

/* A copy of a descriptor of another process, closed on exec; or minus errno. */
static long copy_from(int pid, int fd)
{
	long process = kernel(SYS_pidfd_open, pid, 0, 0, 0, 0, 0), result;

	if (process < 0)
		return process;
	result = kernel(SYS_pidfd_getfd, process, fd, 0, 0, 0, 0);
	kernel(SYS_close, process, 0, 0, 0, 0, 0);
	return result;
}

static long anchor; /* set where the anchor passes for the leader of the keeper's session */

/* The root of a tree that is being restored is CRIU's own child. */
static int is_root(void)
{
	return kernel(SYS_getppid, 0, 0, 0, 0, 0, 0) == criu;
}

/* Makes all capabilities inheritable that this task has. */
static void widen_inheritable(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (kernel(SYS_capget, (long)&header, (long)data, 0, 0, 0, 0))
		return;
	for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		data[i].inheritable |= data[i].permitted;
	kernel(SYS_capset, (long)&header, (long)data, 0, 0, 0, 0);
}

/* Before it has children. (Its process group must exist before a helper of CRIU's wants to join it.) */
static void prepare_root(void)
{
	widen_inheritable();
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
		slave = copy_from(pty_holder, pty->slave);
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

static void note_opened(int folder, const char *path, int flags, long fd);

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
		result = kernel(SYS_fchown, to, first_id, first_id, 0, 0, 0);
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
		note_opened(folder, path, flags, fd);
		return (int)libc_result(fd);
	}
	fd = copy_from(pty_holder, pty->master);
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

static int ends_in(const char *path, const char *name)
{
	const char *end = path;

	for (; *path; path++)
		if (*path == '/')
			end = path + 1;
	return equals(end, path - end, name);
}

static void note_opened(int folder, const char *path, int flags, long fd)
{
	int length = 0;

	if (first_id && fd >= 0 && (flags & O_ACCMODE) != O_RDONLY && (ends_in(path, "uid_map") || ends_in(path, "gid_map")))
		map_fd = fd;
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

	if (fd == map_fd && map_fd >= 0) { /* the namespace that CRIU believes to be new has its map */
		map_fd = -1;
		return (ssize_t)length;
	}
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

static void mark_semaphore(char *text, long length);

ssize_t read(int fd, void *data, size_t length)
{
	long result = kernel(SYS_read, fd, (long)data, length, 0, 0, 0);

	mark_semaphore(data, result);
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
	if (pages_fd >= 0 && request == UFFDIO_API && ((struct uffdio_api *)argument)->features)
		((struct uffdio_api *)argument)->features |= UFFD_FEATURE_PAGEFAULT_FLAG_WP | WP_ASYNC;
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
	if (!pid && dead_count && dead_session_of((int)session))
		return dead_session_of((int)session)->shown_session;
	return (pid_t)libc_result(anchor && session == keeper ? anchor : session);
}

static int has_groups; /* all process groups that this task can name exist */

/* CRIU asks this to see whether a process has to join a group. */
pid_t getpgrp(void)
{
	long group = kernel(SYS_getpgid, 0, 0, 0, 0, 0, 0);
	const struct dead_session *dead = dead_count ? dead_session_of((int)group) : NULL;

	has_groups = 1;
	return (pid_t)(dead ? dead->shown_group : group);
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

/* ---- removed folders ------------------------------------------------------------------------- */

#define MAX_FOLDERS 64

static char folders[MAX_FOLDERS][PATH_MAX];
static int folder_count;

int rmdir(const char *path)
{
	long result = kernel(SYS_rmdir, (long)path, 0, 0, 0, 0, 0);
	size_t length = 0;

	while (path[length])
		length++;
	if (result == -ENOTEMPTY && folder_count < MAX_FOLDERS && length < PATH_MAX) {
		for (size_t i = 0; i <= length; i++)
			folders[folder_count][i] = path[i];
		folder_count++;
		result = 0;
	}
	return (int)libc_result(result);
}

int unlink(const char *path)
{
	long result = kernel(SYS_unlink, (long)path, 0, 0, 0, 0, 0);

	for (int i = folder_count - 1; !result && i >= 0; i--)
		if (folders[i][0] && !kernel(SYS_rmdir, (long)folders[i], 0, 0, 0, 0, 0))
			folders[i][0] = 0;
	return (int)libc_result(result);
}

/* ---- processes that have ended --------------------------------------------------------------- */

#define IDS 8

/* Finds what is told of this process in a list of "PID:NUMBER:NUMBER...,". */
static int find_own(const char *at, long *numbers, int count)
{
	long pid = kernel(SYS_getpid, 0, 0, 0, 0, 0, 0);

	while (*at >= '0' && *at <= '9') {
		long found[1 + IDS] = { 0 };

		for (int i = 0; i <= count; i++) {
			while (*at >= '0' && *at <= '9')
				found[i] = found[i] * 10 + *at++ - '0';
			if (*at)
				at++;
		}
		if (found[0] == pid) {
			for (int i = 0; i < count; i++)
				numbers[i] = found[i + 1];
			return 1;
		}
	}
	return 0;
}

static void take_ids(void)
{
	long ids[IDS]; /* users: real, effective, saved, of file systems; groups */

	if (find_own(value_of("WAYPOINT_ENDED"), ids, IDS)) {
		/* Without the capabilities the user of file systems could not be set. */
		kernel(SYS_prctl, PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0, 0);
		kernel(SYS_setresgid, ids[4], ids[5], ids[6], 0, 0, 0);
		kernel(SYS_setfsgid, ids[7], 0, 0, 0, 0, 0);
		kernel(SYS_setresuid, ids[0], ids[1], ids[2], 0, 0, 0);
		kernel(SYS_setfsuid, ids[3], 0, 0, 0, 0, 0);
	}
}

int kill(pid_t pid, int number)
{
	if (pid == kernel(SYS_getpid, 0, 0, 0, 0, 0, 0)) /* one that a signal had ended */
		take_ids();
	return (int)libc_result(kernel(SYS_kill, pid, number, 0, 0, 0, 0));
}

void exit(int code)
{
	long own;

	if (find_own(value_of("WAYPOINT_EXITS"), &own, 1)) /* "17:130,18:255" */
		code = (int)own;
	take_ids();
	fflush(NULL);
	for (;;)
		kernel(SYS_exit_group, code, 0, 0, 0, 0, 0);
}

/* ---- semaphores ------------------------------------------------------------------------------ */

#define SEMAPHORE_BIT 0x80000000u
#define COUNT_DIGITS 16

/* The place behind `word` in a text of that length, or NULL. */
static char *find_behind(char *text, long length, const char *word)
{
	for (char *at = text; at < text + length; at++) {
		char *end = at;

		for (const char *wanted = word; end < text + length && *wanted && *end == *wanted; wanted++)
			end++;
		if ((size_t)(end - at) == __builtin_strlen(word))
			return end;
	}
	return NULL;
}

/* A descriptor's entry in /proc/PID/fdinfo, when CRIU reads one. (engine/unrestorable.py refuses larger counts.) */
static void mark_semaphore(char *text, long length)
{
	char *count;

	if (length < 8 || !equals(text, 5, "pos:\t") || !find_behind(text, length, "eventfd-semaphore: 1"))
		return;
	count = find_behind(text, length, "eventfd-count: ");
	if (!count || text + length - count < COUNT_DIGITS)
		return;
	for (int i = COUNT_DIGITS / 2; i < COUNT_DIGITS; i++)
		if (count[i] == ' ')
			count[i] = '0';
	count[COUNT_DIGITS / 2] = "89abcdef"[(count[COUNT_DIGITS / 2] - '0') & 7];
}

int eventfd(unsigned int count, int flags)
{
	if (count & SEMAPHORE_BIT) {
		count &= ~SEMAPHORE_BIT;
		flags |= EFD_SEMAPHORE;
	}
	return (int)libc_result(kernel(SYS_eventfd2, count, flags, 0, 0, 0, 0));
}

/* ---- locks ----------------------------------------------------------------------------------- */

/* (CRIU does not use F_GETOWN, whose result may be a negative number.) */
int fcntl(int fd, int command, ...)
{
	va_list arguments;
	long argument, result;

	va_start(arguments, command);
	argument = va_arg(arguments, long);
	va_end(arguments);
	if (command == F_SETLKW)
		command = F_SETLK;
	result = kernel(SYS_fcntl, fd, command, argument, 0, 0, 0);
	if (command == F_SETOWN_EX && result == -ESRCH && !has_groups)
		result = 0;
	return (int)libc_result(result);
}

int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

int flock(int fd, int operation)
{
	return (int)libc_result(kernel(SYS_flock, fd, operation | LOCK_NB, 0, 0, 0, 0));
}

/* ---- peers ----------------------------------------------------------------------------------- */

#define NO_USER 65534 /* by convention this user owns no files */
#define MAX_GROUPS 1024

/* What engine/peers.py reads for each unix socket that has a peer, with `count` groups behind it. */
static struct peer {
	uint32_t inode;
	struct ucred credentials;
	uint32_t count, groups[MAX_GROUPS];
} peer;

static void note_peer(int fd)
{
	socklen_t length = sizeof(peer.credentials), groups_length = sizeof(peer.groups), domain_length = sizeof(int);
	struct stat info;
	int domain = 0;

	if (kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, (long)&domain, (long)&domain_length, 0) ||
	    domain != AF_UNIX || kernel(SYS_fstat, fd, (long)&info, 0, 0, 0, 0) ||
	    kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, (long)&peer.credentials, (long)&length, 0))
		return;
	if (kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERGROUPS, (long)peer.groups, (long)&groups_length, 0))
		groups_length = 0;
	peer.inode = (uint32_t)info.st_ino;
	peer.count = groups_length / sizeof(peer.groups[0]);
	kernel(SYS_write, peers_fd, (long)&peer, (long)(offsetof(struct peer, groups) + groups_length), 0, 0, 0);
}

/* When CRIU saves a socket it reads this option of unix and netlink sockets only, and once of each. */
int getsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
	if (peers_fd >= 0 && level == SOL_SOCKET && option == SO_PASSCRED)
		note_peer(fd);
	return (int)libc_result(kernel(SYS_getsockopt, fd, level, option, (long)value, (long)length, 0));
}

/* Lets this task act as a user for the kernel, and as root again. (CRIU sets the groups of each task at its end.) */
static long act_as(int uid, int gid, const int *groups, int count)
{
	long result = kernel(SYS_setgroups, count, (long)groups, 0, 0, 0, 0);

	if (!result)
		result = kernel(SYS_setresgid, -1, gid, -1, 0, 0, 0);
	return result ? result : kernel(SYS_setresuid, -1, uid, -1, 0, 0, 0);
}

static long act_as_root(void)
{
	long result = kernel(SYS_setresuid, -1, 0, -1, 0, 0, 0);

	return result ? result : kernel(SYS_setresgid, -1, 0, -1, 0, 0, 0);
}

int socketpair(int domain, int type, int protocol, int fds[2])
{
	int number = (type & ~PEER_MARK) >> PEER_SHIFT;
	long result, second;

	if (domain == AF_UNIX && type & PEER_MARK) {
		result = copy_from(holder, PEERS_FD + number);
		second = result < 0 ? result : copy_from(holder, PEERS_FD + (number ^ 1));
		fds[0] = (int)result;
		fds[1] = (int)second;
		return (int)libc_result(second < 0 ? second : 0);
	}
	/* Where CRIU needs a pair to restore a socket that had no peer. It must not seem to have root for one. */
	if (domain == AF_UNIX && type == SOCK_DGRAM && peers_fd < 0) {
		result = act_as(NO_USER, NO_USER, NULL, 0);
		second = result ? result : kernel(SYS_socketpair, domain, type, protocol, (long)fds, 0, 0);
		result = act_as_root();
		return (int)libc_result(second ? second : result);
	}
	return (int)libc_result(kernel(SYS_socketpair, domain, type, protocol, (long)fds, 0, 0));
}

/* ---- memory that comes later ----------------------------------------------------------------- */

#define PAGE_SERVER "lazy-pages.socket"

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
	const char *path = ((const struct sockaddr_un *)address)->sun_path;

	if (pages_fd >= 0 && address->sa_family == AF_UNIX && equals(path, sizeof(PAGE_SERVER) - 1, PAGE_SERVER))
		return libc_result(kernel(SYS_dup3, pages_fd, fd, O_CLOEXEC, 0, 0, 0)) < 0 ? -1 : 0;
	return (int)libc_result(kernel(SYS_connect, fd, (long)address, length, 0, 0, 0));
}

/* ---- listeners ------------------------------------------------------------------------------- */

static int listening_fd = -1; /* CRIU binds it, and calls listen() next */
static struct listener { /* who had called listen() */
	int uid, gid, pid, groups[MAX_GROUPS];
} listening;
static int group_count;

/* Finds a record by its number: UID:GID:PID:GROUP... */
static int read_listener(unsigned int number)
{
	const char *text = listeners;
	int count;

	for (; *text && number; text++)
		number -= *text == ',';
	count = number ? 0 : read_numbers(&text, &listening.uid, 3 + MAX_GROUPS);
	group_count = count - 3;
	return group_count >= 0;
}

int socket(int domain, int type, int protocol)
{
	unsigned int number = (unsigned int)(type & ~(PEER_MARK | PEER_LISTENER)) >> PEER_SHIFT;
	int is_listener = domain == AF_UNIX && type & PEER_MARK && type & PEER_LISTENER;
	long fd;

	if (is_listener && !read_listener(number))
		return (int)libc_result(-EINVAL);
	fd = kernel(SYS_socket, domain, is_listener ? type & PEER_TYPE : type, protocol, 0, 0, 0);
	if (is_listener)
		listening_fd = (int)fd;
	return (int)libc_result(fd);
}

static long listen_as_user(int fd, int backlog)
{
	long result = act_as(listening.uid, listening.gid, listening.groups, group_count), failed;

	if (!result)
		result = kernel(SYS_listen, fd, backlog, 0, 0, 0, 0);
	failed = act_as_root();
	return result ? result : failed;
}

/* The process that called listen() may have ended (a daemon calls it, then leaves its parent behind). */
int listen(int fd, int backlog)
{
	pid_t pid = listening.pid;
	struct clone_args wanted = { .flags = CLONE_FILES, .set_tid = (uintptr_t)&pid, .set_tid_size = 1 };
	long child = -EEXIST, result;
	int status = 0;

	if (fd < 0 || fd != listening_fd)
		return (int)libc_result(kernel(SYS_listen, fd, backlog, 0, 0, 0, 0));
	listening_fd = -1;
	if (pid && pid != kernel(SYS_getpid, 0, 0, 0, 0, 0, 0))
		child = kernel(SYS_clone3, (long)&wanted, sizeof(wanted), 0, 0, 0, 0);
	if (!child) {
		result = listen_as_user(fd, backlog);
		for (;;)
			kernel(SYS_exit_group, result ? 1 : 0, 0, 0, 0, 0, 0);
	}
	if (child < 0) /* its number is in use: engine/peers.py says so in the coverage */
		return (int)libc_result(listen_as_user(fd, backlog));
	do
		result = kernel(SYS_wait4, child, (long)&status, __WALL, 0, 0, 0);
	while (result == -EINTR);
	return (int)libc_result(result < 0 ? result : status ? -EACCES : 0);
}
