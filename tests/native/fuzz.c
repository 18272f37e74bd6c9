/* Feeds mutated input to the readers of the native programs, built with address and undefined-behaviour sanitizers
   (`make native-check`). A driver of our own: it needs nothing but gcc.

     fuzz SECONDS [SEED]

   One program per target, chosen by -DTARGET_PLAN, -DTARGET_REQUEST, -DTARGET_START or -DTARGET_FLATTEN. The seed of a
   run is printed; the same seed gives the same inputs. */

#define main program_main
#if defined(TARGET_PLAN) || defined(TARGET_REQUEST)
#include "../../src/waypoint/native/keeper.c"
#elif defined(TARGET_START)
#include "../../src/waypoint/native/anchor.c"
#elif defined(TARGET_FLATTEN)
#include "../../src/waypoint/native/flatten.c"
#endif
#undef main

#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#define INPUT_BYTES (PACKET_BYTES - 1)

struct input {
	const char *data;
	size_t length;
};

#define INPUT(text) { text, sizeof(text) - 1 }

/* ---- targets --------------------------------------------------------------------------------- */

#if defined(TARGET_PLAN)
static const struct input corpus[] = {
	INPUT("unshare\0" "0x20000\0" "fork\0" "mount\0" "none\0/\0\0" "0x44000\0\0" "pivot\0"),
	INPUT("in-bind\0/host\0/box\0" "4096\0" "in-folder\0/a/b\0" "755\0" "seccomp\0" "00ff\0" "terminal\0" "24\0" "80\0"),
	INPUT("hostname\0name"),
	INPUT("userns\0" "1879048192\0" "65536\0" "0x20000\0" "idmap\0/a\0/b\0" "chdir\0/\0" "chroot\0/b\0" "in-idmap\0/c\0"),
};

static void try_input(char *data, size_t length)
{
	for (char *word = data; word && word < data + length;) {
		const struct operation *operation;
		char *arguments[MAX_ARGUMENTS] = { 0 };

		word = read_operation(word, data + length, &operation, arguments);
		for (int i = 0; word && i < operation->arguments; i++)
			if (arguments[i] + strlen(arguments[i]) > data + length)
				abort();
	}
}
#elif defined(TARGET_REQUEST)
static const struct input corpus[] = {
	INPUT("run\0join\0" "2\0PATH=/none\0A=b\0/dev/waypoint/criu/criu\0swrk\0" "3\0"),
	INPUT("ptys\0" "1\0" "2\0" "127\0"),
	INPUT("hello\0"),
};

static void try_input(char *data, size_t length)
{
	char **list = malloc((MAX_WORDS + 1) * sizeof(*list)), *env[MAX_VARIABLES + 1], **argv;
	int count = split_words(data, length, list);

	if (count > 0 && (argv = read_run(list, count, env)))
		for (int i = 0; argv[i]; i++)
			if (!*argv || strlen(argv[i]) > length)
				abort();
	free(list);
}
#elif defined(TARGET_START)
static const struct input corpus[] = {
	INPUT("shell\0/root\0" "2\0bash\0-i\0" "2\0PATH=/bin\0TERM=xterm\0"),
	INPUT("program\0/\0" "1\0true\0" "0\0"),
};

static void try_input(char *data, size_t length)
{
	struct program program;
	size_t total = 1;

	request = data;
	words = malloc(WORDS_BYTES);
	if (!read_request(length, &program)) {
		for (char **word = program.argv; *word; word++)
			total += strlen(*word);
		for (char **word = program.env; *word; word++)
			total += strlen(*word);
		if (!total || !program.cwd)
			abort();
	}
	free(words);
}
#elif defined(TARGET_FLATTEN)
/* The pagemap of the images, up to the word "PARENT", and then the pagemap of the parent. */
#define HEAD "\x19\x43\x56\x54\x25\x40\x08\x56\x02\0\0\0\x08\x01"
static const struct input corpus[] = {
	INPUT(HEAD "\x0a\0\0\0\x08\x80\x80\x04\x10\0\x20\x01\x28\x04" "\x0a\0\0\0\x08\x80\x80\x05\x10\0\x20\x04\x28\x02" "PARENT"
	      HEAD "\x0a\0\0\0\x08\x80\x80\x04\x10\0\x20\x04\x28\x08"),
	INPUT(HEAD "\x0a\0\0\0\x08\x80\x80\x04\x10\0\x20\x04\x28\x10" "PARENT"
	      HEAD "\x0a\0\0\0\x08\x80\x80\x04\x10\0\x20\x04\x28\x10"),
	/* What follows is read as the areas of memory too. */
	INPUT(HEAD "\x0a\0\0\0\x08\x80\x80\x04\x10\0\x20\x01\x28\x04" "PARENT"
	      "\x19\x43\x56\x54\x25\x40\x08\x56\x10\0\0\0\x08\x01\x72\x0c\x08\x80\x80\x04\x10\x80\x80\x06\x30\x22\x38\x01"),
};

