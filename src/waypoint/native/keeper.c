/* The keeper: pid 1 of a box.

   It builds the box by carrying out a plan that the daemon wrote: Python decides which mounts are made and in
   which order, this program makes them. It becomes session leader and owner of the terminal. Then it stays,
   also when the daemon ends: it reaps processes, keeps both ends of the terminal open, reads the terminal while
   no daemon serves it, starts the anchor and passes requests to it, and runs programs beside the tree but inside
   the box (CRIU). It is not part of any image. It is C and static because the files of the box it lives in are
   untrusted, and because sixty-four keepers may start at once.

     keeper PLAN_FD LISTEN_FD REPORT_FD

   PLAN: see plan.h. REPORT: "pid N", then "ready" or "failed ERRNO OPERATION PATH".

   LISTEN: a SOCK_SEQPACKET socket on which the daemon connects and sends requests, words ending in NUL, one packet
   each; every request is answered by one packet, "ok ..." or "error ERRNO WHAT". The connection that sent "serve"
   also gets events: "exited PID STATUS", for a child of the anchor.

   A client that does not read must not stop pid 1: nothing sent to a client ever blocks. Events wait in a queue;
   a client whose answer cannot be sent is disconnected. */

#define _GNU_SOURCE
#include <linux/capability.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "plan.h"
#include "waypoint.h"

#define PROTOCOL "1" /* as in box/keeper.py */
#define RING_BYTES (1 << 18)
#define MAX_CLIENTS 8
#define MAX_FDS 250 /* the kernel takes 253 at once */
#define MAX_OUTPUTS 128
#define MAX_EVENTS 256
#define MAX_VARIABLES 15
#define PTY_TEXT_BYTES sizeof(" -2147483648:-2147483648:-2147483648")
#define ANSWER_SECONDS 20
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

static int listen_fd, anchor_socket = -1;
static int group_folder = -1, freeze_file = -1; /* the control group of the tree */
static int status_pipe[2] = { -1, -1 };
static pid_t anchor;
static struct { int index, master, slave; } ptys[MAX_PTYS];
static int pty_count;
static pid_t pty_holder; /* the process that tasks being restored take them from */

/* ---- what runs in the box -------------------------------------------------------------------- */

static void reset_signals(int how)
{
	sigset_t all;

	for (int signo = 1; signo < NSIG; signo++)
		signal(signo, SIG_DFL);
	sigfillset(&all);
	sigprocmask(how, &all, NULL);
}

