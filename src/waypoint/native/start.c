/* Starts one program of a session for the anchor, where the anchor alone cannot: as another user than root, or with
   more arguments than a packet holds.

   The anchor runs this with a socket as standard error. It takes the request from there, and the standard error that
   the program is to have; then it becomes the program. The socket closes by itself at that moment. If the program cannot
   be started, { step, errno } is sent on it first. So it never exists while the daemon saves the tree: the daemon waits for
   the answer under the same lock.

   Request: uint32 length + SCM_RIGHTS: stderr, then words ending in NUL:
     kind ("shell" | "program" | "inherited": a program in a folder that its user need not be able to enter)
     cwd  uid  gid  groups (numbers with commas, may be empty)  argc  argv...  envc  env... */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_REQUEST_BYTES (16U << 20)
#define MAX_GROUPS 65536

enum step { REQUEST, USER, FOLDER, PROGRAM }; /* Step in box/starter.py */

static int control;

__attribute__((noreturn)) static void fail(enum step step)
{
	int32_t report[2] = { step, errno };

	if (send(control, report, sizeof(report), MSG_NOSIGNAL) < 0)
		_exit(126);
	_exit(errno == ENOENT ? 127 : 126);
}

/* The length of the request, and the descriptor that comes with it. */
static uint32_t read_head(int *stderr_fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control_data;
	uint32_t length = 0;
	struct iovec data = { &length, sizeof(length) };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control_data,
				  .msg_controllen = sizeof(control_data) };
	struct cmsghdr *header;

	if (recvmsg(control, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL) != sizeof(length))
		fail(REQUEST);
	header = CMSG_FIRSTHDR(&message);
	errno = EINVAL;
	if (!header || header->cmsg_type != SCM_RIGHTS || !length || length > MAX_REQUEST_BYTES)
		fail(REQUEST);
	memcpy(stderr_fd, CMSG_DATA(header), sizeof(int));
	return length;
}

static char *next(char **at, const char *end)
{
	char *word = *at;

	errno = EINVAL;
	if (word >= end)
		fail(REQUEST);
	*at += strlen(word) + 1;
	return word;
}

/* COUNT WORD...: a list with a NULL behind its end. */
static char **next_list(char **at, const char *end)
{
	long count = atol(next(at, end));
	char **list;

	errno = EINVAL;
	if (count < 0 || count > end - *at)
		fail(REQUEST);
	list = calloc(count + 1, sizeof(*list));
	if (!list)
		fail(REQUEST);
	for (long i = 0; i < count; i++)
		list[i] = next(at, end);
	return list;
}

static void become(const char *uid, const char *gid, char *groups)
{
	static gid_t list[MAX_GROUPS];
	size_t count = 0;

	for (char *word = strtok(groups, ","); word && count < MAX_GROUPS; word = strtok(NULL, ","))
		list[count++] = strtoul(word, NULL, 10);
	if (setgroups(count, list) || setresgid(atol(gid), atol(gid), atol(gid)) ||
	    setresuid(atol(uid), atol(uid), atol(uid)))
		fail(USER);
}

int main(void)
{
	char *request, *at, *end, *uid, *gid, *groups, **argv;
	const char *kind, *cwd;
	uint32_t length, have = 0;
	int stderr_fd;

	control = fcntl(2, F_DUPFD_CLOEXEC, 3);
	if (control < 0)
		return 126;
	length = read_head(&stderr_fd);
	request = malloc(length + 1);
	if (!request)
		fail(REQUEST);
	while (have < length) {
		ssize_t part = recv(control, request + have, length - have, 0);

		if (part <= 0)
			fail(REQUEST);
		have += part;
	}
	request[length] = 0;
	at = request;
	end = request + length;
	kind = next(&at, end);
	cwd = next(&at, end);
	uid = next(&at, end);
	gid = next(&at, end);
	groups = next(&at, end);
	if (!strcmp(kind, "inherited") && chdir(cwd))
		fail(FOLDER);
	become(uid, gid, groups);
	argv = next_list(&at, end);
	environ = next_list(&at, end);
	errno = EINVAL;
	if (!argv[0])
		fail(REQUEST);
	if (dup2(stderr_fd, 2) < 0)
		fail(REQUEST);
	/* The folder may be gone. For a program that is an error; a shell starts in the root. */
	if (strcmp(kind, "inherited") && chdir(cwd) && (strcmp(kind, "shell") || chdir("/")))
		fail(FOLDER);
	execvp(argv[0], argv);
	fail(PROGRAM);
}
