/* Makes whole images out of ones that say "as in the parent" for memory that was not written since.

     flatten IMAGES PARENT WHOLE

   Three folders, by their descriptors. CRIU has dumped into IMAGES with PARENT, whose images are whole, to compare with.
   For every process that has memory in PARENT its pages are put together anew in WHOLE (IMAGES itself, or another), in order: what has not changed is cloned from PARENT's file, so that the two share their blocks on disk where the file
   system can do that (copied else), and what has changed is written over it. What was used up is gone from IMAGES.
   Afterwards nobody needs PARENT; each can be deleted alone.

     flatten IMAGES PARENT

   Both are whole already: what they have in common is shared on disk, for when nobody is in a hurry. What is in the
   files stays as it is.

   CRIU's images of memory: pages-N.img has nothing but pages; pagemap-PID.img has two magic numbers, then
   messages with their length in front: a head with N, then one per stretch of memory, in the order of the pages.
   Everything is written to new files which get their names only when all of it is there. "ok\n", or a line with
   the reason, goes to standard output. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PAGE 4096ULL
#define IN_PARENT 0x1
#define PRESENT 0x4
#define MAGICS 8
#define COPY_BYTES (1 << 20)
#define SCATTERED "trusted.waypoint.scattered"
#define FEW_CUTS 4096
#define PAGES_PER_CUT 8
#define FEWEST_PAGES 4 /* shorter runs are not worth an extent of their own */
#define SHARE_BYTES (16ULL << 20)

struct stretch {
	uint64_t address, pages, flags;
	uint64_t offset; /* of its first page in the file of pages */
};
struct map {
	char magics[MAGICS];
	uint32_t number; /* of the file of pages */
	struct stretch *stretches;
	size_t count, room;
	uint64_t bytes;
};
struct piece { /* of the new file: where it comes from */
	uint64_t target, source, length;
	int from_parent;
};

static char reason[300];

static int because(const char *format, ...)
{
	va_list more;

	if (!*reason) {
		va_start(more, format);
		vsnprintf(reason, sizeof(reason), format, more);
		va_end(more);
	}
	return -1;
}

/* ---- pagemaps -------------------------------------------------------------------------------- */

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

/* The fields of one message, all of them numbers; which there are is told by `seen`. */
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

static int add(struct map *map, struct stretch one)
{
	if (map->count == map->room) {
		size_t room = map->room ? map->room * 2 : 256;
		void *larger = realloc(map->stretches, room * sizeof(one));

		if (!larger)
			return because("out of memory");
		map->stretches = larger;
		map->room = room;
	}
	map->stretches[map->count++] = one;
	return 0;
}

/* 0, 1 when there is no such file, -1. */
static int read_map(int folder, const char *name, struct map *map)
{
	int fd = openat(folder, name, O_RDONLY | O_CLOEXEC), result = -1;
	unsigned char *data = NULL;
	const unsigned char *at, *end;
	struct stat about;

	memset(map, 0, sizeof(*map));
	if (fd < 0)
		return errno == ENOENT ? 1 : because("%s: %s", name, strerror(errno));
	if (fstat(fd, &about) || !(data = malloc(about.st_size + 1)) || read(fd, data, about.st_size) != about.st_size ||
	    about.st_size < MAGICS) {
		because("%s: %s", name, strerror(errno));
		goto out;
	}
	memcpy(map->magics, data, MAGICS);
	for (at = data + MAGICS, end = data + about.st_size; at + 4 <= end;) {
		uint64_t fields[8] = { 0 };
		unsigned seen;
		uint32_t length;

		memcpy(&length, at, 4);
		at += 4;
		if (length > end - at || take_message(at, at + length, fields, &seen)) {
			because("%s is not understood", name);
			goto out;
		}
		if (at == data + MAGICS + 4) {
			map->number = fields[1];
		} else {
			/* vaddr, compat_nr_pages, in_parent, flags, nr_pages */
			struct stretch one = { .address = fields[1], .pages = seen & 1 << 5 ? fields[5] : fields[2],
					       .flags = fields[4], .offset = map->bytes };

			if (!(seen & 1 << 4)) {
				because("%s is of an older kind", name);
				goto out;
			}
			if (one.flags & PRESENT)
				map->bytes += one.pages * PAGE;
			if (add(map, one))
				goto out;
		}
		at += length;
	}
	result = 0;
out:
	free(data);
	close(fd);
	return result;
}

