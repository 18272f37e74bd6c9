/* `waypoint` inside a session: passes its words to the daemon and shows the answer.

   The daemon listens in a folder of this box alone, which is mounted read-only: a program can connect to a socket there
   and read answers, and nothing else. What may be asked, and about which session, is decided by the daemon
   (daemon/inside/); this program knows no verbs.

   It is part of the tree that it asks about. A checkpoint finds it waiting, and it continues in every restore and fork
   of that point. So while it waits it must hold nothing that leads out of the tree:

     - the connection is short: one packet is sent, "ok" comes back, then it is closed. The packet carries a ticket, a
       random number; the daemon does not act twice on the same ticket.
     - the answer is a symbolic link named like the ticket, and its text is the target of the link. readlink(2) is one
       call and opens nothing: no dump ever finds a descriptor of a file that the next box does not have.

   A word that is a single "-" stands for the text from standard input.

   Request: words ending in NUL: "1", ticket, "ask" (or "again", or "done"), width, cwd, arguments...
   Answer: "STATUS OUT ERR PARTS\n" and then OUT bytes for stdout and ERR bytes for stderr; what does not fit is in
   TICKET.1, TICKET.2, ... up to PARTS - 1. A STATUS of "again" says that this is another box now and its daemon does not
   know the request: it is made once more, as a new one.

   Static, and nothing but the C library: it has to run over any base. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "waypoint.h"

#define REQUEST_BYTES (128 << 10)
#define MAX_PARTS 1024
#define LINK_BYTES 4096
#define UNREACHABLE 9 /* as errors.py has it */
#define UNANSWERED_MS 60000
#define ASK_AGAIN_MS 2000

static char request[REQUEST_BYTES], ticket[33];
static size_t request_length;

static void sleep_ms(long ms)
{
	struct timespec left = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static void fail(const char *message, const char *hint)
{
	fprintf(stderr, "waypoint: %s\n  %s\n", message, hint);
	exit(UNREACHABLE);
}

static void add_word(const char *word)
{
	size_t length = strlen(word) + 1;

	if (request_length + length > sizeof(request))
		fail("the request is too long", "at most 128 KB: put the text into a file and name the file");
	memcpy(request + request_length, word, length);
	request_length += length;
}

/* The text from standard input, as one word. */
static const char *read_input(void)
{
	static char text[REQUEST_BYTES];
	static size_t length;
	static int done;
	ssize_t more = 1;

	if (done++)
		return text;
	while (length < sizeof(text) && (more = read(0, text + length, sizeof(text) - length)) > 0)
		length += more;
	if (length == sizeof(text))
		fail("the request is too long", "at most 128 KB");
	if (memchr(text, 0, length))
		fail("standard input is not text", "it has a NUL byte in it");
	while (length && text[length - 1] == '\n')
		length--;
	text[length] = 0;
	return text;
}

static void new_ticket(void)
{
	unsigned char bytes[16];

	if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
		fail("the kernel gives no random numbers", "try again");
	for (int i = 0; i < 16; i++)
		sprintf(ticket + 2 * i, "%02x", bytes[i]);
}

static void write_request(const char *kind, int argc, char **argv)
{
	static char cwd[PATH_MAX];
	struct winsize size;
	char width[16];

	if (!getcwd(cwd, sizeof(cwd)) || *cwd != '/')
		strcpy(cwd, "/");
	snprintf(width, sizeof(width), "%d", isatty(1) && !ioctl(1, TIOCGWINSZ, &size) ? size.ws_col : 0);
	request_length = 0;
	add_word("1");
	add_word(ticket);
	add_word(kind);
	add_word(width);
	add_word(cwd);
	for (int i = 1; i < argc; i++)
		add_word(strcmp(argv[i], "-") ? argv[i] : read_input());
}

/* 0: the daemon has accepted it. 1: it refused, which was printed. -1: no daemon is there, or it has ended. */
static int send_request(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = INSIDE_FOLDER "/socket" };
	struct timeval limit = { .tv_sec = 20 };
	char reply[1024];
	ssize_t length;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), result = -1;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (!connect(fd, (struct sockaddr *)&address, sizeof(address)) &&
	    send(fd, request, request_length, MSG_NOSIGNAL) == (ssize_t)request_length) {
		length = recv(fd, reply, sizeof(reply) - 1, 0);
		if (length > 0) {
			reply[length] = 0;
			result = strcmp(reply, "ok") != 0;
			if (result)
				fprintf(stderr, "waypoint: %s\n", reply);
		}
	}
	close(fd);
	return result;
}

static ssize_t read_part(int number, char *text)
{
	char path[96];

	if (number)
		snprintf(path, sizeof(path), INSIDE_FOLDER "/replies/%s.%d", ticket, number);
	else
		snprintf(path, sizeof(path), INSIDE_FOLDER "/replies/%s", ticket);
	return readlink(path, text, LINK_BYTES);
}

static int print(FILE *stream, const char *text, size_t length)
{
	return fwrite(text, 1, length, stream) != length || fflush(stream);
}

/* The exit status, or -1 when the request has to be made again. */
static int show_answer(char *first, ssize_t length)
{
	unsigned long out, err;
	int status, parts, used = 0;
	char *text;
	size_t have;

	first[length] = 0;
	if (!strncmp(first, "again", 5))
		return -1;
	if (sscanf(first, "%d %lu %lu %d\n%n", &status, &out, &err, &parts, &used) != 4 || !used || parts < 1 ||
	    parts > MAX_PARTS || out + err > (size_t)parts * LINK_BYTES ||
	    !(text = malloc((size_t)parts * LINK_BYTES)))
		fail("the answer is malformed", "this session may be older than the Waypoint that serves it");
	have = length - used;
	memcpy(text, first + used, have);
	for (int number = 1; number < parts; number++) {
		length = read_part(number, text + have);
		if (length < 0)
			fail("a part of the answer is missing", "try again");
		have += length;
	}
	if (have < out + err)
		fail("a part of the answer is missing", "try again");
	if (print(stdout, text, out) | print(stderr, text + out, err))
		return status ? status : 1;
	return status;
}

int main(int argc, char **argv)
{
	static char answer[LINK_BYTES + 1];
	long unanswered_ms = 0, waited_ms = 0;
	int accepted = 0, status;

	if (access(INSIDE_FOLDER "/replies", F_OK))
		fail("this is not a session of Waypoint, or an older Waypoint started it",
		     "from outside: `waypoint ls`");
start:
	new_ticket();
	write_request("ask", argc, argv);
	for (;;) {
		long step;
		ssize_t length = read_part(0, answer);

		if (length > 0) {
			status = show_answer(answer, length);
			write_request("done", 1, argv);
			send_request();
			if (status >= 0)
				return status;
			accepted = 0;
			goto start;
		}
		if (!accepted || waited_ms >= ASK_AGAIN_MS) {
			/* The daemon may have been replaced by another, which does not know the request. */
			int result = send_request();

			if (result > 0)
				return UNREACHABLE;
			if (!result) {
				if (!accepted)
					write_request("again", argc, argv);
				accepted = 1;
				unanswered_ms = waited_ms = 0;
				continue;
			}
			if (unanswered_ms >= UNANSWERED_MS)
				fail("the daemon does not run",
				     "it starts by itself with the next call from outside, e.g. `waypoint ls`");
		}
		/* While a checkpoint is taken the daemon does not listen. */
		step = waited_ms < 20 ? 1 : waited_ms < 200 ? 5 : 20;
		sleep_ms(step);
		waited_ms += step;
		unanswered_ms += step;
	}
}
