/* The plan of a box, and carrying it out.

   A plan is words ending in NUL: an operation and its fixed number of arguments (see `operations`). Operations whose
   name starts with "in-" resolve their path inside the box's root, so that a symbolic link planted in there cannot
   lead out. box/box.py writes plans. A part of keeper.c, which is the only program that includes it. */

#ifndef PLAN_H
#define PLAN_H

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

/* What the operations leave behind for the keeper. */
static int report_fd, root_fd = -1;
static int master = -1, slave = -1, last_pid_fd = -1;
static unsigned long long capabilities = ~0ULL;
static struct sock_fprog confinement;

static void fail(const char *operation, const char *path)
{
	dprintf(report_fd, "failed %d %s %s\n", errno, operation, path ? path : "-");
	_exit(1);
}

static int open_in_root(const char *path, int flags)
{
	struct open_how how = { .flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };

	return syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
}

/* The folder that holds `path`, opened; `name` is set to the last part. */
static int open_parent_in_root(const char *path, const char **name)
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
	return open_in_root(*folder ? folder : "/", O_PATH | O_DIRECTORY);
}

static const char *proc_path(int fd)
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
	/* With MS_REC the mounts below come along, and need the flags as well. */
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
	int fd = open_in_root(a[1], O_PATH), mounted, result;

	if (fd < 0)
		return -1;
	result = mount_at(a, proc_path(fd));
	close(fd);
	if (result)
		return -1;
	mounted = open_in_root(a[1], O_PATH); /* now the mount's own root */
	if (mounted < 0)
		return -1;
	result = remount_bind(proc_path(mounted), strtoul(a[3], NULL, 0));
	close(mounted);
	return result;
}

/* A folder or file of the host, shown in the box. Its path was free of links when the session was created; a box
   that has access to a folder above it may have planted one since. */
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
		there = open_in_root(path, O_PATH | O_DIRECTORY);
		if (there >= 0) {
			close(there);
			continue;
		}
		folder = open_parent_in_root(path, &name);
		if (folder < 0)
			return -1;
		/* (EEXIST: a dangling link, planted there. It must not be followed.) */
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
	int folder, fd = open_in_root(a[0], O_PATH), result = -1;

	if (fd >= 0) {
		close(fd);
		return 0;
	}
	folder = open_parent_in_root(a[0], &name);
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

static int op_in_symlink(char **a)
{
	const char *name;
	int folder = open_parent_in_root(a[1], &name), result;

	if (folder < 0)
		return -1;
	result = symlinkat(a[0], folder, name);
	close(folder);
	return result && errno != EEXIST ? -1 : 0;
}

static int op_in_node(char **a)
{
	const char *name;
	int folder = open_parent_in_root(a[0], &name), result;

	if (folder < 0)
		return -1;
	result = mknodat(folder, name, strtoul(a[1], NULL, 8), makedev(atoi(a[2]), atoi(a[3])));
	if (!result)
		result = fchmodat(folder, name, strtoul(a[1], NULL, 8) & 07777, 0);
	close(folder);
	return result;
}

/* Mounts an empty read-only folder over one that is open. */
static int cover_folder(int fd)
{
	return mount("none", proc_path(fd), "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0,mode=755");
}

/* Hides a path behind an empty read-only folder or file. A path that does not exist needs no mask. */
static int op_in_mask(char **a)
{
	struct stat info;
	int fd = open_in_root(a[0], O_PATH), result;

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	result = fstat(fd, &info);
	if (!result && S_ISDIR(info.st_mode))
		result = cover_folder(fd);
	else if (!result)
		result = mount("/dev/null", proc_path(fd), NULL, MS_BIND, NULL);
	close(fd);
	return result;
}

/* Takes a mount away, with all that is mounted below it. */
static int op_in_unmount(char **a)
{
	int fd = open_in_root(a[0], O_PATH | O_NOFOLLOW), result;

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	result = umount2(proc_path(fd), MNT_DETACH);
	close(fd);
	return result && errno != EINVAL ? -1 : 0; /* EINVAL: it went with its parent */
}

static int op_in_readonly(char **a)
{
	int fd = open_in_root(a[0], O_PATH), result;

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	result = mount(proc_path(fd), proc_path(fd), NULL, MS_BIND | MS_REC, NULL);
	close(fd);
	if (result)
		return -1;
	fd = open_in_root(a[0], O_PATH);
	if (fd < 0)
		return -1;
	result = mount(NULL, proc_path(fd), NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
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

/* A kernel setting below /proc/sys. A kernel that does not have it needs no change. */
static int op_setting(char **a)
{
	int fd = open(a[0], O_WRONLY | O_CLOEXEC);
	ssize_t written;

	if (fd < 0)
		return errno == ENOENT ? 0 : -1;
	written = write(fd, a[1], strlen(a[1]));
	close(fd);
	return written < 0 ? -1 : 0;
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

#define MAX_ARGUMENTS 5

static const struct operation {
	const char *name;
	int arguments;
	int path; /* which argument to name in an error */
	int (*run)(char **arguments);
} operations[] = {
	{ "mount", 5, 1, op_mount },           { "in-mount", 5, 1, op_in_mount },
	{ "in-bind", 3, 0, op_in_bind },
	{ "in-folder", 2, 0, op_in_folder },   { "in-file", 1, 0, op_in_file },
	{ "in-symlink", 2, 1, op_in_symlink },
	{ "in-node", 4, 0, op_in_node },       { "in-mask", 1, 0, op_in_mask },
	{ "in-readonly", 1, 0, op_in_readonly }, { "in-unmount", 1, 0, op_in_unmount },
	{ "unshare", 1, 0, op_unshare },
	{ "fork", 0, -1, op_fork },
	{ "root", 1, 0, op_root },             { "pivot", 0, -1, op_pivot },
	{ "hostname", 1, 0, op_hostname },     { "capabilities", 1, 0, op_capabilities },
	{ "seccomp", 1, -1, op_seccomp },      { "pids", 0, -1, op_pids },
	{ "terminal", 2, -1, op_terminal },    { "loopback", 0, -1, op_loopback },
	{ "setting", 2, 0, op_setting },
};

/* Reads one operation and its arguments from a plan, which has a NUL at `end`. Returns where the next one starts;
   NULL, with errno set, when there is none to be read. `*operation` is NULL when its name is unknown. */
static char *read_operation(char *word, char *end, const struct operation **operation, char **arguments)
{
	*operation = NULL;
	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
		if (!strcmp(operations[i].name, word))
			*operation = &operations[i];
	if (!*operation) {
		errno = ENOSYS;
		return NULL;
	}
	word += strlen(word) + 1;
	for (int i = 0; i < (*operation)->arguments; i++) {
		if (word >= end) {
			errno = EINVAL;
			return NULL;
		}
		arguments[i] = word;
		word += strlen(word) + 1;
	}
	return word;
}

static void carry_out(char *plan, size_t length)
{
	for (char *word = plan, *next; word < plan + length; word = next) {
		const struct operation *operation;
		char *arguments[MAX_ARGUMENTS];

		next = read_operation(word, plan + length, &operation, arguments);
		if (!next)
			fail(operation ? operation->name : word, NULL);
		if (operation->run(arguments))
			fail(operation->name, operation->path >= 0 ? arguments[operation->path] : NULL);
	}
}

#endif