/* Puts `fds` at 3, 4, ... and closes everything above; the caller sets the descriptors 0-2. */
static int place_descriptors(const int *fds, int count)
{
	int high[MAX_FDS];

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

/* As fork(), into a control group of version 2. */
static pid_t fork_into(int folder)
{
	struct clone_args wanted = { .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = folder };

	return syscall(SYS_clone3, &wanted, sizeof(wanted));
}

/* Stops all processes of the tree, or lets them run. 0, or -1 with errno. */
static int freeze_tree(int frozen)
{
	return pwrite(freeze_file, frozen ? "1" : "0", 1, 0) == 1 ? 0 : -1;
}

static pid_t start_anchor(void)
{
	sigset_t all, before;
	pid_t pid;

	/* A request starts with a signal: one that comes before the anchor is ready must wait, not kill it. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	pid = group_folder < 0 ? fork() : fork_into(group_folder);
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		setpgid(0, 0);
		if (null < 0 || (user_namespace >= 0 && become_root_of_box()) || unshare(CLONE_NEWIPC))
			_exit(125);
		reset_signals(SIG_BLOCK);
		for (int fd = 0; fd < 3; fd++)
			dup2(null, fd);
		if (place_descriptors(&status_pipe[1], 1) || confine())
			_exit(125);
		execl(ANCHOR_PROGRAM, "waypoint-anchor", NULL);
		_exit(125);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return pid;
}

static int join_anchor(const char *kind, int flag)
{
	char path[64];
	int namespace, failed;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", anchor, kind);
	namespace = open(path, O_RDONLY | O_CLOEXEC);
	if (namespace < 0)
		return -1;
	failed = setns(namespace, flag);
	close(namespace);
	return failed;
}

/* A program beside the tree: CRIU or one of its helpers. `ipc`: "keep" the keeper's namespace, "join" the anchor's,
   or a "new" one. Its standard input is the terminal, by which CRIU finds it. A tree that was restored once has a
   time namespace of its own: from inside it CRIU can read the clocks without a helper process. */
static pid_t run_beside(const char *ipc, char **argv, char **env, const int *fds, int count)
{
	pid_t pid = fork();

	if (pid == 0) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		reset_signals(SIG_UNBLOCK);
		setpgid(0, 0);
		if (!strcmp(ipc, "new") && unshare(CLONE_NEWIPC))
			_exit(125);
		if (!strcmp(ipc, "join") && join_anchor("ipc", CLONE_NEWIPC))
			_exit(125);
		if (anchor > 0)
			join_anchor("time", CLONE_NEWTIME);
		dup2(slave, 0);
		dup2(null, 1);
		dup2(null, 2);
		if (place_descriptors(fds, count))
			_exit(125);
		execve(argv[0], argv, env);
		_exit(127);
	}
	return pid;
}

/* ---- clients --------------------------------------------------------------------------------- */

static int clients[MAX_CLIENTS], serving = -1;
enum { RUNS = -1, STAYS_FROZEN = -2 };
/* The client that has frozen the tree: when it ends the tree runs on, unless it was asked to stay frozen. */
static int freezing = RUNS;
static char ring[RING_BYTES];
static size_t ring_length;
static unsigned long long ring_dropped;
static struct { pid_t pid; int status; } events[MAX_EVENTS]; /* ended children that no client has heard of yet */
static int event_count;
static int outputs[MAX_OUTPUTS], output_count;

static void disconnect(int client)
{
	for (int i = 0; i < MAX_CLIENTS; i++)
		if (clients[i] == client)
			clients[i] = -1;
	if (serving == client)
		serving = -1;
	if (freezing == client) {
		freezing = RUNS;
		freeze_tree(0);
	}
	close(client);
}

/* Sends one packet, with descriptors. Never waits: 0, or -1 with errno. */
static int send_packet(int client, const void *text, size_t length, const int *fds, int count)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec data = { (void *)text, length };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };

	if (count) {
		struct cmsghdr *header = &control.header;

		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(header), fds, count * sizeof(int));
	}
	return sendmsg(client, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}

__attribute__((format(printf, 4, 5))) static void answer_with(int client, const int *fds, int count,
							      const char *format, ...)
{
	char text[MAX_PTYS * PTY_TEXT_BYTES + 16];
	va_list more;
	int length;

	va_start(more, format);
	length = vsnprintf(text, sizeof(text), format, more);
	va_end(more);
	if (length >= (int)sizeof(text))
		length = sizeof(text) - 1;
	if (length < 0 || send_packet(client, text, length, fds, count))
		disconnect(client);
}

#define answer(client, ...) answer_with(client, NULL, 0, __VA_ARGS__)

static void answer_error(int client, int error, const char *what)
{
	answer(client, "error %d %s", error, what);
}

/* "ok", or an error when `failed`. */
static void answer_result(int client, int failed, const char *what)
{
	if (failed)
		answer_error(client, errno, what);
	else
		answer(client, "ok");
}

/* Sends as many of the waiting events as the serving client takes at the moment. */
static void send_events(void)
{
	int sent = 0;

	while (serving >= 0 && sent < event_count) {
		char text[48];
		int length = snprintf(text, sizeof(text), "exited %d %d", events[sent].pid, events[sent].status);

		if (!send_packet(serving, text, length, NULL, 0))
			sent++;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else
			disconnect(serving);
	}
	event_count -= sent;
	memmove(events, events + sent, event_count * sizeof(*events));
}