static unsigned char *put_varint(unsigned char *at, uint64_t number)
{
	for (; number > 0x7f; number >>= 7)
		*at++ = (number & 0x7f) | 0x80;
	*at++ = number;
	return at;
}

static int put_message(FILE *file, const uint64_t *fields, unsigned which)
{
	unsigned char body[64], *end = body;
	uint32_t length;

	for (int field = 1; field < 8; field++)
		if (which & 1u << field) {
			end = put_varint(end, field << 3);
			end = put_varint(end, fields[field]);
		}
	length = end - body;
	return fwrite(&length, 4, 1, file) == 1 && fwrite(body, length, 1, file) == 1 ? 0 : -1;
}

static int write_map(int folder, const char *name, const struct map *map)
{
	uint64_t fields[8] = { 0 };
	int fd = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), failed;
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");

	if (!file)
		return because("%s: %s", name, strerror(errno));
	failed = fwrite(map->magics, MAGICS, 1, file) != 1;
	fields[1] = map->number;
	failed |= put_message(file, fields, 1 << 1);
	for (size_t i = 0; i < map->count && !failed; i++) {
		fields[1] = map->stretches[i].address;
		fields[2] = 0;
		fields[4] = map->stretches[i].flags;
		fields[5] = map->stretches[i].pages;
		failed |= put_message(file, fields, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5);
	}
	failed |= fclose(file);
	return failed ? because("%s: %s", name, strerror(errno)) : 0;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static int copy(int from, uint64_t source, int to, uint64_t target, uint64_t length)
{
	static char block[COPY_BYTES];

	while (length) {
		size_t part = length < sizeof(block) ? length : sizeof(block);
		ssize_t got = pread(from, block, part, source);

		if (got <= 0)
			return because("a page is not there: %s", got ? strerror(errno) : "the file is too short");
		for (ssize_t put = 0; put < got;) {
			ssize_t done = pwrite(to, block + put, got - put, target + put);

			if (done <= 0)
				return because("pages: %s", strerror(errno));
			put += done;
		}
		source += got;
		target += got;
		length -= got;
	}
	return 0;
}

static int clone(int from, uint64_t source, int to, uint64_t target, uint64_t length)
{
	struct file_clone_range range = { .src_fd = from, .src_offset = source, .src_length = length,
					  .dest_offset = target };
	struct stat about;

	/* A length that reaches behind the end would be cloned as far as there is something. */
	if (fstat(from, &about) || source + length > (uint64_t)about.st_size)
		return because("the parent's pages are not all there");
	if (!ioctl(to, FICLONERANGE, &range))
		return 0;
	if (errno == ENOSPC || errno == EIO || errno == EDQUOT)
		return because("pages: %s", strerror(errno));
	return copy(from, source, to, target, length);
}

