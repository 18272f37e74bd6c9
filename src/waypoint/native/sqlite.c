/* Finds where SQLite remembers which file a descriptor leads to.

   SQLite keeps one record for each file that a process has open, however many connections there are, because POSIX locks
   belong to the process. It recognizes the file by its device and inode number. After a restore every file system has
   another device number: SQLite would take the file for another one, and lose locks and a write-ahead log that are in use.
   So the number in the record has to be changed before the processes run (engine/sqlite.py).

     sqlite PID DEVICE FD:INODE ...

   prints a line for each record, "FD ADDRESS HOLDER", and "ok" at the end, or the reason why not. It reads the memory of
   the process and writes nothing.

   A record starts with the device and the inode (struct unixFileId in struct unixInodeInfo). Two numbers alone may be
   anything. So there also has to be an object that leads to the record: in struct unixFile the record's address is
   followed by the descriptor. HOLDER is the place of that address.

   SQLite allocates both from the heap, among much else that is small. So large areas are looked at only when that was not
   enough. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "reason.h"
#include "waypoint.h"

#define WORDS_AT_ONCE (1 << 16)
#define PAGES_AT_ONCE 4096
#define MAX_FILES 1024
#define LARGE_BYTES (64ULL << 20)

static uint64_t device;
static struct file {
	int fd, is_found;
	uint64_t inode;
} files[MAX_FILES];
static int file_count;

struct record {
	uint64_t address, inode;
};
static struct record *records;
static size_t record_count, record_room;

static int memory, pagemap;
static FILE *answer;

/* ---- what a word means ----------------------------------------------------------------------- */

static int add_record(uint64_t address, uint64_t inode)
{
	if (record_count == record_room) {
		size_t room = record_room ? 2 * record_room : 64;
		struct record *grown = reallocarray(records, room, sizeof(*records));

		if (!grown)
			return fail_because("%s", strerror(errno));
		records = grown;
		record_room = room;
	}
	records[record_count++] = (struct record){ address, inode };
	return 0;
}

/* Looks for device and inode. There is a word behind the last one. */
static int find_records(uint64_t address, const uint64_t *words, size_t count)
{
	for (size_t at = 0; at < count; at++) {
		if (words[at] != device)
			continue;
		for (int i = 0; i < file_count; i++)
			if (words[at + 1] == files[i].inode) {
				if (add_record(address + at * sizeof(*words), words[at + 1]))
					return -1;
				break;
			}
	}
	return 0;
}

static int compare(const void *key, const void *entry)
{
	uint64_t address = *(const uint64_t *)key, other = ((const struct record *)entry)->address;

	return address < other ? -1 : address > other;
}

/* Looks for what leads to a record. */
static int find_holders(uint64_t address, const uint64_t *words, size_t count)
{
	uint64_t first = records[0].address, last = records[record_count - 1].address;

	for (size_t at = 0; at < count; at++) {
		const struct record *record;

		if (words[at] < first || words[at] > last)
			continue;
		record = bsearch(&words[at], records, record_count, sizeof(*records), compare);
		for (int i = 0; record && i < file_count; i++)
			if ((int32_t)words[at + 1] == files[i].fd && record->inode == files[i].inode) {
				files[i].is_found = 1;
				fprintf(answer, "%d %llx %llx\n", files[i].fd, (unsigned long long)record->address,
					(unsigned long long)(address + at * sizeof(*words)));
			}
	}
	return 0;
}

/* ---- reading memory -------------------------------------------------------------------------- */

typedef int look(uint64_t address, const uint64_t *words, size_t count);