/* Takes reports of ended children from the anchor's pipe. What finds no room stays in the pipe. */
static void read_events(void)
{
	int32_t record[2];

	while (event_count < MAX_EVENTS && read(status_pipe[0], record, sizeof(record)) == sizeof(record)) {
		events[event_count].pid = record[0];
		events[event_count++].status = record[1];
	}
	send_events();
}

/* Keeps what the terminal prints while no client serves it: the last RING_BYTES of it. */
static void read_terminal(void)
{
	char block[4096];
	ssize_t length = read(master, block, sizeof(block));

	if (length <= 0)
		return;
	if (ring_length + length > sizeof(ring)) {
		size_t excess = ring_length + length - sizeof(ring);

		memmove(ring, ring + excess, ring_length - excess);
		ring_length -= excess;
		ring_dropped += excess;
	}
	memcpy(ring + ring_length, block, length);
	ring_length += length;
}

/* The reading ends of the pipes of programs. The keeper holds a second copy, so that a program does not die of
   SIGPIPE when the daemon ends. While no daemon serves, their output is read and dropped. */
static void read_outputs(const struct pollfd *wait, int count)
{
	char block[65536];
	int remaining = 0;

	for (int i = 0; i < count; i++) {
		int ended = wait[i].revents & (POLLHUP | POLLERR | POLLNVAL) && !(wait[i].revents & POLLIN);

		if (wait[i].revents & POLLIN && read(outputs[i], block, sizeof(block)) == 0)
			ended = 1;
		if (ended)
			close(outputs[i]);
		else
			outputs[remaining++] = outputs[i];
	}
	output_count = remaining;
}

/* Keeps copies of all of `fds`, or of none. 0, or -1 with errno. */
static int keep_outputs(const int *fds, int count)
{
	if (output_count + count > MAX_OUTPUTS) {
		errno = EMFILE;
		return -1;
	}
	for (int i = 0; i < count; i++) {
		outputs[output_count + i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
		if (outputs[output_count + i] < 0) {
			int error = errno;

			while (i--)
				close(outputs[output_count + i]);
			errno = error;
			return -1;
		}
	}
	output_count += count;
	return 0;
}

/* From now on this client reads the terminal and gets the events. First it gets what the terminal printed before. */
static void serve_client(int client)
{
	serving = client;
	answer(client, "ok %zu %llu", ring_length, ring_dropped);
	for (size_t at = 0; serving == client && at < ring_length; at += 32768) {
		size_t length = ring_length - at < 32768 ? ring_length - at : 32768;

		if (send_packet(client, ring + at, length, NULL, 0))
			disconnect(client);
	}
	if (serving != client)
		return;
	ring_length = ring_dropped = 0;
	send_events();
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Passes a request for a shell or a program to the anchor and returns its answer: a pid, or minus errno. */
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
	struct ucred peer;
	socklen_t peer_length = sizeof(peer);
	int32_t pid = -EPROTO;
	int buffer_bytes = PACKET_BYTES * 2, connection;
	struct timespec now, end;

	memcpy(CMSG_DATA(&control.header), stdio, 3 * sizeof(int));
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += ANSWER_SECONDS;
	/* It may be stopped, and pid 1 hears of that only after this. */
	if (kill(anchor, SIGCONT) || kill(anchor, SIGUSR1))
		return -errno;
	for (;;) {
		/* One limit for all connections: a process that connects again and again must not keep pid 1 here. */
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec >= end.tv_sec || poll(&wait, 1, (end.tv_sec - now.tv_sec) * 1000) <= 0)
			return -ETIMEDOUT;
		connection = accept4(anchor_socket, NULL, NULL, SOCK_CLOEXEC);
		if (connection < 0)
			return -errno;
		/* Every process of the box can connect here; only the anchor is served. */
		if (!getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &peer_length) && peer.pid == anchor)
			break;
		close(connection);
	}
	setsockopt(connection, SOL_SOCKET, SO_SNDBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
	setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (sendmsg(connection, &message, MSG_NOSIGNAL) < 0 || recv(connection, &pid, sizeof(pid), 0) != sizeof(pid))
		pid = -errno;
	close(connection);
	return pid;
}

