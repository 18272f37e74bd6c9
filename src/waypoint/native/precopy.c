/* Copies the watched memory of a process while it runs.

     precopy PID FILE

   The process as the host numbers it; the file for its pages, by its descriptor. First all of its memory that is watched
   (tracking.py) is protected, then it is copied: what is written meanwhile or later loses its protection, and is
   copied once more when the process stands still. Whatever still has it then is what was copied here.

   On standard output, in the order of the pages: one line "ADDRESS PAGES" for each stretch, and "ok". */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

/* PAGEMAP_SCAN of linux/fs.h, which the headers of this machine may be too old for. */
#define SCAN 0xc0606610UL
#define SCAN_WP_MATCHING 0x1
#define IS_WPALLOWED 0x01
#define IS_WRITTEN 0x02
#define IS_PRESENT 0x08
#define IS_SWAPPED 0x10
#define IS_PFNZERO 0x20
#define END_OF_MEMORY 0x7ffffffff000ULL
#define REGIONS 4096
#define PAGE 4096ULL
#define MOST_BYTES (64ULL << 20) /* at once */

struct scan {
	uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages, inverted, all_of, any_of, told;
};
struct region {
	uint64_t start, end, categories;
};

static struct region *found;
static size_t count;

/* Goes through all memory with those properties; with `keep` what is found is kept. */
static int scan_all(int pagemap, uint64_t flags, uint64_t wanted, int keep)
{
	static struct region regions[REGIONS];
	struct scan scan = { .size = sizeof(scan), .flags = flags, .end = END_OF_MEMORY, .regions = (uintptr_t)regions,
			     .region_count = REGIONS, .inverted = IS_PFNZERO, .all_of = wanted | IS_PFNZERO,
			     .any_of = IS_PRESENT | IS_SWAPPED, .told = IS_WPALLOWED };

	while (scan.start < scan.end) {
		long got = ioctl(pagemap, SCAN, &scan);

		if (got < 0 || scan.walk_end <= scan.start)
			return -1;
		if (keep && got) {
			struct region *larger = realloc(found, (count + got) * sizeof(*found));

			if (!larger)
				return -1;
			found = larger;
			memcpy(found + count, regions, got * sizeof(*found));
			count += got;
		}
		scan.start = scan.walk_end;
	}
	return 0;
}

static int by_address(const void *one, const void *other)
{
	uint64_t a = ((const struct region *)one)->start, b = ((const struct region *)other)->start;

	return a < b ? -1 : a > b;
}

/* The kernel's own code in the process: CRIU expects it in all images, since it never changes. */
static int add_vdso(pid_t pid)
{
	char path[64], line[512];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "re");
	if (!maps)
		return -1;
	while (fgets(line, sizeof(line), maps)) {
		unsigned long start, end;
		struct region *larger;

		if (!strstr(line, "[vdso]") || sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		larger = realloc(found, (count + 1) * sizeof(*found));
		if (!larger)
			break;
		found = larger;
		found[count++] = (struct region){ start, end, 0 };
	}
	fclose(maps);
	qsort(found, count, sizeof(*found), by_address);
	return 0;
}

static int copy(pid_t pid, int file)
{
	uint64_t total = 0, at = 0;
	char *pages;

	for (size_t i = 0; i < count; i++)
		total += found[i].end - found[i].start;
	if (!total)
		return 0;
	/* As long as it will be from the start, or it would not be made of huge pages. */
	if (ftruncate(file, total))
		return -1;
	pages = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (pages == MAP_FAILED)
		return -1;
	for (size_t i = 0; i < count; i++) {
		uint64_t start = found[i].start, from = start;

		while (from < found[i].end) {
			uint64_t length = found[i].end - from < MOST_BYTES ? found[i].end - from : MOST_BYTES;
			struct iovec ours = { pages + at, length }, theirs = { (void *)from, length };
			ssize_t got = process_vm_readv(pid, &ours, 1, &theirs, 1, 0);

			if (got < 0 && errno == ESRCH)
				return -1;
			if (got > 0) {
				got -= got % PAGE;
				at += got;
				from += got;
			}
			if (got <= 0 || (uint64_t)got < length) {
				/* It is not there any more, or not to be read: left out. */
				if (from > start)
					printf("%llx %llu\n", (unsigned long long)start, (unsigned long long)(from - start) / PAGE);
				from += got <= 0 ? PAGE : 0;
				start = from;
			}
		}
		if (from > start)
			printf("%llx %llu\n", (unsigned long long)start, (unsigned long long)(from - start) / PAGE);
	}
	munmap(pages, total);
	return ftruncate(file, at);
}

int main(int argc, char **argv)
{
	char path[64];
	int pagemap;

	if (argc != 3)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	snprintf(path, sizeof(path), "/proc/%d/pagemap", atoi(argv[1]));
	pagemap = open(path, O_RDONLY | O_CLOEXEC);
	if (pagemap < 0 || scan_all(pagemap, SCAN_WP_MATCHING, IS_WPALLOWED | IS_WRITTEN, 0) ||
	    scan_all(pagemap, 0, IS_WPALLOWED, 1) || add_vdso(atoi(argv[1])) || copy(atoi(argv[1]), atoi(argv[2]))) {
		printf("%s\n", strerror(errno));
		return 1;
	}
	printf("ok\n");
	return 0;
}
