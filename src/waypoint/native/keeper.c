/* The keeper: pid 1 of a box.

   It builds the box by carrying out a plan that the daemon wrote (which mounts, in which order, is
   Python's business; doing it is this program's), becomes session leader and owner of the terminal,
   and then stays, whatever happens to the daemon: it reaps, keeps both ends of the terminal open, drains
   it while nobody serves it, starts the anchor, hands requests to it, and runs programs beside the
   tree but inside the box (CRIU). It is not part of any image. It is C and static because
   it lives in a box whose files belong to somebody untrusted, and because sixty-four of them may
   start at once.

     keeper PLAN_FD LISTEN_FD REPORT_FD

   PLAN: words ending in NUL, an operation and its fixed number of arguments (see `operations`).
   Operations whose name starts with "in-" resolve their path inside the box's root, so that a symbolic
   link planted in there cannot lead out. REPORT: "pid N", then "ready" or "failed ERRNO OPERATION PATH".

   LISTEN: a SOCK_SEQPACKET socket on which the daemon connects and sends requests, words ending in
   NUL, one packet each; every request is answered by one packet, "ok ..." or "error ERRNO WHAT". On the
   connection that said "serve" two kinds of packets come unasked: "exited PID STATUS" (a child of
   the anchor) and "ran PID STATUS" (a program beside the tree). */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define PROTOCOL "1"
#define ANCHOR "/dev/waypoint/bin/anchor"
#define ANCHOR_SOCKET "/dev/waypoint.sock"
#define PACKET_BYTES (1 << 18)
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif
#define RING_BYTES (1 << 18)
#define MOST_CLIENTS 8
#define MOST_FDS 250 /* the kernel takes 253 at once */
#define MOST_PTYS 128
#define MOST_OUTPUTS 128
#define ANSWER_SECONDS 20

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

static int report_fd, listen_fd, root_fd = -1;
static int master = -1, slave = -1, anchor_socket = -1, last_pid_fd = -1;
static int status_pipe[2] = { -1, -1 };
static pid_t anchor;
static unsigned long long capabilities = ~0ULL;
static struct sock_fprog confinement;
static struct { int index, master, slave; } ptys[MOST_PTYS];
static int pty_count;

/* ---- building the box ------------------------------------------------------------------------ */

static void fail(const char *operation, const char *path)
{
	dprintf(report_fd, "failed %d %s %s\n", errno, operation, path ? path : "-");
	_exit(1);
}

static int in_root(const char *path, int flags)
{
	struct open_how how = { .flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };

	return syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
}

/* The folder that holds `path`, opened; `name` is set to the last part. */
static int parent_in_root(const char *path, const char **name)
{
	char folder[4096];
	const char *slash = strrchr(path, '/');

	if (!slash || (size_t)(slash - path) >= sizeof(folder)) {
		errno = EINVAL;
		return -1;
	}
	memcpy(folder, path, slash - path);
	folder[slash - path] = 0;
	*name = slash + 1;
	return in_root(*folder ? folder : "/", O_PATH | O_DIRECTORY);
}

static const char *through(int fd)
{
	static char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return path;
}

static const char *or_null(const char *word)
{
	return *word ? word : NULL;
}

static int mount_at(char **a, const char *target)
{
	unsigned long flags = strtoul(a[3], NULL, 0);

	if (mount(or_null(a[0]), target, or_null(a[2]), flags & ~(flags & MS_BIND ? MS_RDONLY : 0), or_null(a[4])))
		return -1;
	return 0;
}

/* A bind mount ignores every flag but MS_REC: the rest needs a second call, on the mount itself. */
static int remount_bind(const char *target, unsigned long flags)
{
	/* struct mount_attr, which not every libc has; these four flags have the same values there */
	struct { uint64_t set, clear, propagation, userns; } attributes = {
		flags & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC), 0, 0, 0 };

	if (!(flags & MS_BIND) || !attributes.set)
		return 0;
	/* What is mounted below comes along with MS_REC, and has to be told as well. */
	if (flags & MS_REC)
		return syscall(SYS_mount_setattr, AT_FDCWD, target, AT_RECURSIVE, &attributes, sizeof(attributes));
	return mount(NULL, target, NULL,
		     MS_REMOUNT | MS_BIND | (flags & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)), NULL);
}

