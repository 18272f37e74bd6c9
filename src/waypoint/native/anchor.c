/* The anchor: the one ancestor of everything a checkpoint holds.

   It starts the shells and programs that the keeper asks for, so that they are its descendants, and
   adopts and reaps what daemonises (it is a subreaper). It is part of every image, so it is tiny, and
   it holds nothing open that leads out of the tree except the status pipe:

     - a request comes as SIGUSR1; the anchor then connects to the keeper's socket, takes one request
       with three descriptors, forks, answers with the pid and closes the connection again. A dump
       never finds it connected, because the daemon does not ask for both at the same time.
     - how a child ended goes into the status pipe (descriptor 3) as { pid, wait status }. On restore
       CRIU is handed the new keeper's pipe in its place.

   Protocol: tokens ending in NUL, in one packet:
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

#define KEEPER_SOCKET "/dev/waypoint.sock"
#define STATUS_FD 3
#define REQUEST_BYTES (1 << 18)

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
		/* Non-blocking: a keeper that is away must not stop the tree. */
		if (write(STATUS_FD, record, sizeof(record)) < 0)
			continue;
	}
}

static void run(int error_fd, int shell, const char *cwd, char **argv, char **env, const int *stdio)
{
	sigset_t none;
	int error;

	if (shell) {
		setpgid(0, 0);
		tcsetpgrp(stdio[0], getpid()); /* SIGTTOU is blocked here, as everything is */
	} else {
		setsid();
	}
	for (int i = 0; i < 3; i++)
		if (dup2(stdio[i], i) < 0)
			goto fail;
	for (int fd = 3; fd < 64; fd++)
		if (fd != error_fd)
			close(fd);
	/* The shell's folder may be gone; a program is told so, a shell starts in the root. */
	if (chdir(cwd) && (!shell || chdir("/")))
		goto fail;
	umask(022);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvpe(argv[0], argv, env);
fail:
	error = errno;
	if (write(error_fd, &error, sizeof(error)) < 0)
		_exit(126);
	_exit(127);
}

static int32_t start(size_t length, const int *stdio)
{
	size_t count = 0, at = 0;
	int argc, envc, shell, error = 0, pipe_fds[2];
	const char *cwd, *path;
	char **argv, **env;
	pid_t pid;

	for (char *word = request; word < request + length && count < REQUEST_BYTES / sizeof(char *) - 2;
	     word += strlen(word) + 1)
		words[count++] = word;
	if (count < 5)
		return -EINVAL;
	shell = !strcmp(words[at++], "shell");
	cwd = words[at++];
	argc = atoi(words[at++]);
	if (argc < 1 || at + argc >= count)
		return -EINVAL;
	/* argv and env each need a NULL behind them: shift argv over its count, env over its own. */
	argv = words + at - 1;
	memmove(argv, words + at, argc * sizeof(*argv));
	at += argc;
	argv[argc] = NULL;
	envc = atoi(words[at++]);
	if (envc < 0 || at + envc > count)
		return -EINVAL;
	env = words + at;
	env[envc] = NULL;
	path = NULL;
	for (int i = 0; i < envc; i++)
		if (!strncmp(env[i], "PATH=", 5))
			path = env[i] + 5;
	if (path)
		setenv("PATH", path, 1); /* execvpe searches the caller's PATH, the new program's is wanted */
	if (pipe2(pipe_fds, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid == 0)
		run(pipe_fds[1], shell, cwd, argv, env, stdio);
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
		char room[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct iovec data = { request, REQUEST_BYTES - 1 };
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

		request[length] = 0;
		if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(3 * sizeof(int))) {
			int stdio[3];

			memcpy(stdio, CMSG_DATA(header), sizeof(stdio));
			answer = start(length, stdio);
			for (int i = 0; i < 3; i++)
				close(stdio[i]);
		}
	}
	if (send(connection, &answer, sizeof(answer), MSG_NOSIGNAL) < 0)
		goto out;
out:
	close(connection);
	/* What a request left in memory would only make every image larger. */
	madvise(request, REQUEST_BYTES, MADV_DONTNEED);
	madvise(words, REQUEST_BYTES, MADV_DONTNEED);
}

int main(void)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	prctl(PR_SET_NAME, "waypoint-anchor", 0, 0, 0);
	fcntl(STATUS_FD, F_SETFL, fcntl(STATUS_FD, F_GETFL) | O_NONBLOCK);
	request = mmap(NULL, REQUEST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	words = mmap(NULL, REQUEST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (request == MAP_FAILED || words == MAP_FAILED)
		return 1;
	for (;;) {
		int signo = sigwaitinfo(&all, NULL);

		if (signo == SIGUSR1)
			serve();
		reap();
	}
}
