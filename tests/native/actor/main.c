#include "actor.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MAX_OPERATIONS 32768

struct control *control;
const char *script_path;
int descriptors[MAX_DESCRIPTORS], descriptor_count, mapping_count;
struct mapping mappings[MAX_MAPPINGS];
static struct operation *operations;
static int operation_count, slot = -1;

static void die(const char *what)
{
	fprintf(stderr, "actor: %s: %s\n", what, strerror(errno));
	exit(1);
}

long tried(long result)
{
	if (result < 0)
		atomic_fetch_add(&control->failed, 1);
	return result;
}

int keep(int fd)
{
	if (tried(fd) >= 0 && descriptor_count < MAX_DESCRIPTORS)
		descriptors[descriptor_count++] = fd;
	return fd;
}

int descriptor(long number)
{
	return descriptor_count ? descriptors[number % descriptor_count] : -1;
}

const char *file_name(long number)
{
	static char name[4][16];
	static int turn;
	char *text = name[turn++ % 4];

	snprintf(text, sizeof(name[0]), "file%ld", number);
	return text;
}

/* ---- the script ------------------------------------------------------------------------------ */

/* The operations are in memory that is not written again: it is equal in all processes. */
static void read_script(void)
{
	int open_blocks[64], depth = 0;
	FILE *script = fopen(script_path, "re");
	char line[256];

	operations = mmap(NULL, MAX_OPERATIONS * sizeof(*operations), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!script || operations == MAP_FAILED)
		die(script_path);
	while (fgets(line, sizeof(line), script)) {
		struct operation *o = &operations[operation_count];
		char *rest_of_line, *word = strtok_r(line, " \n", &rest_of_line);

		if (!word)
			continue;
		if (*word == '}') {
			operations[open_blocks[--depth]].end = operation_count;
			continue;
		}
		o->at = operation_count;
		snprintf(o->name, sizeof(o->name), "%s", word);
		for (int i = 0; (word = strtok_r(NULL, " \n", &rest_of_line)); i++)
			if (*word == '{')
				open_blocks[depth++] = operation_count;
			else if (i < MAX_NUMBERS)
				o->number[i] = strtol(word, NULL, 10);
		if (++operation_count == MAX_OPERATIONS || depth == 64) {
			errno = E2BIG;
			die(script_path);
		}
	}
	fclose(script);
	mprotect(operations, MAX_OPERATIONS * sizeof(*operations), PROT_READ);
}

static void operate(const struct operation *o)
{
	static const struct operator *tables[] = { process_operators, file_operators, socket_operators, memory_operators };

	for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++)
		for (const struct operator *candidate = tables[i]; candidate->name; candidate++)
			if (!strcmp(candidate->name, o->name)) {
				candidate->run(o);
				return;
			}
	fprintf(stderr, "actor: no operation %s\n", o->name);
	_exit(2);
}

void run(int from, int to)
{
	for (int i = from; i < to; i = operations[i].end ? operations[i].end : i + 1)
		operate(&operations[i]);
}

void run_and_rest(int from, int to)
{
	run(from, to);
	rest();
}

/* ---- at rest --------------------------------------------------------------------------------- */

static void answer(unsigned int round)
{
	if (slot < 0)
		slot = (int)atomic_fetch_add(&control->actors, 1);
	if (slot >= MAX_ACTORS)
		return;
	control->answer[slot].pid = (int32_t)syscall(SYS_getpid);
	describe_self(control->answer[slot].text, ANSWER_BYTES);
	atomic_store(&control->answer[slot].round, round);
}

void rest(void)
{
	unsigned int round = atomic_load(&control->round);

	slot = -1;
	atomic_fetch_sub(&control->busy, 1);
	for (;;) {
		unsigned int now = atomic_load(&control->round);

		if (now != round)
			answer(round = now);
		else
			syscall(SYS_futex, &control->round, FUTEX_WAIT, round, NULL, NULL, 0);
	}
}

static void open_control(int flags)
{
	int fd = open("control", O_RDWR | flags, 0666);

	if (fd < 0 || ftruncate(fd, sizeof(*control)))
		die("control");
	control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (control == MAP_FAILED)
		die("control");
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	script_path = argv[1];
	umask(0);
	if (argc == 4) { /* after an exec, in the folder of a tree; the control file is open */
		int fd = atoi(argv[3]), from = atoi(argv[2]);

		control = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		read_script();
		run_and_rest(from + 1, operations[from].end);
	}
	/* What an operation meets that is not meant to end the process. */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGIO, SIG_IGN);
	open_control(O_CREAT);
	read_script();
	atomic_store(&control->busy, 1);
	for (int i = 0; i < operation_count; i = operations[i].end) {
		char folder[32];
		pid_t pid;

		atomic_fetch_add(&control->busy, 1);
		pid = fork();
		if (pid < 0)
			die("fork");
		if (!pid) {
			snprintf(folder, sizeof(folder), "tree%ld", operations[i].number[0]);
			if (mkdir(folder, 0777) || chdir(folder))
				die(folder);
			setpgid(0, 0);
			run_and_rest(i + 1, operations[i].end);
		}
	}
	rest();
}