static int op_mount(char **a)
{
	return mount_at(a, a[1]) || remount_bind(a[1], strtoul(a[3], NULL, 0));
}

static int op_in_mount(char **a)
{
	int fd = in_root(a[1], O_PATH), on, result;

	if (fd < 0)
		return -1;
	result = mount_at(a, through(fd));
	close(fd);
	if (result)
		return -1;
	on = in_root(a[1], O_PATH); /* now the mount's own root */
	if (on < 0)
		return -1;
	result = remount_bind(through(on), strtoul(a[3], NULL, 0));
	close(on);
	return result;
}

/* A folder or file of the host's, shown in the box. Its path was free of links when the session was made; a box
   that was shown a folder above it may have planted one since. */
static int op_in_bind(char **a)
{
	struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };
	int fd = syscall(SYS_openat2, AT_FDCWD, a[0], &how, sizeof(how)), result;
	char source[32];
	char *words[] = { source, a[1], "", a[2], "" };

	if (fd < 0)
		return -1;
	snprintf(source, sizeof(source), "/proc/self/fd/%d", fd);
	result = op_in_mount(words);
	close(fd);
	return result;
}

static int op_in_folder(char **a)
{
	char path[4096];
	size_t length = strlen(a[0]);

	if (length >= sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	for (size_t at = 1; at <= length; at++) {
		const char *name;
		int folder, there;

		if (a[0][at] != '/' && a[0][at])
			continue;
		memcpy(path, a[0], at);
		path[at] = 0;
		there = in_root(path, O_PATH | O_DIRECTORY);
		if (there >= 0) {
			close(there);
			continue;
		}
		folder = parent_in_root(path, &name);
		if (folder < 0)
			return -1;
		/* (EEXIST: a link that leads nowhere, planted there. Nothing that follows it may be done.) */
		if (mkdirat(folder, name, strtoul(a[1], NULL, 8))) {
			close(folder);
			return -1;
		}
		close(folder);
	}
	return 0;
}

static int op_in_file(char **a)
{
	const char *name;
	int folder, fd = in_root(a[0], O_PATH), result = -1;

	if (fd >= 0) {
		close(fd);
		return 0;
	}
	folder = parent_in_root(a[0], &name);
	if (folder < 0)
		return -1;
	fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd >= 0) {
		close(fd);
		result = 0;
	}
	close(folder);
	return result;
}

static int op_in_write(char **a)
{
	const char *name;
	int folder = parent_in_root(a[0], &name), fd, result = -1;

	if (folder < 0)
		return -1;
	fd = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd >= 0) {
		result = write(fd, a[1], strlen(a[1])) < 0 ? -1 : 0;
		close(fd);
	}
	close(folder);
	return result;
}

static int op_in_symlink(char **a)
{
	const char *name;
	int folder = parent_in_root(a[1], &name), result;

	if (folder < 0)
		return -1;
	result = symlinkat(a[0], folder, name);
	close(folder);
	return result && errno != EEXIST ? -1 : 0;
}

static int op_in_node(char **a)
{
	const char *name;
	int folder = parent_in_root(a[0], &name), result;

	if (folder < 0)
		return -1;
	result = mknodat(folder, name, strtoul(a[1], NULL, 8), makedev(atoi(a[2]), atoi(a[3])));
	if (!result)
		result = fchmodat(folder, name, strtoul(a[1], NULL, 8) & 07777, 0);
	close(folder);
	return result;
}