static void drop_ptys(void)
{
	if (pty_holder > 0 && pty_holder != getpid())
		kill(pty_holder, SIGKILL);
	pty_holder = 0;
	for (int i = 0; i < pty_count; i++) {
		close(ptys[i].slave);
		close(ptys[i].master);
	}
	pty_count = 0;
}

/* In a user namespace no process of the box can take a descriptor from the keeper. One that is root there holds copies
   of the terminals, by the same numbers. 0, or -1 with errno. */
static int start_pty_holder(void)
{
	int highest = -1;

	pty_holder = user_namespace < 0 ? getpid() : fork();
	if (pty_holder)
		return pty_holder < 0 ? -1 : 0;
	if (become_root_of_box())
		_exit(125);
	for (int i = 0; i < pty_count; i++) {
		highest = ptys[i].master > highest ? ptys[i].master : highest;
		highest = ptys[i].slave > highest ? ptys[i].slave : highest;
	}
	for (int fd = 0; fd < highest; fd++) {
		int is_held = 0;

		for (int i = 0; i < pty_count; i++)
			is_held |= fd == ptys[i].master || fd == ptys[i].slave;
		if (!is_held)
			close(fd);
	}
	reset_signals(SIG_UNBLOCK);
	if (close_range(highest + 1, ~0U, 0) || prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
		_exit(125);
	for (;;)
		pause();
}

/* Creates the terminal with the lowest free index. Its master, or -1 with errno. */
static int open_pty(int *index)
{
	int fd = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), unlock = 0, error;

	if (fd >= 0 && !ioctl(fd, TIOCGPTN, index) && !ioctl(fd, TIOCSPTLCK, &unlock))
		return fd;
	error = errno;
	if (fd >= 0)
		close(fd);
	errno = error;
	return -1;
}

/* Terminals that live wholly inside the tree (tmux's panes) have to exist before CRIU forks it: see shim.c. Those
   with the given indices are created and held here until the tree is restored; the slaves too, because a session
   loses its terminal when the last descriptor of the slave is closed. 0, or -1 with errno. */
static int hold_ptys(char **words, int count)
{
	int unwanted[MAX_PTYS], unwanted_count = 0, highest = 0, index = -1, error = 0;

	for (int i = 0; i < count; i++)
		if (atoi(words[i]) > highest)
			highest = atoi(words[i]);
	if (highest >= MAX_PTYS || pty_count) {
		errno = pty_count ? EBUSY : E2BIG;
		return -1;
	}
	if (user_namespace >= 0)
		act_on_files_as(first_id);
	while (index < highest && !error) {
		int fd = open_pty(&index), slave_fd = -1, wanted = 0;

		for (int i = 0; i < count; i++)
			wanted |= atoi(words[i]) == index;
		if (fd >= 0 && wanted)
			slave_fd = ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
		if (fd < 0 || (wanted && slave_fd < 0)) {
			error = errno;
			if (fd >= 0)
				close(fd);
		} else if (wanted) {
			ptys[pty_count].index = index;
			ptys[pty_count].master = fd;
			ptys[pty_count++].slave = slave_fd;
		} else {
			unwanted[unwanted_count++] = fd;
		}
	}
	while (unwanted_count)
		close(unwanted[--unwanted_count]);
	if (user_namespace >= 0)
		act_on_files_as(0);
	if (!error && start_pty_holder())
		error = errno;
	if (error)
		drop_ptys();
	errno = error;
	return error ? -1 : 0;
}

static void answer_ptys(int client)
{
	char text[MAX_PTYS * PTY_TEXT_BYTES] = "";
	size_t at = 0;

	for (int i = 0; i < pty_count; i++)
		at += sprintf(text + at, " %d:%d:%d", ptys[i].index, ptys[i].master, ptys[i].slave);
	answer(client, "ok %d%s", pty_holder, text);
}