/* Where the pages of the new file come from. Stretches that lie behind each other become one. */
static int lay_out(const struct map *ours, const struct map *parent, struct map *whole, struct piece **pieces,
		   size_t *count)
{
	size_t room = 0, at = 0;

	*count = 0;
	for (size_t i = 0; i < ours->count; i++) {
		struct stretch left = ours->stretches[i];

		while (left.pages) {
			struct stretch part = left, *last;
			struct piece one;

			if (left.flags & IN_PARENT) {
				const struct stretch *there;

				while (at < parent->count && parent->stretches[at].address +
				       parent->stretches[at].pages * PAGE <= left.address)
					at++;
				there = &parent->stretches[at];
				if (at == parent->count || there->address > left.address || !(there->flags & PRESENT))
					return because("memory at %llx is not in the parent",
						       (unsigned long long)left.address);
				part.offset = there->offset + (left.address - there->address);
				part.flags = there->flags;
				if (there->address + there->pages * PAGE < left.address + left.pages * PAGE)
					part.pages = there->pages - (left.address - there->address) / PAGE;
			} else if (!(left.flags & PRESENT)) {
				return because("memory at %llx is nowhere", (unsigned long long)left.address);
			}
			one = (struct piece){ .target = whole->bytes, .source = part.offset,
					      .length = part.pages * PAGE, .from_parent = !!(left.flags & IN_PARENT) };
			if (*count == room) {
				void *larger = realloc(*pieces, (room = room ? room * 2 : 256) * sizeof(one));

				if (!larger)
					return because("out of memory");
				*pieces = larger;
			}
			(*pieces)[(*count)++] = one;
			last = whole->count ? &whole->stretches[whole->count - 1] : NULL;
			if (last && last->address + last->pages * PAGE == part.address && last->flags == part.flags)
				last->pages += part.pages;
			else if (add(whole, part))
				return -1;
			whole->bytes += part.pages * PAGE;
			left.address += part.pages * PAGE;
			left.offset += part.pages * PAGE;
			left.pages -= part.pages;
		}
	}
	return 0;
}

/* How many scattered writes have made a file what it is since it was written in one go. */
static uint64_t scattered(int pages)
{
	uint64_t count;

	return fgetxattr(pages, SCATTERED, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

/* Pages that have not moved among their neighbours are cloned in one go, the changed ones between them too; those
   are written over after that. Each such write cuts the file into more extents, and cloning takes longer the more
   there are: when it has been cut too often, the new file is written in one go. */
static int put_together(const struct piece *pieces, size_t count, uint64_t bytes, int ours, int parent, int whole)
{
	uint64_t cuts = scattered(parent);

	for (size_t i = 0; i < count; i++)
		cuts += !pieces[i].from_parent;
	if (cuts > FEW_CUTS && cuts > bytes / PAGE / PAGES_PER_CUT) {
		for (size_t i = 0; i < count; i++)
			if (copy(pieces[i].from_parent ? parent : ours, pieces[i].source, whole, pieces[i].target,
				 pieces[i].length))
				return -1;
		return 0;
	}
	for (size_t i = 0; i < count;) {
		size_t last = i;

		if (!pieces[i].from_parent) {
			i++;
			continue;
		}
		for (size_t j = i + 1; j < count; j++) {
			if (!pieces[j].from_parent)
				continue;
			if (pieces[j].source - pieces[j].target != pieces[i].source - pieces[i].target)
				break;
			last = j;
		}
		if (clone(parent, pieces[i].source, whole, pieces[i].target,
			  pieces[last].target + pieces[last].length - pieces[i].target))
			return -1;
		i = last + 1;
	}
	for (size_t i = 0; i < count; i++)
		if (!pieces[i].from_parent && copy(ours, pieces[i].source, whole, pieces[i].target, pieces[i].length))
			return -1;
	/* Where there are no extended attributes there are no clones either, and nothing that could be cut. */
	if (fsetxattr(whole, SCATTERED, &cuts, sizeof(cuts), 0) && errno != ENOTSUP)
		return because("pages: %s", strerror(errno));
	return 0;
}

static int open_pages(int folder, uint32_t number, int flags, const char *suffix)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "pages-%u.img%s", number, suffix);
	fd = openat(folder, name, flags | O_CLOEXEC, 0600);
	return fd < 0 ? because("%s: %s", name, strerror(errno)) : fd;
}