/* What may not be seen: an empty read-only folder or file in its place. What is not there needs no mask. */
static int op_in_mask(char **a)
{
	struct stat about;
	int fd = in_root(a[0], O_PATH), result;

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	if (fstat(fd, &about)) {
		close(fd);
		return -1;
	}
	if (S_ISDIR(about.st_mode))
		result = mount("none", through(fd), "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0,mode=755");
	else
		result = mount("/dev/null", through(fd), NULL, MS_BIND, NULL);
	close(fd);
	return result;
}

static int op_in_readonly(char **a)
{
	int fd = in_root(a[0], O_PATH), result;

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	result = mount(through(fd), through(fd), NULL, MS_BIND | MS_REC, NULL);
	close(fd);
	if (result)
		return -1;
	fd = in_root(a[0], O_PATH);
	if (fd < 0)
		return -1;
	result = mount(NULL, through(fd), NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	close(fd);
	return result;
}

static int op_unshare(char **a)
{
	return unshare(strtoul(a[0], NULL, 0));
}

static int op_fork(char **a)
{
	pid_t pid = fork();

	(void)a;
	if (pid < 0)
		return -1;
	if (pid) {
		dprintf(report_fd, "pid %d\n", pid);
		_exit(0);
	}
	return 0;
}

static int op_root(char **a)
{
	root_fd = open(a[0], O_PATH | O_DIRECTORY | O_CLOEXEC);
	return root_fd < 0 ? -1 : 0;
}

static int op_pivot(char **a)
{
	(void)a;
	if (fchdir(root_fd) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		return -1;
	close(root_fd);
	root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return root_fd < 0 ? -1 : 0;
}

static int op_loopback(char **a)
{
	struct ifreq interface = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), result;

	(void)a;
	if (fd < 0)
		return -1;
	result = ioctl(fd, SIOCSIFFLAGS, &interface);
	close(fd);
	return result;
}

static int op_hostname(char **a)
{
	return sethostname(a[0], strlen(a[0]));
}

static int op_capabilities(char **a)
{
	capabilities = strtoull(a[0], NULL, 16);
	return 0;
}

/* A seccomp filter, struct sock_filter after struct sock_filter, in hexadecimal. */
static int op_seccomp(char **a)
{
	size_t length = strlen(a[0]) / 2;
	unsigned char *bytes = malloc(length);

	if (!bytes || length % sizeof(struct sock_filter)) {
		errno = EINVAL;
		return -1;
	}
	for (size_t i = 0; i < length; i++)
		if (sscanf(a[0] + 2 * i, "%2hhx", bytes + i) != 1) {
			errno = EINVAL;
			return -1;
		}
	confinement.len = length / sizeof(struct sock_filter);
	confinement.filter = (struct sock_filter *)bytes;
	return 0;
}

static int op_pids(char **a)
{
	(void)a;
	last_pid_fd = open("/proc/sys/kernel/ns_last_pid", O_RDWR | O_CLOEXEC);
	return last_pid_fd < 0 ? -1 : 0;
}

static int op_terminal(char **a)
{
	struct winsize size = { .ws_row = atoi(a[0]), .ws_col = atoi(a[1]) };
	int unlock = 0;

	master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock))
		return -1;
	if (setsid() < 0 && errno != EPERM)
		return -1;
	slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0 || ioctl(slave, TIOCSCTTY, 0) || ioctl(master, TIOCSWINSZ, &size))
		return -1;
	return 0;
}

static const struct operation {
	const char *name;
	int arguments;
	int path; /* which argument to name in an error */
	int (*run)(char **arguments);
} operations[] = {
	{ "mount", 5, 1, op_mount },           { "in-mount", 5, 1, op_in_mount },
	{ "in-bind", 3, 0, op_in_bind },
	{ "in-folder", 2, 0, op_in_folder },   { "in-file", 1, 0, op_in_file },
	{ "in-write", 2, 0, op_in_write },     { "in-symlink", 2, 1, op_in_symlink },
	{ "in-node", 4, 0, op_in_node },       { "in-mask", 1, 0, op_in_mask },
	{ "in-readonly", 1, 0, op_in_readonly }, { "unshare", 1, 0, op_unshare },
	{ "fork", 0, -1, op_fork },
	{ "root", 1, 0, op_root },             { "pivot", 0, -1, op_pivot },
	{ "hostname", 1, 0, op_hostname },     { "capabilities", 1, 0, op_capabilities },
	{ "seccomp", 1, -1, op_seccomp },      { "pids", 0, -1, op_pids },
	{ "terminal", 2, -1, op_terminal },    { "loopback", 0, -1, op_loopback },
};

