/* Makes connected unix sockets in the name of the processes that had made them.

   A process asks with SO_PEERCRED who is at the other end of a unix socket, and decides by the answer what that end may
   do. The kernel writes the answer down when the connection is made: who called connect(), listen() or socketpair().
   CRIU makes every connection itself, as root, so that after a plain restore every client would be root to its server.

   So this program, run by the keeper before CRIU starts, makes the connections. None of the processes exists yet, and
   all their numbers are free: for each of those that had made a connection a process with its number, user and groups is
   created, makes it again, and ends. The sockets stay open here, where CRIU takes them (native/shim.c), until the other
   end of descriptor 4 is closed.

   The plan is read from descriptor 3, a line for each of

     shared                           the network is shared with processes that may have an abstract name: such a name is
				      then left out
     maker PID UID GID GROUP...       PID is 0 where the number does not matter
     listener TYPE MAKER NAME FOLDER  what the pairs that follow are made with
     pairs MAKER (TYPE NUMBER)...     by connect(); the second end is the accepted one
     twins MAKER (TYPE NUMBER)...     by socketpair()
     name NUMBER NAME FOLDER          an end of its own name. They come last: a listener before may have the same one

     peers [USER_NAMESPACE]

   With the path of a user namespace all of that is done in it: root and the other users are those of the box.

   NAME is the address, in hexadecimal, or "-"; FOLDER the one that a relative path starts from. The first end becomes
   descriptor PEERS_FD + NUMBER, the second PEERS_FD + (NUMBER ^ 1). "ok\n", or a line with the reason, goes to
   descriptor 4. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reason.h"
#include "waypoint.h"

#define PLAN_FD 3
#define ANSWER_FD 4
#define MAX_GROUPS 65536 /* NGROUPS_MAX */

struct maker {
	pid_t pid;
	uid_t uid;
	gid_t gid;
	size_t group_count;
	gid_t *groups;
};
static struct maker *makers;
static int maker_count;

struct name {
	struct sockaddr_un address;
	socklen_t length; /* 0: none */
	char folder[PATH_MAX];
};

/* The listener that pairs are made with. */
static int listener = -1, listener_type, shared;
static struct name listener_name;

/* ---- reading the plan ------------------------------------------------------------------------ */

static char *next_word(char **line)
{
	return strsep(line, " ");
}

static int read_number(char **line, long lowest, long highest, long *number)
{
	char *word = next_word(line), *end;

	if (!word || !*word)
		return fail_because("the plan lacks a number");
	*number = strtol(word, &end, 10);
	if (*end || *number < lowest || *number > highest)
		return fail_because("not a number of the plan: %.40s", word);
	return 0;
}

static int digit_of(char letter)
{
	return letter >= '0' && letter <= '9' ? letter - '0' :
	       letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 :
						-1;
}

static int read_bytes(char **line, char *bytes, size_t room, size_t *length)
{
	char *word = next_word(line);

	*length = 0;
	if (!word)
		return fail_because("the plan lacks a name");
	if (!strcmp(word, "-"))
		return 0;
	for (; word[0] && word[1]; word += 2) {
		int high = digit_of(word[0]), low = digit_of(word[1]);

		if (*length == room || high < 0 || low < 0)
			return fail_because("not a name of the plan");
		bytes[(*length)++] = (char)(high << 4 | low);
	}
	return *word ? fail_because("not a name of the plan") : 0;
}

static int read_name(char **line, struct name *name)
{
	size_t length;

	memset(name, 0, sizeof(*name));
	name->address.sun_family = AF_UNIX;
	if (read_bytes(line, name->address.sun_path, sizeof(name->address.sun_path), &length))
		return -1;
	name->length = length ? offsetof(struct sockaddr_un, sun_path) + length : 0;
	return read_bytes(line, name->folder, sizeof(name->folder) - 1, &length);
}

static int read_maker(char **line, const struct maker **maker)
{
	long number;

	if (read_number(line, 0, maker_count - 1, &number))
		return -1;
	*maker = &makers[number];
	return 0;
}