static int flatten_one(int images, int parents, int target, const char *name, int elsewhere)
{
	struct map ours, parent, whole = { 0 };
	struct piece *pieces = NULL;
	int our_pages = -1, parent_pages = -1, whole_pages = -1, result = -1, incremental = 0;
	char map_name[300], pages_name[64], new_name[64];
	size_t count;

	if (read_map(images, name, &ours))
		return -1;
	for (size_t i = 0; i < ours.count; i++)
		incremental |= ours.stretches[i].flags & IN_PARENT;
	if (!incremental) {
		free(ours.stretches);
		return 0;
	}
	if (read_map(parents, name, &parent)) {
		free(ours.stretches);
		return because("the parent has no %s", name);
	}
	memcpy(whole.magics, ours.magics, MAGICS);
	whole.number = ours.number;
	snprintf(map_name, sizeof(map_name), "%s.new", name);
	snprintf(pages_name, sizeof(pages_name), "pages-%u.img", ours.number);
	snprintf(new_name, sizeof(new_name), "pages-%u.img.new", ours.number);
	if (lay_out(&ours, &parent, &whole, &pieces, &count) ||
	    (our_pages = open_pages(images, ours.number, O_RDONLY, "")) < 0 ||
	    (parent_pages = open_pages(parents, parent.number, O_RDONLY, "")) < 0 ||
	    (whole_pages = open_pages(target, ours.number, O_WRONLY | O_CREAT | O_EXCL, ".new")) < 0 ||
	    put_together(pieces, count, whole.bytes, our_pages, parent_pages, whole_pages) || write_map(target, map_name, &whole))
		goto out;
	if (renameat(target, new_name, target, pages_name) || renameat(target, map_name, target, name) ||
	    (elsewhere && (unlinkat(images, pages_name, 0) || unlinkat(images, name, 0))))
		because("%s: %s", name, strerror(errno));
	else
		result = 0;
out:
	for (int i = 0, fds[] = { our_pages, parent_pages, whole_pages }; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(pieces);
	free(ours.stretches);
	free(parent.stretches);
	free(whole.stretches);
	return result;
}

/* ---- sharing --------------------------------------------------------------------------------- */

/* Has `to` use the blocks of `from` for what both hold the same; how many bytes it does. The kernel compares again. */
static uint64_t share(int from, uint64_t source, int to, uint64_t target, uint64_t length)
{
	union {
		struct file_dedupe_range range;
		char room[sizeof(struct file_dedupe_range) + sizeof(struct file_dedupe_range_info)];
	} request;
	uint64_t done = 0;

	while (done < length) {
		struct file_dedupe_range_info *told = request.range.info;

		memset(&request, 0, sizeof(request));
		request.range.src_offset = source + done;
		request.range.src_length = length - done < SHARE_BYTES ? length - done : SHARE_BYTES;
		request.range.dest_count = 1;
		told->dest_fd = to;
		told->dest_offset = target + done;
		if (ioctl(from, FIDEDUPERANGE, &request) || told->status || !told->bytes_deduped)
			break;
		done += told->bytes_deduped;
	}
	return done;
}

/* btrfs frees an extent only when no byte of it is in use: what could not be shared is written anew. */
static int write_rest(const char *content, uint64_t from, uint64_t to, int fd)
{
	static char block[COPY_BYTES];

	while (from < to) {
		size_t part = to - from < sizeof(block) ? to - from : sizeof(block);

		memcpy(block, content + from, part);
		if (pwrite(fd, block, part, from) != (ssize_t)part)
			return because("pages: %s", strerror(errno));
		from += part;
	}
	return 0;
}

static int share_pages(const struct map *ours, const struct map *parent, int our_pages, int parent_pages)
{
	char *here = mmap(NULL, ours->bytes, PROT_READ, MAP_SHARED, our_pages, 0);
	char *there = mmap(NULL, parent->bytes, PROT_READ, MAP_SHARED, parent_pages, 0);
	uint64_t source = 0, target = 0, length = 0, rest = 0, total = 0, cuts = 0;
	struct piece *gaps = NULL;
	size_t gap_count = 0, at = 0;
	int failed = here == MAP_FAILED || there == MAP_FAILED;

	if (failed)
		return because("pages: %s", strerror(errno));
	gaps = calloc(ours->bytes / PAGE / FEWEST_PAGES + 2, sizeof(*gaps));
	if (!gaps)
		return because("out of memory");
	for (size_t i = 0; i <= ours->count; i++) {
		const struct stretch *mine = &ours->stretches[i];

		for (uint64_t page = 0; page < (i < ours->count ? mine->pages : 1); page++) {
			uint64_t address = i < ours->count ? mine->address + page * PAGE : ~0ULL, a = 0, b = 0;
			int same = 0;

			while (i < ours->count && at < parent->count && parent->stretches[at].address +
			       parent->stretches[at].pages * PAGE <= address)
				at++;
			if (i < ours->count && at < parent->count && parent->stretches[at].address <= address) {
				a = parent->stretches[at].offset + (address - parent->stretches[at].address);
				b = mine->offset + page * PAGE;
				same = !memcmp(there + a, here + b, PAGE);
			}
			if (same && length && a == source + length && b == target + length) {
				length += PAGE;
				continue;
			}
			/* A run of equal pages ends here. */
			if (length >= FEWEST_PAGES * PAGE) {
				uint64_t done = share(parent_pages, source, our_pages, target, length);

				if (done) {
					gaps[gap_count++] = (struct piece){ .target = rest, .length = target - rest };
					rest = target + done;
					total += done;
					cuts += 2;
				}
			}
			source = a;
			target = b;
			length = same ? PAGE : 0;
		}
	}
	gaps[gap_count++] = (struct piece){ .target = rest, .length = ours->bytes - rest };
	if (total > ours->bytes / 2)
		for (size_t i = 0; i < gap_count && !failed; i++)
			failed = write_rest(here, gaps[i].target, gaps[i].target + gaps[i].length, our_pages);
	if (!failed && total && fsetxattr(our_pages, SCATTERED, &cuts, sizeof(cuts), 0))
		failed = because("pages: %s", strerror(errno));
	free(gaps);
	munmap(here, ours->bytes);
	munmap(there, parent->bytes);
	return failed;
}

static int share_one(int images, int parents, const char *name)
{
	struct map ours = { 0 }, parent = { 0 };
	int our_pages = -1, parent_pages = -1, failed = -1, missing;
	struct stat one, other;

	if (read_map(images, name, &ours))
		return -1;
	missing = read_map(parents, name, &parent);
	if (missing < 0)
		goto out;
	if (missing || !ours.bytes || !parent.bytes) {
		failed = 0;
		goto out;
	}
	our_pages = open_pages(images, ours.number, O_RDWR, "");
	parent_pages = open_pages(parents, parent.number, O_RDONLY, "");
	if (our_pages < 0 || parent_pages < 0 || fstat(our_pages, &one) || fstat(parent_pages, &other))
		goto out;
	if ((uint64_t)one.st_size != ours.bytes || (uint64_t)other.st_size != parent.bytes)
		because("the pages of %s are not all there", name);
	else if (fgetxattr(our_pages, SCATTERED, NULL, 0) >= 0)
		failed = 0; /* put together from clones: they share already */
	else
		failed = share_pages(&ours, &parent, our_pages, parent_pages);
out:
	if (our_pages >= 0)
		close(our_pages);
	if (parent_pages >= 0)
		close(parent_pages);
	free(ours.stretches);
	free(parent.stretches);
	return failed;
}

int main(int argc, char **argv)
{
	int images, parents, target, failed = 0;
	struct stat one, other;
	struct dirent *entry;
	DIR *folder;

	if (argc != 3 && argc != 4)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* what nobody waits for is of no use */
	images = atoi(argv[1]);
	parents = atoi(argv[2]);
	target = atoi(argv[argc - 1]);
	folder = fdopendir(openat(images, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (!folder || fstat(images, &one) || fstat(target, &other))
		failed = because("the folders cannot be read: %s", strerror(errno));
	/* What is written meanwhile does not end in ".img", or is of the name of what was read already. */
	while (!failed && (entry = readdir(folder))) {
		size_t length = strlen(entry->d_name);

		if (strncmp(entry->d_name, "pagemap-", 8) || length <= 4 || strcmp(entry->d_name + length - 4, ".img"))
			continue;
		if (argc == 3)
			failed = share_one(images, parents, entry->d_name);
		else
			failed = flatten_one(images, parents, target, entry->d_name,
					     one.st_dev != other.st_dev || one.st_ino != other.st_ino);
	}
	printf("%s\n", failed ? reason : "ok");
	return !!failed;
}