static void carry_out(char *plan, size_t length)
{
	char *word = plan, *end = plan + length;

	while (word < end) {
		const struct operation *found = NULL;
		char *arguments[8];

		for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
			if (!strcmp(operations[i].name, word))
				found = &operations[i];
		if (!found) {
			errno = ENOSYS;
			fail(word, NULL);
		}
		word += strlen(word) + 1;
		for (int i = 0; i < found->arguments; i++) {
			if (word >= end) {
				errno = EINVAL;
				fail(found->name, NULL);
			}
			arguments[i] = word;
			word += strlen(word) + 1;
		}
		if (found->run(arguments))
			fail(found->name, found->path >= 0 ? arguments[found->path] : NULL);
	}
}

/* ---- what runs in the box -------------------------------------------------------------------- */

static void default_signals(int how)
{
	sigset_t all;

	for (int signo = 1; signo < NSIG; signo++)
		signal(signo, SIG_DFL);
	sigfillset(&all);
	sigprocmask(how, &all, NULL);
}

/* Puts `fds` at 3, 4, ... and closes everything above; the descriptors 0-2 are set by the caller. */
static int lay_out(const int *fds, int count)
{
	int high[MOST_FDS];

	for (int i = 0; i < count; i++)
		if ((high[i] = fcntl(fds[i], F_DUPFD, 3 + count)) < 0)
			return -1;
	for (int i = 0; i < count; i++)
		if (dup2(high[i], 3 + i) < 0)
			return -1;
	return close_range(3 + count, ~0U, 0);
}

static int confine(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { 0 };

	for (int cap = 0; cap < 64; cap++)
		if (!(capabilities >> cap & 1) && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1)
			if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0))
				return -1;
	/* Before the capabilities go: loading a filter without no_new_privs needs CAP_SYS_ADMIN. */
	if (confinement.len && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &confinement, 0, 0))
		return -1;
	if (syscall(SYS_capget, &header, data))
		return -1;
	data[0].effective = data[0].permitted &= (uint32_t)capabilities;
	data[1].effective = data[1].permitted &= (uint32_t)(capabilities >> 32);
	data[0].inheritable = data[1].inheritable = 0;
	return syscall(SYS_capset, &header, data) ? -1 : 0;
}

