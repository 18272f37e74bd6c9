/* The anchor: the ancestor of everything that a checkpoint holds.

   It starts the shells and programs that the keeper asks for, so that they are its descendants, and adopts and
   reaps daemons (it is a subreaper). It is part of every image, so it is tiny, keeps nothing of a request in its
   memory, and holds nothing open that leads out of the tree except the status pipe:

     - a request starts with SIGUSR1; the anchor then connects to the keeper's socket, takes one request with three
       descriptors, forks, answers with the pid and closes the connection. A dump never finds it connected, because
       the daemon does not ask for both at the same time.
     - how a child ended goes into the status pipe (descriptor 3) as { pid, wait status }. On restore CRIU is given
       the new keeper's pipe in its place.

   Protocol: words ending in NUL, in one packet:
     kind ("shell" | "program")  cwd  argc  argv...  envc  env...      + SCM_RIGHTS: stdin stdout stderr
   Answer: int32, the pid, or minus errno. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "waypoint.h"

#define STATUS_FD 3
#define WORDS_BYTES (MAX_WORDS * sizeof(char *))

struct program {
	int is_shell;
	const char *cwd;
	char **argv, **env;
};

static char *request;
static char **words;

static void reap(void)
{
	int32_t record[2];
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		record[0] = pid;
		record[1] = status;
		/* Non-blocking: a keeper that does not read must not stop the tree. */
		if (write(STATUS_FD, record, sizeof(record)) < 0)
			continue;
	}
}

static void run(int error_fd, const struct program *program, const int *stdio)
{
	sigset_t none;
	int error;

	if (program->is_shell) {
		setpgid(0, 0);
		tcsetpgrp(stdio[0], getpid()); /* SIGTTOU is blocked here, as all signals are */
	} else {
		setsid();
	}
	for (int i = 0; i < 3; i++)
		if (dup2(stdio[i], i) < 0)
			goto fail;
	for (int fd = 3; fd < 64; fd++)
		if (fd != error_fd)
			close(fd);
	/* The folder may be gone. For a program that is an error; a shell starts in the root. */
	if (chdir(program->cwd) && (!program->is_shell || chdir("/")))
		goto fail;
	umask(022);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	environ = program->env; /* its PATH is searched, not the anchor's */
	execvp(program->argv[0], program->argv);
fail:
	error = errno;
	if (write(error_fd, &error, sizeof(error)) < 0)
		_exit(126);
	_exit(127);
}

/* Reads a request, which has a NUL behind its end. 0, or -1 when it is malformed. */
static int read_request(size_t length, struct program *program)
{
	size_t count = 0, at = 3;
	int argc, envc;

	for (char *word = request; word < request + length; word += strlen(word) + 1) {
		if (count == MAX_WORDS - 1)
			return -1;
		words[count++] = word;
	}
	if (count < 5)
		return -1;
	program->is_shell = !strcmp(words[0], "shell");
	program->cwd = words[1];
	argc = atoi(words[2]);
	if (argc < 1 || at + argc >= count)
		return -1;
	/* argv and env each need a NULL behind them: argv is moved over its count, env ends the words. */
	program->argv = words + at - 1;
	memmove(program->argv, words + at, argc * sizeof(*words));
	at += argc;
	program->argv[argc] = NULL;
	envc = atoi(words[at++]);
	if (envc < 0 || at + envc > count)
		return -1;
	program->env = words + at;
	program->env[envc] = NULL;
	return 0;
}

static int32_t start(size_t length, const int *stdio)
{
	struct program program;
	int error = 0, pipe_fds[2];
	pid_t pid;

	if (read_request(length, &program))
		return -EINVAL;
	if (pipe2(pipe_fds, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid == 0)
		run(pipe_fds[1], &program, stdio);
	error = pid < 0 ? errno : 0;
	close(pipe_fds[1]);
	if (pid > 0 && read(pipe_fds[0], &error, sizeof(error)) == sizeof(error))
		waitpid(pid, NULL, 0);
	close(pipe_fds[0]);
	return error ? -error : pid;
}

static void serve(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = KEEPER_SOCKET };
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(3 * sizeof(int))]; /* which may have space for a fourth */
	} control;
	struct iovec data = { request, PACKET_BYTES - 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int32_t answer = -EPROTO;
	ssize_t length;
	int connection;

	connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connection < 0)
		return;
	if (connect(connection, (struct sockaddr *)&address, sizeof(address)))
		goto out;
	length = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
	if (length > 0) {
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		int fds[4], count = 0;

		request[length] = 0;
		if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
			count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(header), count * sizeof(int));
		}
		if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
			answer = -EMSGSIZE;
		else if (count == 3)
			answer = start(length, fds);
		while (count)
			close(fds[--count]);
	}
	if (send(connection, &answer, sizeof(answer), MSG_NOSIGNAL) < 0)
		goto out;
out:
	close(connection);
	/* What a request leaves in memory would make every image larger. */
	madvise(request, PACKET_BYTES, MADV_DONTNEED);
	madvise(words, WORDS_BYTES, MADV_DONTNEED);
}

int main(void)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	prctl(PR_SET_NAME, "waypoint-anchor", 0, 0, 0);
	fcntl(STATUS_FD, F_SETFL, fcntl(STATUS_FD, F_GETFL) | O_NONBLOCK);
	request = mmap(NULL, PACKET_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	words = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (request == MAP_FAILED || words == MAP_FAILED)
		return 1;
	for (;;) {
		int signo = sigwaitinfo(&all, NULL);

		if (signo == SIGUSR1)
			serve();
		reap();
	}
}
