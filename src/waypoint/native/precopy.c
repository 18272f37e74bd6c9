/* Copies the tracked memory of a process while it runs.

     precopy PID FILE

   The process by its number on the host; the file for its pages by its descriptor. First all of the memory that is
   tracked (engine/memory.py) is protected, then it is copied. A page that is written meanwhile or later loses its
   protection, and is copied once more when the process stands still. A page that still has it then is as copied here.

   On standard output, in the order of the pages: one line "ADDRESS PAGES" for each range, and "ok". */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tracee.h"
#include "waypoint.h"

#define MAX_BYTES (64ULL << 20) /* at once */

static struct region *ranges;
static size_t range_count;

static int add_ranges(const struct region *more, size_t count)
{
	struct region *larger = realloc(ranges, (range_count + count) * sizeof(*ranges));

	if (!larger)
		return -1;
	ranges = larger;
	memcpy(ranges + range_count, more, count * sizeof(*ranges));
	range_count += count;
	return 0;
}

/* Goes through all memory of these categories; with `add` the ranges are added to the list. */
static int scan_all(int pagemap, uint64_t flags, uint64_t categories, int add)
{
	static struct region regions[SCAN_REGIONS];
	struct scan scan = { .size = sizeof(scan), .flags = flags, .end = END_OF_MEMORY, .regions = (uintptr_t)regions,
			     .region_count = SCAN_REGIONS, .inverted = IS_PFNZERO, .all_of = categories | IS_PFNZERO,
			     .any_of = IS_PRESENT | IS_SWAPPED, .returned = IS_WPALLOWED };

	while (scan.start < scan.end) {
		long count = ioctl(pagemap, SCAN, &scan);

		if (count < 0 || scan.walk_end <= scan.start || (add && count && add_ranges(regions, count)))
			return -1;
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
	unsigned long start, end;

	if (!find_vdso(pid, &start, &end) && add_ranges(&(struct region){ start, end, 0 }, 1))
		return -1;
	qsort(ranges, range_count, sizeof(*ranges), by_address);
	return 0;
}

static void print_range(uint64_t start, uint64_t end)
{
	if (end > start)
		printf("%llx %llu\n", (unsigned long long)start, (unsigned long long)(end - start) / PAGE);
}

static int copy(pid_t pid, int file)
{
	uint64_t total = 0, at = 0;
	char *pages;

	for (size_t i = 0; i < range_count; i++)
		total += ranges[i].end - ranges[i].start;
	if (!total)
		return 0;
	/* It gets its full length first: otherwise it would not be made of huge pages. */
	if (ftruncate(file, total))
		return -1;
	pages = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (pages == MAP_FAILED)
		return -1;
	for (size_t i = 0; i < range_count; i++) {
		uint64_t start = ranges[i].start, from = start;

		while (from < ranges[i].end) {
			uint64_t length = ranges[i].end - from < MAX_BYTES ? ranges[i].end - from : MAX_BYTES;
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
				/* The page is gone, or cannot be read: left out. */
				print_range(start, from);
				from += got <= 0 ? PAGE : 0;
				start = from;
			}
		}
		print_range(start, from);
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