static pid_t start_anchor(void)
{
	sigset_t all, before;
	pid_t pid;

	/* A request is a signal: one that comes before the anchor is ready must wait, not kill it. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	pid = fork();
	if (pid == 0) {
		int nothing = open("/dev/null", O_RDWR);

		setpgid(0, 0);
		if (nothing < 0 || unshare(CLONE_NEWIPC))
			_exit(125);
		default_signals(SIG_BLOCK);
		for (int fd = 0; fd < 3; fd++)
			dup2(nothing, fd);
		if (lay_out(&status_pipe[1], 1) || confine())
			_exit(125);
		execl(ANCHOR, "waypoint-anchor", NULL);
		_exit(125);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return pid;
}

static int join_anchor(const char *kind, int flag)
{
	char path[64];
	int space, failed;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", anchor, kind);
	space = open(path, O_RDONLY | O_CLOEXEC);
	failed = space < 0 || setns(space, flag);
	close(space);
	return failed;
}

/* A program beside the tree: CRIU and its helpers. `ipc`: "keep" the keeper's namespace, "join" the
   anchor's, or a "new" one. Its standard input is the terminal, which is how CRIU finds it. A tree that
   was restored once has clocks of its own: beside it CRIU need not send somebody in to read them. */
static pid_t run_beside(const char *ipc, char **argv, char **env, const int *fds, int count)
{
	pid_t pid = fork();

	if (pid == 0) {
		int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

		default_signals(SIG_UNBLOCK);
		setpgid(0, 0);
		if (!strcmp(ipc, "new") && unshare(CLONE_NEWIPC))
			_exit(125);
		if (!strcmp(ipc, "join") && join_anchor("ipc", CLONE_NEWIPC))
			_exit(125);
		if (anchor > 0)
			join_anchor("time", CLONE_NEWTIME);
		dup2(slave, 0);
		dup2(nothing, 1);
		dup2(nothing, 2);
		if (lay_out(fds, count))
			_exit(125);
		execve(argv[0], argv, env);
		_exit(127);
	}
	return pid;
}

/* ---- serving --------------------------------------------------------------------------------- */

static int clients[MOST_CLIENTS], serving = -1;
static char ring[RING_BYTES];
static size_t ring_length;
static unsigned long long ring_dropped;
static struct { pid_t pid; int status; } unheard[64];
static int unheard_count;
static int outputs[MOST_OUTPUTS], output_count;

static void answer(int client, const int *fds, int count, const char *format, ...)
{
	char text[MOST_PTYS * 24];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct iovec data = { text, 0 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };
	va_list more;

	va_start(more, format);
	data.iov_len = vsnprintf(text, sizeof(text), format, more);
	va_end(more);
	if (count) {
		struct cmsghdr *header = &control.header;

		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(header), fds, count * sizeof(int));
	}
	sendmsg(client, &message, MSG_NOSIGNAL);
}

static void say_exited(pid_t pid, int status)
{
	if (serving >= 0) {
		answer(serving, NULL, 0, "exited %d %d", pid, status);
	} else if (unheard_count < (int)(sizeof(unheard) / sizeof(*unheard))) {
		unheard[unheard_count].pid = pid;
		unheard[unheard_count++].status = status;
	}
}

static void keep_output(void)
{
	char block[4096];
	ssize_t length = read(master, block, sizeof(block));

	if (length <= 0)
		return;
	if (ring_length + length > sizeof(ring)) {
		size_t gone = ring_length + length - sizeof(ring);

		memmove(ring, ring + gone, ring_length - gone);
		ring_length -= gone;
		ring_dropped += gone;
	}
	memcpy(ring + ring_length, block, length);
	ring_length += length;
}

/* The reading ends of the pipes of programs. A second copy is kept here so that a program does not die of
   SIGPIPE when the daemon does; while there is none, what comes out of them is thrown away. */
static void keep_outputs(const struct pollfd *wait, int count)
{
	char block[65536];
	int kept = 0;

	for (int i = 0; i < count; i++) {
		int ended = wait[i].revents & (POLLHUP | POLLERR | POLLNVAL) && !(wait[i].revents & POLLIN);

		if (wait[i].revents & POLLIN && read(outputs[i], block, sizeof(block)) == 0)
			ended = 1;
		if (ended)
			close(outputs[i]);
		else
			outputs[kept++] = outputs[i];
	}
	for (int i = count; i < output_count; i++)
		outputs[kept++] = outputs[i];
	output_count = kept;
}

static void serve_output(int client)
{
	serving = client;
	answer(client, NULL, 0, "ok %zu %llu", ring_length, ring_dropped);
	for (size_t at = 0; at < ring_length; at += 32768) {
		size_t length = ring_length - at < 32768 ? ring_length - at : 32768;

		send(client, ring + at, length, MSG_NOSIGNAL);
	}
	ring_length = ring_dropped = 0;
	for (int i = 0; i < unheard_count; i++)
		answer(client, NULL, 0, "exited %d %d", unheard[i].pid, unheard[i].status);
	unheard_count = 0;
}