/* Splits a packet, which has a NUL behind its end, into words and a NULL. Returns how many; -1 when they are more than
   MAX_WORDS. */
static int split_words(char *packet, size_t length, char **words)
{
	int count = 0;

	for (char *word = packet; word < packet + length; word += strlen(word) + 1) {
		if (count == MAX_WORDS)
			return -1;
		words[count++] = word;
	}
	words[count] = NULL;
	return count;
}

/* mask PATH KIND HANDLE: covers a folder with an empty one: PATH itself, or the folder with that file handle (in
   hexadecimal) on the file system that is mounted at PATH. 0, or -1 with errno. */
static int mask_folder(char **words)
{
	union {
		struct file_handle header;
		char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} handle = { .header = { .handle_bytes = strlen(words[3]) / 2, .handle_type = atoi(words[2]) } };
	int place = open_in_root(words[1], O_RDONLY | O_DIRECTORY), fd = -1, result = -1;
	unsigned int bytes = handle.header.handle_bytes, read = 0;

	if (place < 0)
		return -1;
	while (bytes <= MAX_HANDLE_SZ && read < bytes &&
	       sscanf(words[3] + 2 * read, "%2hhx", handle.header.f_handle + read) == 1)
		read++;
	if (!bytes)
		fd = dup(place);
	else if (read == bytes)
		fd = open_by_handle_at(place, &handle.header, O_PATH | O_DIRECTORY | O_CLOEXEC);
	else
		errno = EINVAL;
	close(place);
	if (fd < 0)
		return -1;
	result = cover_folder(fd);
	close(fd);
	return result;
}

/* run IPC ENVC ENV... ARGV...: copies the variables and a NULL to `env` and returns ARGV; NULL if it is malformed. */
static char **read_run(char **words, int count, char **env)
{
	int variables = count >= 4 ? atoi(words[2]) : -1;

	if (variables < 0 || variables > MAX_VARIABLES || count < 4 + variables)
		return NULL;
	memcpy(env, words + 3, variables * sizeof(*env));
	env[variables] = NULL;
	return words + 3 + variables;
}

