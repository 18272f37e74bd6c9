/* The plan of a box, and carrying it out.

   A plan is words ending in NUL: an operation and its fixed number of arguments (see `operations`). Operations whose
   name starts with "in-" resolve their path inside the box's root, so that a symbolic link planted in there cannot
   lead out. box/box.py writes plans. A part of keeper.c, which is the only program that includes it. */

#ifndef PLAN_H
#define PLAN_H

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#endif
#define TREE_CLONE 1             /* OPEN_TREE_CLONE */
#define MOVE_EMPTY_PATH 0x4      /* MOVE_MOUNT_F_EMPTY_PATH */
#define MOVE_TO_EMPTY_PATH 0x40  /* MOVE_MOUNT_T_EMPTY_PATH */
#define ATTR_IDMAP 0x100000      /* MOUNT_ATTR_IDMAP */
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
static int user_namespace = -1, idmap = -1; /* of a box in a user namespace; the latter knows the host's root too */
static unsigned first_id;                   /* the host's id of its root */

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

/* struct mount_attr, which not every libc has */
struct mount_attributes {
	uint64_t set, clear, propagation, userns;
};

/* A bind mount ignores every flag but MS_REC: the rest needs a second call, on the mount itself. */
static int remount_bind(const char *target, unsigned long flags)
{
	/* These four flags have the same values there. */
	struct mount_attributes attributes = { .set = flags & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC) };

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

/* A mount of its own of what is open at `source`, mounted nowhere, with the ids that a box in a user namespace knows its
   files by; with AT_RECURSIVE of all that is mounted below it too. A descriptor, or -1. */
static int idmapped_copy(int source, int recursive)
{
	struct mount_attributes attributes = { .set = ATTR_IDMAP, .userns = idmap };
	int flags = AT_EMPTY_PATH | recursive, error;
	int tree = syscall(SYS_open_tree, source, "", TREE_CLONE | O_CLOEXEC | flags);

	if (tree < 0 || !syscall(SYS_mount_setattr, tree, "", flags, &attributes, sizeof(attributes)))
		return tree;
	error = errno;
	close(tree);
	errno = error;
	return -1;
}

/* Puts such a mount in its place, and closes it. */
static int place_copy(int tree, int target)
{
	int result = syscall(SYS_move_mount, tree, "", target, "", MOVE_EMPTY_PATH | MOVE_TO_EMPTY_PATH);

	close(tree);
	return result;
}

/* idmap SOURCE TARGET: both of the host. */
static int op_idmap(char **a)
{
	int source = open(a[0], O_PATH | O_CLOEXEC), target = open(a[1], O_PATH | O_CLOEXEC);
	int tree = source < 0 || target < 0 ? -1 : idmapped_copy(source, 0);
	int result = tree < 0 ? -1 : place_copy(tree, target);

	close(source);
	close(target);
	return result;
}

static int op_unmount(char **a)
{
	return umount2(a[0], MNT_DETACH);
}

static int op_chdir(char **a)
{
	return chdir(a[0]);
}

/* chroot PATH: the working folder stays where it is. */
static int op_chroot(char **a)
{
	return chroot(a[0]);
}

/* in-idmap PATH: in the place of what is mounted there. */
static int op_in_idmap(char **a)
{
	int fd = open_in_root(a[0], O_PATH), tree, result;

	if (fd < 0)
		return -1;
	tree = idmapped_copy(fd, AT_RECURSIVE);
	result = tree < 0 ? -1 : umount2(proc_path(fd), MNT_DETACH);
	close(fd);
	fd = result ? -1 : open_in_root(a[0], O_PATH);
	result = fd < 0 ? -1 : place_copy(tree, fd);
	close(fd);
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

/* Files are made, and overlays mounted, as this id, with all capabilities as before. */
static int act_on_files_as(unsigned id)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { 0 };

	setfsgid(id);
	setfsuid(id);
	if (syscall(SYS_capget, &header, data))
		return -1;
	data[0].effective = data[0].permitted;
	data[1].effective = data[1].permitted;
	return syscall(SYS_capset, &header, data);
}

static int write_map(pid_t pid, const char *name, const char *map)
{
	char path[64];
	ssize_t written;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	written = write(fd, map, strlen(map));
	close(fd);
	return written < 0 ? -1 : 0;
}