/* Hands a request for a shell or a program to the anchor and returns its answer. */
static int32_t ask_anchor(const char *packet, size_t length, const int *stdio)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(3 * sizeof(int))];
	} control = { .header = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
				  .cmsg_len = CMSG_LEN(3 * sizeof(int)) } };
	struct iovec data = { (void *)packet, length };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control.room) };
	struct pollfd wait = { .fd = anchor_socket, .events = POLLIN };
	struct timeval limit = { .tv_sec = ANSWER_SECONDS };
	struct ucred who;
	socklen_t who_length = sizeof(who);
	int32_t pid = -EPROTO;
	int room = PACKET_BYTES * 2, connection;

	memcpy(CMSG_DATA(&control.header), stdio, 3 * sizeof(int));
	if (kill(anchor, SIGUSR1))
		return -errno;
	for (;;) {
		if (poll(&wait, 1, ANSWER_SECONDS * 1000) <= 0)
			return -ETIMEDOUT;
		connection = accept4(anchor_socket, NULL, NULL, SOCK_CLOEXEC);
		if (connection < 0)
			return -errno;
		/* Anybody in the box can connect here; only the anchor is served. */
		if (!getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &who_length) && who.pid == anchor)
			break;
		close(connection);
	}
	setsockopt(connection, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (sendmsg(connection, &message, MSG_NOSIGNAL) < 0 || recv(connection, &pid, sizeof(pid), 0) != sizeof(pid))
		pid = -errno;
	close(connection);
	return pid;
}

static void drop_ptys(void)
{
	for (int i = 0; i < pty_count; i++) {
		close(ptys[i].slave);
		close(ptys[i].master);
	}
	pty_count = 0;
}

/* Terminals that live wholly inside the tree (tmux's panes) have to exist before CRIU forks it: see
   shim.c. The indices asked for are created and held here until the tree is restored; the slaves too,
   because a session loses its terminal when the last descriptor of the slave is closed. */
static int hold_ptys(char **words, int count)
{
	int spare[MOST_PTYS], spares = 0, most = 0, error = 0;

	for (int i = 0; i < count; i++)
		if (atoi(words[i]) > most)
			most = atoi(words[i]);
	if (most >= MOST_PTYS)
		return -E2BIG;
	for (;;) {
		int fd = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), index, unlock = 0, wanted = 0;

		if (fd < 0 || ioctl(fd, TIOCGPTN, &index) || ioctl(fd, TIOCSPTLCK, &unlock)) {
			error = -errno;
			break;
		}
		for (int i = 0; i < count; i++)
			wanted |= atoi(words[i]) == index;
		if (wanted) {
			int peer = ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);

			if (peer < 0) {
				error = -errno;
				close(fd);
				break;
			}
			ptys[pty_count].index = index;
			ptys[pty_count].master = fd;
			ptys[pty_count++].slave = peer;
		} else {
			spare[spares++] = fd;
		}
		if (index >= most)
			break;
	}
	while (spares)
		close(spare[--spares]);
	if (error)
		drop_ptys();
	return error;
}