/* One word more is read than is looked at: what is sought has two. */
static int look_at_present(uint64_t start, uint64_t end, look *found)
{
	static uint64_t words[WORDS_AT_ONCE + 1];

	while (start < end) {
		ssize_t length = pread(memory, words, sizeof(words), (off_t)start);
		size_t count, left = (end - start) / sizeof(*words);

		if (length < (ssize_t)sizeof(*words))
			return 0; /* gone, or not to be read */
		count = length / sizeof(*words);
		words[count] = 0;
		if (count > left)
			count = left;
		if (count > WORDS_AT_ONCE)
			count = WORDS_AT_ONCE;
		if (found(start, words, count))
			return -1;
		start += count * sizeof(*words);
	}
	return 0;
}

/* Absent memory is not looked at: the kernel would have to make it first. */
static int look_at_area(uint64_t start, uint64_t end, look *found)
{
	static uint64_t entries[PAGES_AT_ONCE];
	uint64_t present = end; /* where a row of present pages began */

	while (start < end) {
		uint64_t pages = (end - start) / PAGE;
		size_t wanted = (pages < PAGES_AT_ONCE ? pages : PAGES_AT_ONCE) * sizeof(*entries);
		ssize_t length = pread(pagemap, entries, wanted, (off_t)(start / PAGE * sizeof(*entries)));

		if (length < (ssize_t)sizeof(*entries))
			return fail_because("its pages cannot be read: %s", strerror(errno));
		for (size_t i = 0; i < length / sizeof(*entries); i++, start += PAGE) {
			int is_present = !!(entries[i] >> 62); /* or swapped out */

			if (is_present && present == end) {
				present = start;
			} else if (!is_present && present != end) {
				if (look_at_present(present, start, found))
					return -1;
				present = end;
			}
		}
	}
	return look_at_present(present, end, found);
}

/* All private memory that can be written, in areas that are not larger; and the heap. */
static int look_at_process(const char *pid, uint64_t largest, look *found)
{
	char path[64], *line = NULL;
	size_t room = 0;
	int failed = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	maps = fopen(path, "re");
	if (!maps)
		return fail_because("process %s: %s", pid, strerror(errno));
	while (!failed && getline(&line, &room, maps) > 0) {
		unsigned long long start, end;
		char flags[5];

		if (sscanf(line, "%llx-%llx %4s", &start, &end, flags) == 3 && flags[0] == 'r' && flags[1] == 'w' &&
		    flags[3] == 'p' && (end - start <= largest || strstr(line, "[heap]")))
			failed = look_at_area(start, end, found);
	}
	free(line);
	fclose(maps);
	return failed;
}

static int open_of(const char *pid, const char *name)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fail_because("process %s: %s", pid, strerror(errno));
	return fd;
}

static int find_all(const char *pid, uint64_t largest)
{
	record_count = 0;
	return look_at_process(pid, largest, find_records) ||
	       (record_count && look_at_process(pid, largest, find_holders));
}

static int all_found(void)
{
	for (int i = 0; i < file_count; i++)
		if (!files[i].is_found)
			return 0;
	return 1;
}

int main(int argc, char **argv)
{
	char *text = NULL;
	size_t length = 0;
	int failed = 0;

	if (argc < 4 || argc - 3 > MAX_FILES)
		failed = fail_because("not a process and its files");
	else
		device = strtoull(argv[2], NULL, 10);
	for (int i = 3; i < argc && !failed; i++) {
		unsigned long long inode;

		if (sscanf(argv[i], "%d:%llu", &files[file_count].fd, &inode) != 2)
			failed = fail_because("not a file: %.40s", argv[i]);
		files[file_count++].inode = inode;
	}
	if (!failed) {
		memory = open_of(argv[1], "mem");
		pagemap = memory < 0 ? -1 : open_of(argv[1], "pagemap");
		answer = open_memstream(&text, &length);
		failed = !answer || pagemap < 0 || find_all(argv[1], LARGE_BYTES);
		if (!failed && !all_found()) {
			rewind(answer);
			failed = find_all(argv[1], UINT64_MAX);
		}
	}
	if (answer && !fclose(answer) && !failed)
		fwrite(text, 1, length, stdout);
	printf("%s\n", failed ? reason : "ok");
	return failed;
}