static int add_maker(char **line)
{
	struct maker *grown = reallocarray(makers, maker_count + 1, sizeof(*makers)), *maker;
	long pid, uid, gid;

	if (!grown)
		return fail_because("%s", strerror(errno));
	makers = grown;
	maker = &makers[maker_count];
	memset(maker, 0, sizeof(*maker));
	if (read_number(line, 0, INT32_MAX, &pid) || read_number(line, 0, UINT32_MAX - 1, &uid) ||
	    read_number(line, 0, UINT32_MAX - 1, &gid))
		return -1;
	maker->pid = (pid_t)pid;
	maker->uid = (uid_t)uid;
	maker->gid = (gid_t)gid;
	maker->groups = calloc(*line ? strlen(*line) + 1 : 1, sizeof(gid_t)); /* more than there can be */
	if (!maker->groups)
		return fail_because("%s", strerror(errno));
	maker_count++;
	while (*line) {
		long group;

		if (maker->group_count == MAX_GROUPS || read_number(line, 0, UINT32_MAX - 1, &group))
			return -1;
		maker->groups[maker->group_count++] = (gid_t)group;
	}
	return 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The files of the names exist for a moment only, in a file system of their own that no process sees. */
static int enter_empty_root(void)
{
	int context = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC), root = -1;

	if (context >= 0 && !syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		root = (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, 0);
	if (root < 0 || fchdir(root) || chroot("."))
		return fail_because("no place for names: %s", strerror(errno));
	close(context);
	umask(0);
	return 0;
}

/* Creates the folders of a path and goes to the last one. */
static int enter_folder(const char *path)
{
	char copy[PATH_MAX], *rest = copy, *part;

	if (chdir("/") || strlen(path) >= sizeof(copy))
		return -1;
	strcpy(copy, path);
	while ((part = strsep(&rest, "/")))
		if (*part && ((mkdir(part, 0777) && errno != EEXIST) || chdir(part)))
			return -1;
	return 0;
}

/* Binds a socket to a name it had. Where it cannot have one, the kernel finds one for a listener, which needs it. */
static int bind_name(int fd, const struct name *name, int listens)
{
	const struct sockaddr *address = (const struct sockaddr *)&name->address;
	const char *path = name->address.sun_path;
	char folder[PATH_MAX];

	if (name->length && path[0]) {
		const char *end = memrchr(path, '/', strnlen(path, sizeof(name->address.sun_path)));
		int length = end ? (int)(end - path) : 0;

		if (snprintf(folder, sizeof(folder), "%s/%.*s", path[0] == '/' ? "" : name->folder, length, path) >=
			    (int)sizeof(folder) ||
		    enter_folder(folder))
			return -1;
		if (path[0] != '/' && enter_folder(name->folder))
			return -1;
		unlink(path);
	}
	if (name->length && !bind(fd, address, name->length))
		return 0;
	if (name->length && !(shared && !path[0] && errno == EADDRINUSE))
		return -1;
	return listens ? bind(fd, address, sizeof(sa_family_t)) : 0;
}

/* ---- making sockets -------------------------------------------------------------------------- */

static int become(const struct maker *maker)
{
	return setgroups(maker->group_count, maker->groups) || setresgid(maker->gid, maker->gid, maker->gid) ||
	       setresuid(maker->uid, maker->uid, maker->uid);
}

/* Starts a process that is its maker, with the descriptors of this one. 0 in it, its pid here, or -1. */
static pid_t start(const struct maker *maker)
{
	pid_t pid = maker->pid;
	struct clone_args wanted = { .flags = CLONE_FILES, .exit_signal = SIGCHLD };

	/* A maker outside of the tree has no number in it: the kernel chooses one. */
	if (pid) {
		wanted.set_tid = (uintptr_t)&pid;
		wanted.set_tid_size = 1;
	}
	pid_t child = (pid_t)syscall(SYS_clone3, &wanted, sizeof(wanted));

	if (child)
		return child;
	if (become(maker))
		_exit(errno);
	return 0;
}

static int wait_for(pid_t child, const struct maker *maker)
{
	int status = 0;

	if (child < 0)
		return fail_because("no process %d: %s", maker->pid, strerror(errno));
	if (waitpid(child, &status, 0) != child || status)
		return fail_because("process %d of user %u makes no connection: %s", maker->pid, maker->uid,
				    WIFEXITED(status) ? strerror(WEXITSTATUS(status)) : "it was killed");
	return 0;
}

static int start_listener(char **line)
{
	const struct maker *maker;
	pid_t child;
	long type;

	close(listener);
	if (read_number(line, 1, 15, &type) || read_maker(line, &maker) || read_name(line, &listener_name))
		return -1;
	listener_type = (int)type;
	listener = socket(AF_UNIX, listener_type | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind_name(listener, &listener_name, 1))
		return fail_because("no socket: %s", strerror(errno));
	if (listener_name.address.sun_path[0])
		chmod(listener_name.address.sun_path, 0777);
	child = start(maker);
	if (!child)
		_exit(listen(listener, 1) ? errno : 0);
	return wait_for(child, maker);
}

/* Only this program connects to the listener; but on the host's network another one may try. */
static int accept_from(pid_t pid)
{
	for (;;) {
		struct ucred peer = { 0 };
		socklen_t length = sizeof(peer);
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0 || (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.pid == pid))
			return fd;
		close(fd);
	}
}