static void act(int client, char *packet, size_t length, int *fds, int count)
{
	static char *words[PACKET_BYTES / 8];
	int n = 0;

	for (char *word = packet; word < packet + length && n < PACKET_BYTES / 8 - 2; word += strlen(word) + 1)
		words[n++] = word;
	words[n] = NULL;
	if (!n)
		return;
	if (!strcmp(words[0], "hello")) {
		struct stat pipe_about;
		int ends[2] = { master, slave };

		fstat(status_pipe[1], &pipe_about);
		answer(client, ends, 2, "ok %s %d %lu", PROTOCOL, anchor, (unsigned long)pipe_about.st_ino);
	} else if (!strcmp(words[0], "serve")) {
		serve_output(client);
	} else if (!strcmp(words[0], "anchor")) {
		anchor = start_anchor();
		answer(client, NULL, 0, anchor < 0 ? "error %d fork" : "ok %d", anchor < 0 ? errno : anchor);
	} else if (!strcmp(words[0], "adopt") && n == 2) {
		anchor = atoi(words[1]); /* restored: CRIU started it */
		answer(client, NULL, 0, "ok");
	} else if (!strcmp(words[0], "start") && count == 3) {
		size_t skip = strlen(words[0]) + 1;
		int32_t pid = ask_anchor(packet + skip, length - skip, fds);

		if (pid < 0)
			answer(client, NULL, 0, "error %d start", -pid);
		else
			answer(client, NULL, 0, "ok %d", pid);
	} else if (!strcmp(words[0], "run") && n >= 4) {
		/* run IPC ENVC ENV... ARGV... */
		int envc = atoi(words[2]);
		char *env[16];
		pid_t pid;

		if (envc < 0 || envc > 15 || n < 4 + envc) {
			answer(client, NULL, 0, "error %d run", EINVAL);
			return;
		}
		memcpy(env, words + 3, envc * sizeof(*env));
		env[envc] = NULL;
		pid = run_beside(words[1], words + 3 + envc, env, fds, count);
		answer(client, NULL, 0, pid < 0 ? "error %d fork" : "ok %d", pid < 0 ? errno : pid);
	} else if (!strcmp(words[0], "keep")) {
		for (int i = 0; i < count && output_count < MOST_OUTPUTS; i++)
			outputs[output_count++] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
		answer(client, NULL, 0, "ok");
	} else if (!strcmp(words[0], "status-pipe")) {
		answer(client, &status_pipe[1], 1, "ok");
	} else if (!strcmp(words[0], "last-pid") && n == 2) {
		if (lseek(last_pid_fd, 0, SEEK_SET) || write(last_pid_fd, words[1], strlen(words[1])) < 0)
			answer(client, NULL, 0, "error %d last-pid", errno);
		else
			answer(client, NULL, 0, "ok");
	} else if (!strcmp(words[0], "last-pid?")) {
		/* Which namespace it tells of depends on who reads it. */
		char text[16] = "";

		if (lseek(last_pid_fd, 0, SEEK_SET) || read(last_pid_fd, text, sizeof(text) - 1) < 0)
			answer(client, NULL, 0, "error %d last-pid", errno);
		else
			answer(client, NULL, 0, "ok %d", atoi(text));
	} else if (!strcmp(words[0], "hostname") && n == 2) {
		if (sethostname(words[1], strlen(words[1])))
			answer(client, NULL, 0, "error %d hostname", errno);
		else
			answer(client, NULL, 0, "ok");
	} else if (!strcmp(words[0], "foreground") && n == 2) {
		if (tcsetpgrp(slave, atoi(words[1])))
			answer(client, NULL, 0, "error %d foreground", errno);
		else
			answer(client, NULL, 0, "ok");
	} else if (!strcmp(words[0], "foreground?")) {
		answer(client, NULL, 0, "ok %d", tcgetpgrp(slave));
	} else if (!strcmp(words[0], "ptys")) {
		int error = hold_ptys(words + 1, n - 1);

		if (error) {
			answer(client, NULL, 0, "error %d ptys", -error);
		} else {
			char text[MOST_PTYS * 20];
			size_t at = 0;

			*text = 0;
			for (int i = 0; i < pty_count; i++)
				at += snprintf(text + at, sizeof(text) - at, " %d:%d:%d", ptys[i].index, ptys[i].master,
					       ptys[i].slave);
			answer(client, NULL, 0, "ok%s", text);
		}
	} else if (!strcmp(words[0], "drop-ptys")) {
		drop_ptys();
		answer(client, NULL, 0, "ok");
	} else {
		answer(client, NULL, 0, "error %d unknown-request", ENOSYS);
	}
}

static int receive(int client)
{
	static char packet[PACKET_BYTES];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(MOST_FDS * sizeof(int))];
	} control;
	struct iovec data = { packet, sizeof(packet) - 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	ssize_t length = recvmsg(client, &message, MSG_CMSG_CLOEXEC);
	int fds[MOST_FDS], count = 0;

	if (length <= 0)
		return -1;
	for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header))
		if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
			count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(header), count * sizeof(int));
		}
	packet[length] = 0;
	act(client, packet, length, fds, count);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	return 0;
}