static void write_file(int folder, const char *name, const char *data, size_t length)
{
	int fd = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, data, length) != (ssize_t)length)
		abort();
	close(fd);
}

static void try_input(char *data, size_t length)
{
	static const char *files[] = { "pages-1.img", "pages-1.img.new", "pagemap-7.img", "pagemap-7.img.new" };
	static char path[] = "fuzz-XXXXXX", pages[16 * 4096]; /* below the current folder */
	static int folders[3];
	char *parent = memmem(data, length, "PARENT", 6);
	size_t split = parent ? (size_t)(parent - data) : length;

	if (!*folders) {
		if (!mkdtemp(path))
			abort();
		*folders = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (mkdirat(*folders, "1", 0700) || mkdirat(*folders, "2", 0700))
			abort();
		folders[1] = openat(*folders, "1", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		folders[2] = openat(*folders, "2", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	*reason = 0;
	write_file(folders[0], "pages-1.img", pages, sizeof(pages));
	write_file(folders[0], "pagemap-7.img", data, split);
	write_file(folders[0], "mm-7.img", parent ? parent + 6 : data, parent ? length - split - 6 : length);
	write_file(folders[1], "pages-1.img", pages, sizeof(pages));
	write_file(folders[1], "pagemap-7.img", parent ? parent + 6 : data, parent ? length - split - 6 : length);
	share_process(folders[0], folders[1], "pagemap-7.img");
	flatten(folders[0], folders[1], folders[2], "pagemap-7.img", 1);
	for (int i = 0; i < 3; i++)
		for (size_t j = 0; j < sizeof(files) / sizeof(*files); j++)
			unlinkat(folders[i], files[j], 0);
}
#endif

/* ---- the driver ------------------------------------------------------------------------------ */

static uint64_t state;

static uint64_t draw(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return below ? state % below : 0;
}

/* Changes `data`, which has room for INPUT_BYTES bytes, in one way. Returns its new length. */
static size_t mutate(char *data, size_t length)
{
	static const char special[] = { 0, 1, -1, 127, -128, '9', '-', '/' };
	size_t at = draw(length + 1), count = 1 + draw(draw(8) ? 8 : 4096);

	switch (draw(6)) {
	case 0: /* another byte */
		if (at < length)
			data[at] = draw(2) ? special[draw(sizeof(special))] : (char)draw(256);
		return length;
	case 1: /* one bit */
		if (at < length)
			data[at] ^= 1 << draw(8);
		return length;
	case 2: /* cut off */
		return at;
	case 3: /* some bytes less */
		count = count < length - at ? count : length - at;
		memmove(data + at, data + at + count, length - at - count);
		return length - count;
	case 4: /* some bytes more */
		if (!draw(32))
			count = INPUT_BYTES;
		count = count < INPUT_BYTES - length ? count : INPUT_BYTES - length;
		memmove(data + at + count, data + at, length - at);
		memset(data + at, special[draw(sizeof(special))], count);
		return length + count;
	default: /* a part of it once more */
		count = count < INPUT_BYTES - length ? count : INPUT_BYTES - length;
		count = count < length - at ? count : length - at;
		memmove(data + at + count, data + at, length - at);
		return length + count;
	}
}

int main(int argc, char **argv)
{
	static char data[INPUT_BYTES];
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 20);
	unsigned long long seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (unsigned long long)time(NULL) * 2654435761u;
	unsigned long tried = 0;

	alarm(end - time(NULL) + 30); /* an input that never ends is a failure too */
	state = seed | 1;
	printf("seed %llu\n", seed);
	fflush(stdout);
	for (; tried % 64 || time(NULL) < end; tried++) {
		const struct input *input = &corpus[draw(sizeof(corpus) / sizeof(*corpus))];
		size_t length = input->length;
		char *copy;

		memcpy(data, input->data, length);
		for (uint64_t i = draw(8); i; i--)
			length = mutate(data, length);
		/* As the programs have it: a NUL behind the end, and nothing after that. */
		copy = malloc(length + 1);
		memcpy(copy, data, length);
		copy[length] = 0;
		try_input(copy, length);
		free(copy);
	}
	printf("%lu inputs\n", tried);
	return 0;
}