/* A new user namespace with this map of users and groups, in which no process is. A descriptor, or -1. */
static int make_user_namespace(const char *map)
{
	int ends[2], fd = -1, failed;
	char path[64], byte;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0) {
		close(ends[1]);
		_exit(read(ends[0], &byte, 1) != 0);
	}
	failed = pid < 0 || write_map(pid, "uid_map", map) || write_map(pid, "gid_map", map);
	if (!failed) {
		snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	close(ends[0]);
	close(ends[1]);
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return fd;
}

/* This process becomes root of the box's user namespace, and nothing elsewhere. */
static int become_root_of_box(void)
{
	return setns(user_namespace, CLONE_NEWUSER) || setgroups(0, NULL) || setresgid(0, 0, 0) ||
	       setresuid(0, 0, 0);
}

/* Pid 1 of a box in a user namespace. Its children are the keeper, and what has lost its parent outside of the tree.
   It ends when the keeper has ended, and everything in the box with it. */
__attribute__((noreturn)) static void be_first(int keeper_lives)
{
	char byte;

	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	prctl(PR_SET_NAME, "waypoint-first", 0, 0, 0);
	signal(SIGCHLD, SIG_IGN);
	if (setsid() < 0 || chdir("/") || dup2(keeper_lives, 0) < 0 || close_range(1, ~0U, 0))
		_exit(1);
	while (read(0, &byte, 1) < 0 && errno == EINTR)
		;
	_exit(0);
}

/* Starts pid 1 in new namespaces that the box's user namespace owns. Its number outside, or -1. */
static pid_t start_first(unsigned long namespaces, const int *lives)
{
	int numbers[2];
	pid_t pid, first = -1;

	if (pipe2(numbers, O_CLOEXEC))
		return -1;
	pid = fork();
	if (pid == 0) {
		close(lives[1]);
		if (become_root_of_box() || unshare(namespaces))
			_exit(1);
		first = fork();
		if (first == 0)
			be_first(lives[0]);
		_exit(first < 0 || write(numbers[1], &first, sizeof(first)) != sizeof(first));
	}
	close(numbers[1]);
	if (pid < 0 || read(numbers[0], &first, sizeof(first)) != sizeof(first))
		first = -1;
	close(numbers[0]);
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return first;
}

static int report_own_pid(void)
{
	char number[16] = "";

	/* /proc is still the host's. */
	if (readlink("/proc/self", number, sizeof(number) - 1) < 0)
		return -1;
	dprintf(report_fd, "pid %s\n", number);
	return 0;
}

/* userns FIRST COUNT NAMESPACES: as `unshare` and `fork`, for a box whose ids 0 to COUNT - 1 are FIRST and up on the
   host. Its namespaces belong to its user namespace, or what is restored there could not be made. A process that is
   root on the host cannot be pid 1 of such a pid namespace: so that is another one, and the keeper is its child. */
static int op_userns(char **a)
{
	unsigned long count = strtoul(a[1], NULL, 0), namespaces = strtoul(a[2], NULL, 0);
	int lives[2], process, failed;
	char map[96];
	pid_t first, pid;

	first_id = strtoul(a[0], NULL, 0);
	snprintf(map, sizeof(map), "0 %u %lu\n", first_id, count);
	user_namespace = make_user_namespace(map);
	/* The host's root makes files too, before it gives them to a user of the box. */
	snprintf(map, sizeof(map), "0 %u %lu\n%lu 0 1\n", first_id, count, count);
	idmap = make_user_namespace(map);
	if (user_namespace < 0 || idmap < 0 || pipe2(lives, O_CLOEXEC) || unshare(CLONE_NEWNS))
		return -1;
	first = start_first(namespaces & ~(unsigned long)CLONE_NEWNS, lives);
	close(lives[0]);
	if (first < 0)
		return -1;
	process = syscall(SYS_pidfd_open, first, 0);
	failed = process < 0 || setns(process, namespaces & ~(unsigned long)CLONE_NEWNS);
	close(process);
	if (failed)
		return -1;
	pid = fork();
	if (pid < 0)
		return -1;
	if (pid) {
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		_exit(0);
	}
	pid = fork();
	if (pid < 0)
		return -1;
	if (pid)
		_exit(0);
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		return -1;
	return report_own_pid() || act_on_files_as(first_id);
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
	{ "fork", 0, -1, op_fork },            { "userns", 3, -1, op_userns },
	{ "idmap", 2, 0, op_idmap },           { "unmount", 1, 0, op_unmount },
	{ "chdir", 1, 0, op_chdir },           { "chroot", 1, 0, op_chroot },
	{ "in-idmap", 1, 0, op_in_idmap },
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