static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == anchor)
			_exit(0); /* all that is left is no tree any more: what it starts would be in no checkpoint */
		if (serving >= 0)
			answer(serving, NULL, 0, "ran %d %d", pid, status);
	}
}

static int listen_for_anchor(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = ANCHOR_SOCKET };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 16))
		return -1;
	return fd;
}

static void serve(void)
{
	struct pollfd wait[MOST_CLIENTS + 4 + MOST_OUTPUTS];
	struct signalfd_siginfo info;
	int32_t record[2];
	sigset_t child;
	int signals;

	for (int i = 0; i < MOST_CLIENTS; i++)
		clients[i] = -1;
	for (int signo = 1; signo < NSIG; signo++)
		if (signo != SIGCHLD)
			signal(signo, SIG_IGN);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	anchor_socket = listen_for_anchor();
	if (signals < 0 || anchor_socket < 0 || pipe2(status_pipe, O_CLOEXEC | O_NONBLOCK))
		fail("serve", ANCHOR_SOCKET);
	dprintf(report_fd, "ready\n");
	close(report_fd);
	for (;;) {
		int n = 0;

		wait[n++] = (struct pollfd){ .fd = signals, .events = POLLIN };
		wait[n++] = (struct pollfd){ .fd = listen_fd, .events = POLLIN };
		wait[n++] = (struct pollfd){ .fd = status_pipe[0], .events = POLLIN };
		wait[n++] = (struct pollfd){ .fd = serving < 0 ? master : -1, .events = POLLIN };
		for (int i = 0; i < MOST_CLIENTS; i++)
			wait[n++] = (struct pollfd){ .fd = clients[i], .events = POLLIN };
		for (int i = 0; i < output_count; i++)
			wait[n++] = (struct pollfd){ .fd = outputs[i], .events = serving < 0 ? POLLIN : 0 };
		if (poll(wait, n, -1) < 0 && errno != EINTR)
			_exit(1);
		if (wait[0].revents && read(signals, &info, sizeof(info)) > 0)
			reap();
		if (wait[2].revents)
			while (read(status_pipe[0], record, sizeof(record)) == sizeof(record))
				say_exited(record[0], record[1]);
		if (wait[3].revents)
			keep_output();
		keep_outputs(wait + 4 + MOST_CLIENTS, n - 4 - MOST_CLIENTS);
		for (int i = 0; i < MOST_CLIENTS; i++)
			if (clients[i] >= 0 && wait[4 + i].revents && receive(clients[i])) {
				if (serving == clients[i])
					serving = -1;
				close(clients[i]);
				clients[i] = -1;
			}
		if (wait[1].revents) {
			int client = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC), i = 0, room = PACKET_BYTES * 2;

			while (i < MOST_CLIENTS && clients[i] >= 0)
				i++;
			if (client >= 0 && i == MOST_CLIENTS) {
				close(client);
			} else if (client >= 0) {
				setsockopt(client, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
				clients[i] = client;
			}
		}
	}
}

int main(int argc, char **argv)
{
	struct stat about;
	char *plan;

	if (argc != 4)
		return 2;
	listen_fd = atoi(argv[2]);
	report_fd = atoi(argv[3]);
	if (fstat(atoi(argv[1]), &about) || !(plan = malloc(about.st_size + 1)) ||
	    pread(atoi(argv[1]), plan, about.st_size, 0) != about.st_size)
		fail("plan", NULL);
	close(atoi(argv[1]));
	fcntl(listen_fd, F_SETFD, FD_CLOEXEC);
	fcntl(report_fd, F_SETFD, FD_CLOEXEC);
	umask(0);
	carry_out(plan, about.st_size);
	umask(022);
	free(plan);
	prctl(PR_SET_NAME, "waypoint-keeper", 0, 0, 0);
	serve();
}