/* Gives both ends their descriptors. 0, or an error. */
static int place(int first, int second, long number)
{
	if (dup3(first, PEERS_FD + (int)number, O_CLOEXEC) < 0 ||
	    dup3(second, PEERS_FD + ((int)number ^ 1), O_CLOEXEC) < 0 || close(first) || close(second))
		return errno;
	return 0;
}

static int connect_and_accept(int type, long number)
{
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0), accepted;
	struct sockaddr_un address = { 0 };
	socklen_t length = sizeof(address);

	if (fd < 0 || getsockname(listener, (struct sockaddr *)&address, &length) ||
	    enter_folder(listener_name.folder) || connect(fd, (struct sockaddr *)&address, length))
		return errno;
	accepted = accept_from((pid_t)syscall(SYS_getpid));
	return accepted < 0 ? errno : place(fd, accepted, number);
}

static int make_pair_of(int type, long number)
{
	int ends[2];

	return socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) ? errno : place(ends[0], ends[1], number);
}

/* What a maker does for the rest of a line. 0, or an error. */
static int make_all(char *line, int connecting)
{
	while (line) {
		long type, number;
		int error;

		if (read_number(&line, 1, 15, &type) || read_number(&line, 0, MAX_PEERS, &number))
			return EINVAL;
		error = connecting ? connect_and_accept((int)type, number) : make_pair_of((int)type, number);
		if (error)
			return error;
	}
	return 0;
}

static int make_connections(char **line, int connecting)
{
	const struct maker *maker;
	pid_t child;

	if (read_maker(line, &maker))
		return -1;
	child = start(maker);
	if (!child)
		_exit(make_all(*line, connecting));
	return wait_for(child, maker);
}

static int give_name(char **line)
{
	struct name name;
	long number;

	close(listener);
	listener = -1;
	if (read_number(line, 0, MAX_PEERS, &number) || read_name(line, &name))
		return -1;
	return bind_name(PEERS_FD + (int)number, &name, 0) ? fail_because("no name: %s", strerror(errno)) : 0;
}

static int carry_out(char *plan)
{
	char *line;

	while ((line = strsep(&plan, "\n"))) {
		char *kind = next_word(&line);
		int failed;

		if (!kind || !*kind)
			continue;
		if (!strcmp(kind, "shared"))
			failed = !(shared = 1);
		else if (!strcmp(kind, "maker"))
			failed = add_maker(&line);
		else if (!strcmp(kind, "listener"))
			failed = start_listener(&line);
		else if (!strcmp(kind, "pairs") || !strcmp(kind, "twins"))
			failed = make_connections(&line, !strcmp(kind, "pairs"));
		else if (!strcmp(kind, "name"))
			failed = give_name(&line);
		else
			failed = fail_because("the plan has a line of kind %.20s", kind);
		if (failed)
			return -1;
	}
	close(listener);
	return 0;
}

/* Becomes root of a user namespace. Its tasks may take the sockets then. */
static int enter_user_namespace(int namespace)
{
	if (namespace < 0 || setns(namespace, CLONE_NEWUSER) || setgroups(0, NULL) || setresgid(0, 0, 0) ||
	    setresuid(0, 0, 0) || prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
		return fail_because("no user namespace: %s", strerror(errno));
	close(namespace);
	return 0;
}

int main(int argc, char **argv)
{
	int namespace = argc > 1 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
	struct rlimit limit;
	struct stat info;
	char *plan, byte;
	int failed;

	/* All sockets of the session are open here at once. */
	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (fstat(PLAN_FD, &info) || !(plan = calloc(info.st_size + 1, 1)) ||
	    pread(PLAN_FD, plan, info.st_size, 0) != info.st_size)
		failed = fail_because("no plan: %s", strerror(errno));
	else
		failed = enter_empty_root() || (argc > 1 && enter_user_namespace(namespace)) || carry_out(plan);
	if (dprintf(ANSWER_FD, "%s\n", failed ? reason : "ok") < 0 || failed)
		return 1;
	while (read(ANSWER_FD, &byte, 1) > 0 || errno == EINTR)
		;
	return 0;
}
