/* `waypoint` inside a session: hands its words to the daemon, shows what comes back.

   The daemon listens in a folder of this box alone, which is mounted read-only: one can connect to a socket
   there and read answers, and nothing else. What may be asked, and about which session, is decided on the
   other side (inside.py); this program knows no verbs.

   It is part of what it asks for. A checkpoint finds it in the middle of waiting, and it wakes up again in every
   restore and fork of that point. So it must hold nothing that leads out of the tree while it waits:

     - the connection is short: one packet there ("ok" comes back), then it is closed. The packet carries a
       ticket, a random number; asked again with the same ticket the daemon does nothing twice.
     - the answer is a symbolic link called like the ticket, and the text is where it "leads" to. readlink(2) is
       one call and opens nothing: no dump ever finds a descriptor of a file that the next box does not have.

   A word that is a single "-" stands for what comes from standard input.

   Request: words ending in NUL: "1", ticket, "ask" (or "again", or "done"), width, cwd, arguments...
   Answer: "STATUS OUT ERR PARTS\n" and then OUT bytes for stdout and ERR bytes for stderr; what does not fit is in
   TICKET.1, TICKET.2, ... up to PARTS - 1. A STATUS of "again" says that this is another box now and nobody here
   knows of the request: it is made once more, as a new one.

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

#define FOLDER "/dev/waypoint.inside"
#define MOST_REQUEST (128 << 10)
#define MOST_PARTS 1024
#define LINK_BYTES 4096
#define UNREACHABLE 9 /* as errors.py has it */
#define PATIENCE_MS 60000
#define ASK_AGAIN_MS 2000

static char request[MOST_REQUEST], ticket[33];
static size_t request_length;

static void nap(long ms)
{
	struct timespec left = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static void fail(const char *why, const char *hint)
{
	fprintf(stderr, "waypoint: %s\n  %s\n", why, hint);
	exit(UNREACHABLE);
}

static void add(const char *word)
{
	size_t length = strlen(word) + 1;

	if (request_length + length > sizeof(request))
		fail("that is too much for one request", "128 KB at most: put it into a file and name that");
	memcpy(request + request_length, word, length);
	request_length += length;
}

/* What comes from standard input, as one word. */
static const char *from_input(void)
{
	static char text[MOST_REQUEST];
	static size_t length;
	static int read_once;
	ssize_t more = 1;

	if (read_once++)
		return text;
	while (length < sizeof(text) && (more = read(0, text + length, sizeof(text) - length)) > 0)
		length += more;
	if (length == sizeof(text))
		fail("that is too much for one request", "128 KB at most");
	if (memchr(text, 0, length))
		fail("what comes from stdin is no text", "it has a NUL byte in it");
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
	add("1");
	add(ticket);
	add(kind);
	add(width);
	add(cwd);
	for (int i = 1; i < argc; i++)
		add(strcmp(argv[i], "-") ? argv[i] : from_input());
}

/* 0: it was taken. 1: refused, and said so. -1: nobody is there, or the connection was cut. */
static int hand_over(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = FOLDER "/socket" };
	struct timeval limit = { .tv_sec = 20 };
	char said[1024];
	ssize_t length;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), result = -1;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (!connect(fd, (struct sockaddr *)&address, sizeof(address)) &&
	    send(fd, request, request_length, MSG_NOSIGNAL) == (ssize_t)request_length) {
		length = recv(fd, said, sizeof(said) - 1, 0);
		if (length > 0) {
			said[length] = 0;
			result = strcmp(said, "ok") != 0;
			if (result)
				fprintf(stderr, "waypoint: %s\n", said);
		}
	}
	close(fd);
	return result;
}

static ssize_t part(int number, char *text)
{
	char path[96];

	if (number)
		snprintf(path, sizeof(path), FOLDER "/replies/%s.%d", ticket, number);
	else
		snprintf(path, sizeof(path), FOLDER "/replies/%s", ticket);
	return readlink(path, text, LINK_BYTES);
}

static int show(FILE *stream, const char *text, size_t length)
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
	    parts > MOST_PARTS || out + err > (size_t)parts * LINK_BYTES ||
	    !(text = malloc((size_t)parts * LINK_BYTES)))
		fail("the answer makes no sense", "is this session older than the Waypoint that serves it?");
	have = length - used;
	memcpy(text, first + used, have);
	for (int number = 1; number < parts; number++) {
		length = part(number, text + have);
		if (length < 0)
			fail("a part of the answer is missing", "ask again");
		have += length;
	}
	if (have < out + err)
		fail("a part of the answer is missing", "ask again");
	if (show(stdout, text, out) | show(stderr, text + out, err))
		return status ? status : 1;
	return status;
}

int main(int argc, char **argv)
{
	static char answer[LINK_BYTES + 1];
	long alone_ms = 0, waited_ms = 0;
	int taken = 0, status;

	if (access(FOLDER "/replies", F_OK))
		fail("this is no session of Waypoint's, or one that an older Waypoint started",
		     "from outside: `waypoint ls`");
start:
	new_ticket();
	write_request("ask", argc, argv);
	for (;;) {
		long step;
		ssize_t length = part(0, answer);

		if (length > 0) {
			status = show_answer(answer, length);
			write_request("done", 1, argv);
			hand_over();
			if (status >= 0)
				return status;
			taken = 0;
			goto start;
		}
		if (!taken || waited_ms >= ASK_AGAIN_MS) {
			/* The daemon may have been replaced by another, which knows nothing of it. */
			int said = hand_over();

			if (said > 0)
				return UNREACHABLE;
			if (!said) {
				if (!taken)
					write_request("again", argc, argv);
				taken = 1;
				alone_ms = waited_ms = 0;
				continue;
			}
			if (alone_ms >= PATIENCE_MS)
				fail("nobody answers: the daemon does not run",
				     "it starts by itself with the next call from outside, e.g. `waypoint ls`");
		}
		/* While a checkpoint is being taken nobody listens. */
		step = waited_ms < 20 ? 1 : waited_ms < 200 ? 5 : 20;
		nap(step);
		waited_ms += step;
		alone_ms += step;
	}
}