static void act(int client, char *packet, size_t length, int *fds, int fd_count)
{
	static char *words[MAX_WORDS + 1];
	int count = split_words(packet, length, words);

	if (count < 0) {
		answer_error(client, E2BIG, "words");
	} else if (!strcmp(words[0], "hello")) {
		struct stat info = { 0 };
		int ends[2] = { master, slave };

		fstat(status_pipe[1], &info);
		answer_with(client, ends, 2, "ok %s %d %lu", PROTOCOL, anchor, (unsigned long)info.st_ino);
	} else if (!strcmp(words[0], "serve")) {
		serve_client(client);
	} else if (!strcmp(words[0], "anchor")) {
		anchor = start_anchor();
		if (anchor < 0)
			answer_error(client, errno, "fork");
		else
			answer(client, "ok %d", anchor);
	} else if (!strcmp(words[0], "group") && fd_count == 2) {
		if (group_folder >= 0) {
			close(group_folder);
			close(freeze_file);
		}
		group_folder = fcntl(fds[0], F_DUPFD_CLOEXEC, 3);
		freeze_file = fcntl(fds[1], F_DUPFD_CLOEXEC, 3);
		answer_result(client, group_folder < 0 || freeze_file < 0, "group");
	} else if (!strcmp(words[0], "stay-frozen")) {
		freezing = STAYS_FROZEN;
		answer_result(client, freeze_tree(1), words[0]);
	} else if (!strcmp(words[0], "freeze") || !strcmp(words[0], "thaw")) {
		int frozen = !strcmp(words[0], "freeze");

		freezing = frozen ? client : RUNS;
		answer_result(client, freeze_tree(frozen), words[0]);
	} else if (!strcmp(words[0], "adopt") && count == 2) {
		anchor = atoi(words[1]); /* restored: CRIU started it */
		answer(client, "ok");
	} else if (!strcmp(words[0], "start") && fd_count == 3) {
		size_t skip = strlen(words[0]) + 1;
		int32_t pid = ask_anchor(packet + skip, length - skip, fds);

		if (pid < 0)
			answer_error(client, -pid, "start");
		else
			answer(client, "ok %d", pid);
	} else if (!strcmp(words[0], "run")) {
		char *env[MAX_VARIABLES + 1], **argv = read_run(words, count, env);
		pid_t pid;

		if (!argv) {
			answer_error(client, EINVAL, "run");
			return;
		}
		pid = run_beside(words[1], argv, env, fds, fd_count);
		if (pid < 0)
			answer_error(client, errno, "fork");
		else
			answer(client, "ok %d", pid);
	} else if (!strcmp(words[0], "keep")) {
		answer_result(client, keep_outputs(fds, fd_count), "keep");
	} else if (!strcmp(words[0], "status-pipe")) {
		answer_with(client, &status_pipe[1], 1, "ok");
	} else if (!strcmp(words[0], "last-pid") && count == 2) {
		int failed = lseek(last_pid_fd, 0, SEEK_SET) || write(last_pid_fd, words[1], strlen(words[1])) < 0;

		answer_result(client, failed, "last-pid");
	} else if (!strcmp(words[0], "last-pid?")) {
		/* The kernel returns the number of the reader's own namespace. */
		char text[16] = "";

		if (lseek(last_pid_fd, 0, SEEK_SET) || read(last_pid_fd, text, sizeof(text) - 1) < 0)
			answer_error(client, errno, "last-pid");
		else
			answer(client, "ok %d", atoi(text));
	} else if (!strcmp(words[0], "hostname") && count == 2) {
		answer_result(client, sethostname(words[1], strlen(words[1])), "hostname");
	} else if (!strcmp(words[0], "foreground") && count == 2) {
		answer_result(client, tcsetpgrp(slave, atoi(words[1])), "foreground");
	} else if (!strcmp(words[0], "foreground?")) {
		answer(client, "ok %d", tcgetpgrp(slave));
	} else if (!strcmp(words[0], "ptys")) {
		if (hold_ptys(words + 1, count - 1))
			answer_error(client, errno, "ptys");
		else
			answer_ptys(client);
	} else if (!strcmp(words[0], "mask") && count == 4) {
		answer_result(client, mask_folder(words), "mask");
	} else if (!strcmp(words[0], "idmap")) {
		if (idmap < 0)
			answer_error(client, ENOENT, "idmap");
		else
			answer_with(client, &idmap, 1, "ok");
	} else if (!strcmp(words[0], "drop-ptys")) {
		drop_ptys();
		answer(client, "ok");
	} else {
		answer_error(client, ENOSYS, "unknown-request");
	}
}

/* Receives one request and acts on it; -1 when the client is gone. */
static int receive(int client)
{
	static char packet[PACKET_BYTES];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control;
	struct iovec data = { packet, sizeof(packet) - 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	ssize_t length = recvmsg(client, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	int fds[MAX_FDS + 1], count = 0;

	if (length <= 0)
		return length < 0 && errno == EAGAIN ? 0 : -1;
	for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header))
		if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
			count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(header), count * sizeof(int));
		}
	packet[length] = 0;
	if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		answer_error(client, EMSGSIZE, "truncated");
	else
		act(client, packet, length, fds, count);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	return 0;
}

/* Every process of the box may send signals to CRIU, its helpers and the anchor. Those that are stopped are continued
   at once: the daemon waits for them. */
static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0)
		if (WIFSTOPPED(status))
			kill(pid, SIGCONT);
		else if (pid == anchor)
			_exit(0); /* what is left is no tree any more: what it starts would be in no checkpoint */
		else if (freezing < 0 && freeze_file >= 0)
			/* CRIU freezes the tree before it lets go of it, and its client has ended; one that was
			   killed has let it run */
			freeze_tree(freezing == STAYS_FROZEN);
}

static int listen_for_anchor(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = KEEPER_SOCKET };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 16))
		return -1;
	return fd;
}

