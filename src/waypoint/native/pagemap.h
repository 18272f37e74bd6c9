/* CRIU's images of memory, as they are read.

   pages-N.img has nothing but pages; pagemap-PID.img has two magic numbers, then messages with their length in front: a
   head with N, then one per range of memory, in the order of the pages. mm-PID.img has the areas that memory consists of. */

#ifndef PAGEMAP_H
#define PAGEMAP_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reason.h"
#include "waypoint.h"

#define IN_PARENT 0x1
#define LAZY 0x2 /* CRIU leaves it to a page server, where there is one */
#define PRESENT 0x4
#define MAGICS 8
#define MAX_ADDRESS (1ULL << 57)

struct range {
	uint64_t address, pages, flags;
	uint64_t offset; /* of its first page in the file of pages */
};
struct map {
	char magics[MAGICS];
	uint32_t number; /* of the file of pages */
	struct range *ranges;
	size_t count, room;
	uint64_t bytes;
};
static int take_varint(const unsigned char **at, const unsigned char *end, uint64_t *number)
{
	*number = 0;
	for (int shift = 0; *at < end && shift < 64; shift += 7) {
		unsigned char byte = *(*at)++;

		*number |= (uint64_t)(byte & 0x7f) << shift;
		if (byte < 0x80)
			return 0;
	}
	return -1;
}

/* The fields of one message, all of them numbers. `seen` has a bit for each field that is there. */
static int take_message(const unsigned char *at, const unsigned char *end, uint64_t *fields, unsigned *seen)
{
	*seen = 0;
	while (at < end) {
		uint64_t key, value;

		if (take_varint(&at, end, &key) || key & 7 || key >> 3 > 7 || take_varint(&at, end, &value))
			return -1;
		fields[key >> 3] = value;
		*seen |= 1u << (key >> 3);
	}
	return 0;
}

static int add_range(struct map *map, struct range range)
{
	if (map->count == map->room) {
		size_t room = map->room ? map->room * 2 : 256;
		void *larger = realloc(map->ranges, room * sizeof(range));

		if (!larger)
			return fail_because("out of memory");
		map->ranges = larger;
		map->room = room;
	}
	map->ranges[map->count++] = range;
	return 0;
}

/* 0; 1 when there is no such file; -1. */
static int read_map(int folder, const char *name, struct map *map)
{
	int fd = openat(folder, name, O_RDONLY | O_CLOEXEC), result = -1;
	unsigned char *data = NULL;
	const unsigned char *at, *end;
	struct stat info;

	memset(map, 0, sizeof(*map));
	if (fd < 0)
		return errno == ENOENT ? 1 : fail_because("%s: %s", name, strerror(errno));
	if (fstat(fd, &info) || !(data = malloc(info.st_size + 1)) || read(fd, data, info.st_size) != info.st_size ||
	    info.st_size < MAGICS) {
		fail_because("%s: %s", name, strerror(errno));
		goto out;
	}
	memcpy(map->magics, data, MAGICS);
	for (at = data + MAGICS, end = data + info.st_size; at + 4 <= end;) {
		uint64_t fields[8] = { 0 };
		uint32_t length;
		unsigned seen;

		memcpy(&length, at, 4);
		at += 4;
		if (length > end - at || take_message(at, at + length, fields, &seen)) {
			fail_because("%s is not understood", name);
			goto out;
		}
		if (at == data + MAGICS + 4) {
			map->number = fields[1];
		} else {
			/* vaddr, compat_nr_pages, in_parent, flags, nr_pages */
			struct range range = { .address = fields[1], .pages = seen & 1 << 5 ? fields[5] : fields[2],
					       .flags = fields[4], .offset = map->bytes };

			if (!(seen & 1 << 4)) {
				fail_because("%s is of an older kind", name);
				goto out;
			}
			if (range.address % PAGE || range.address > MAX_ADDRESS || range.pages > MAX_ADDRESS / PAGE) {
				fail_because("%s is not understood", name);
				goto out;
			}
			if (range.flags & PRESENT)
				map->bytes += range.pages * PAGE;
			if (add_range(map, range))
				goto out;
		}
		at += length;
	}
	result = 0;
out:
	if (result) {
		free(map->ranges);
		map->ranges = NULL;
	}
	free(data);
	close(fd);
	return result;
}

#endif