static void accept_client(void)
{
	int client = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC), i = 0, buffer_bytes = PACKET_BYTES * 2;

	if (client < 0)
		return;
	while (i < MAX_CLIENTS && clients[i] >= 0)
		i++;
	if (i == MAX_CLIENTS) {
		close(client);
		return;
	}
	setsockopt(client, SOL_SOCKET, SO_SNDBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
	clients[i] = client;
}

__attribute__((noreturn)) static void serve(void)
{
	enum { SIGNALS, LISTEN, STATUS, TERMINAL, CLIENTS, OUTPUTS = CLIENTS + MAX_CLIENTS };
	struct pollfd wait[OUTPUTS + MAX_OUTPUTS];
	struct signalfd_siginfo info;
	sigset_t child;
	int signals;

	for (int i = 0; i < MAX_CLIENTS; i++)
		clients[i] = -1;
	for (int signo = 1; signo < NSIG; signo++)
		if (signo != SIGCHLD)
			signal(signo, SIG_IGN);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	anchor_socket = listen_for_anchor();
	if (signals < 0 || anchor_socket < 0 || pipe2(status_pipe, O_CLOEXEC | O_NONBLOCK) ||
	    (user_namespace >= 0 && act_on_files_as(0)))
		fail("serve", KEEPER_SOCKET);
	dprintf(report_fd, "ready\n");
	close(report_fd);
	for (;;) {
		int count = output_count;

		wait[SIGNALS] = (struct pollfd){ .fd = signals, .events = POLLIN };
		wait[LISTEN] = (struct pollfd){ .fd = listen_fd, .events = POLLIN };
		wait[STATUS] = (struct pollfd){ .fd = event_count < MAX_EVENTS ? status_pipe[0] : -1, .events = POLLIN };
		wait[TERMINAL] = (struct pollfd){ .fd = serving < 0 ? master : -1, .events = POLLIN };
		for (int i = 0; i < MAX_CLIENTS; i++) {
			int has_events = event_count && clients[i] == serving;

			wait[CLIENTS + i] = (struct pollfd){ .fd = clients[i], .events = POLLIN | (has_events ? POLLOUT : 0) };
		}
		for (int i = 0; i < count; i++)
			wait[OUTPUTS + i] = (struct pollfd){ .fd = outputs[i], .events = serving < 0 ? POLLIN : 0 };
		if (poll(wait, OUTPUTS + count, -1) < 0 && errno != EINTR)
			_exit(1);
		if (wait[SIGNALS].revents && read(signals, &info, sizeof(info)) > 0)
			reap();
		if (wait[STATUS].revents)
			read_events();
		if (wait[TERMINAL].revents)
			read_terminal();
		read_outputs(wait + OUTPUTS, count);
		for (int i = 0; i < MAX_CLIENTS; i++) {
			if (clients[i] < 0)
				continue;
			if (wait[CLIENTS + i].revents & POLLOUT)
				send_events();
			if (clients[i] >= 0 && wait[CLIENTS + i].revents & ~POLLOUT && receive(clients[i]))
				disconnect(clients[i]);
		}
		if (wait[LISTEN].revents)
			accept_client();
	}
}

int main(int argc, char **argv)
{
	struct stat info;
	char *plan;

	if (argc != 4)
		return 2;
	listen_fd = atoi(argv[2]);
	report_fd = atoi(argv[3]);
	if (fstat(atoi(argv[1]), &info) || !(plan = malloc(info.st_size + 1)) ||
	    pread(atoi(argv[1]), plan, info.st_size, 0) != info.st_size)
		fail("plan", NULL);
	plan[info.st_size] = 0;
	close(atoi(argv[1]));
	fcntl(listen_fd, F_SETFD, FD_CLOEXEC);
	fcntl(report_fd, F_SETFD, FD_CLOEXEC);
	umask(0);
	carry_out(plan, info.st_size);
	umask(022);
	free(plan);
	prctl(PR_SET_NAME, "waypoint-keeper", 0, 0, 0);
	serve();
}
