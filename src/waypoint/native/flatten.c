/* Completes images that say "as in the parent" for memory that was not written since.

     flatten IMAGES PARENT TARGET

   Three folders, by their descriptors. CRIU has dumped into IMAGES and compared with PARENT, whose images are complete.
   For every process that has memory in PARENT its pages are written anew to TARGET (IMAGES itself, or another folder), in
   order. Unchanged pages are cloned from PARENT's file, so that the two share their blocks on disk (copied where the
   file system cannot clone); changed pages are written over them. Files that were used up are removed from IMAGES.
   Afterwards PARENT is not needed any more; each can be deleted alone.

     flatten IMAGES PARENT

   Both are complete: pages they have in common are made to share blocks on disk. This is for idle times. The contents
   of the files stay as they are.

   CRIU's images of memory: pages-N.img has nothing but pages; pagemap-PID.img has two magic numbers, then messages with
   their length in front: a head with N, then one per range of memory, in the order of the pages. Everything is written
   to new files, which get their names only when all of it is there. "ok\n", or a line with the reason, goes to
   standard output. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "pagemap.h"
#include "reason.h"
#include "waypoint.h"

#define COPY_BYTES (1 << 20)
#define SCATTERED "trusted.waypoint.scattered"
#define FEW_CUTS 4096
#define PAGES_PER_CUT 8
#define MIN_PAGES 4 /* shorter runs are not worth an extent of their own */
#define SHARE_BYTES (16ULL << 20)

struct piece { /* of the new file, and where it comes from */
	uint64_t target, source, length;
	int from_parent;
};

/* ---- pagemaps -------------------------------------------------------------------------------- */

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
		return fail_because("%s: %s", name, strerror(errno));
	failed = fwrite(map->magics, MAGICS, 1, file) != 1;
	fields[1] = map->number;
	failed |= put_message(file, fields, 1 << 1);
	for (size_t i = 0; i < map->count && !failed; i++) {
		fields[1] = map->ranges[i].address;
		fields[2] = 0;
		fields[4] = map->ranges[i].flags;
		fields[5] = map->ranges[i].pages;
		failed |= put_message(file, fields, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5);
	}
	failed |= fclose(file);
	return failed ? fail_because("%s: %s", name, strerror(errno)) : 0;
}

/* ---- memory that may come later -------------------------------------------------------------- */

#define VMAS_FIELD 14 /* of mm_entry */
#define NEVER_LAZY (1 << 2 | 1 << 3 | 1 << 12) /* VMA_AREA_VSYSCALL, _VDSO, _VVAR */

struct lazy_area {
	uint64_t start, end;
};
struct lazy_areas {
	struct lazy_area *list;
	size_t count;
};

/* The next field of a message: its number. A number is its value, of other kinds `*value` is the length of what `*at`
   points behind. 0 at the end, -1. */
static int take_field(const unsigned char **at, const unsigned char *end, uint64_t *value)
{
	uint64_t key;

	if (*at == end)
		return 0;
	if (take_varint(at, end, &key) || key >> 3 > 1000 || !(key >> 3))
		return -1;
	if ((key & 7) == 0)
		return take_varint(at, end, value) ? -1 : (int)(key >> 3);
	if ((key & 7) == 2 && take_varint(at, end, value))
		return -1;
	if ((key & 7) == 1 || (key & 7) == 5)
		*value = (key & 7) == 1 ? 8 : 4;
	else if ((key & 7) != 2)
		return -1;
	if (*value > (uint64_t)(end - *at))
		return -1;
	*at += *value;
	return (int)(key >> 3);
}

/* The memory that CRIU would leave to a page server at a restore, by the same rule (vma_entry_can_be_lazy): private, in no
   file, not locked. Pages elsewhere that are marked as such would not come back. Nothing, where it is not known. */
static void read_lazy_areas(int images, const char *name, struct lazy_areas *areas)
{
	const uint64_t wanted = MAP_PRIVATE | MAP_ANONYMOUS, unwanted = MAP_LOCKED | MAP_HUGETLB;
	unsigned char *data = NULL;
	char mm_name[300];
	struct stat info;
	int fd, field;

	memset(areas, 0, sizeof(*areas));
	snprintf(mm_name, sizeof(mm_name), "mm-%s", name + strlen("pagemap-"));
	fd = openat(images, mm_name, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && !fstat(fd, &info) && info.st_size > MAGICS + 4 && (data = malloc(info.st_size)) &&
	    read(fd, data, info.st_size) == info.st_size) {
		const unsigned char *at = data + MAGICS + 4, *end = data + info.st_size;
		uint64_t length;

		while ((field = take_field(&at, end, &length)) > 0) {
			uint64_t values[16] = { 0 }, value;
			const unsigned char *inner;
			struct lazy_area *larger, *last = areas->count ? &areas->list[areas->count - 1] : NULL;
			int part;

			if (field != VMAS_FIELD)
				continue;
			if (length > (uint64_t)(at - data)) /* it is no message */
				break;
			inner = at - length;
			while ((part = take_field(&inner, at, &value)) > 0)
				if (part < 16)
					values[part] = value;
			if (part || (values[6] & wanted) != wanted || values[6] & unwanted || values[7] & NEVER_LAZY ||
			    (values[1] | values[2]) % PAGE || values[1] >= values[2])
				continue;
			if (last && last->end == values[1]) {
				last->end = values[2];
				continue;
			}
			larger = realloc(areas->list, (areas->count + 1) * sizeof(*larger));
			if (!larger)
				break;
			areas->list = larger;
			areas->list[areas->count++] = (struct lazy_area){ values[1], values[2] };
		}
	}
	free(data);
	if (fd >= 0)
		close(fd);
}

/* Marks the beginning of a range as lazy or not. Returns how many of its pages that is true for. */
static uint64_t mark_lazy(const struct lazy_areas *areas, struct range *range)
{
	uint64_t end = range->address + range->pages * PAGE;

	range->flags &= ~(uint64_t)LAZY;
	for (size_t i = 0; i < areas->count; i++) {
		const struct lazy_area *area = &areas->list[i];

		if (area->start <= range->address && range->address < area->end)
			range->flags |= LAZY;
		if (area->end > range->address && area->end < end)
			end = area->end;
		if (area->start > range->address && area->start < end)
			end = area->start;
	}
	return (end - range->address) / PAGE;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static int copy(int from, uint64_t source, int to, uint64_t target, uint64_t length)
{
	static char block[COPY_BYTES];

	while (length) {
		size_t part = length < sizeof(block) ? length : sizeof(block);
		ssize_t got = pread(from, block, part, source);

		if (got <= 0)
			return fail_because("a page is not there: %s", got ? strerror(errno) : "the file is too short");
		for (ssize_t put = 0; put < got;) {
			ssize_t done = pwrite(to, block + put, got - put, target + put);

			if (done <= 0)
				return fail_because("pages: %s", strerror(errno));
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
	struct stat info;

	/* A length that reaches behind the end would be cloned as far as there is something. */
	if (fstat(from, &info) || source + length > (uint64_t)info.st_size)
		return fail_because("the parent's pages are not all there");
	if (!ioctl(to, FICLONERANGE, &range))
		return 0;
	if (errno == ENOSPC || errno == EIO || errno == EDQUOT)
		return fail_because("pages: %s", strerror(errno));
	return copy(from, source, to, target, length);
}

/* Decides where the pages of the new file come from. Adjacent ranges become one. */
static int plan_pieces(const struct map *ours, const struct map *parent, const struct lazy_areas *lazy,
		       struct map *complete, struct piece **pieces, size_t *count)
{
	size_t room = 0, at = 0;

	*count = 0;
	for (size_t i = 0; i < ours->count; i++) {
		struct range left = ours->ranges[i];

		while (left.pages) {
			struct range part = left, *last;
			struct piece piece;

			if (left.flags & IN_PARENT) {
				const struct range *source;

				while (at < parent->count && parent->ranges[at].address +
				       parent->ranges[at].pages * PAGE <= left.address)
					at++;
				source = &parent->ranges[at];
				if (at == parent->count || source->address > left.address || !(source->flags & PRESENT))
					return fail_because("memory at %llx is not in the parent",
						       (unsigned long long)left.address);
				part.offset = source->offset + (left.address - source->address);
				part.flags = source->flags;
				if (source->address + source->pages * PAGE < left.address + left.pages * PAGE)
					part.pages = source->pages - (left.address - source->address) / PAGE;
				part.pages = mark_lazy(lazy, &part);
			} else if (!(left.flags & PRESENT)) {
				return fail_because("memory at %llx is nowhere", (unsigned long long)left.address);
			}
			piece = (struct piece){ .target = complete->bytes, .source = part.offset,
					      .length = part.pages * PAGE, .from_parent = !!(left.flags & IN_PARENT) };
			if (*count == room) {
				void *larger = realloc(*pieces, (room = room ? room * 2 : 256) * sizeof(piece));

				if (!larger)
					return fail_because("out of memory");
				*pieces = larger;
			}
			(*pieces)[(*count)++] = piece;
			last = complete->count ? &complete->ranges[complete->count - 1] : NULL;
			if (last && last->address + last->pages * PAGE == part.address && last->flags == part.flags)
				last->pages += part.pages;
			else if (add_range(complete, part))
				return -1;
			complete->bytes += part.pages * PAGE;
			left.address += part.pages * PAGE;
			left.offset += part.pages * PAGE;
			left.pages -= part.pages;
		}
	}
	return 0;
}

/* How many scattered writes a file has had since it was written in one go. */
static uint64_t count_scattered(int pages)
{
	uint64_t count;

	return fgetxattr(pages, SCATTERED, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

/* Pages that have not moved among their neighbours are cloned in one go, together with the changed ones between them,
   which are written over after that. Each such write cuts the file into more extents, and cloning takes longer the more
   extents there are. When the file has been cut too often, the new one is written in one go. */
static int write_pieces(const struct piece *pieces, size_t count, uint64_t bytes, int ours, int parent, int target)
{
	uint64_t cuts = count_scattered(parent);

	for (size_t i = 0; i < count; i++)
		cuts += !pieces[i].from_parent;
	if (cuts > FEW_CUTS && cuts > bytes / PAGE / PAGES_PER_CUT) {
		for (size_t i = 0; i < count; i++)
			if (copy(pieces[i].from_parent ? parent : ours, pieces[i].source, target, pieces[i].target,
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
		if (clone(parent, pieces[i].source, target, pieces[i].target,
			  pieces[last].target + pieces[last].length - pieces[i].target))
			return -1;
		i = last + 1;
	}
	for (size_t i = 0; i < count; i++)
		if (!pieces[i].from_parent && copy(ours, pieces[i].source, target, pieces[i].target, pieces[i].length))
			return -1;
	/* A file system without extended attributes has no clones either, so that nothing is cut. */
	if (fsetxattr(target, SCATTERED, &cuts, sizeof(cuts), 0) && errno != ENOTSUP)
		return fail_because("pages: %s", strerror(errno));
	return 0;
}

static int open_pages(int folder, uint32_t number, int flags, const char *suffix)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "pages-%u.img%s", number, suffix);
	fd = openat(folder, name, flags | O_CLOEXEC, 0600);
	return fd < 0 ? fail_because("%s: %s", name, strerror(errno)) : fd;
}

static int flatten(int images, int parents, int target, const char *name, int elsewhere)
{
	struct map ours, parent, complete = { 0 };
	struct lazy_areas lazy;
	struct piece *pieces = NULL;
	int our_pages = -1, parent_pages = -1, target_pages = -1, result = -1, incremental = 0;
	char map_name[300], pages_name[64], new_name[64];
	size_t count;

	if (read_map(images, name, &ours))
		return -1;
	for (size_t i = 0; i < ours.count; i++)
		incremental |= ours.ranges[i].flags & IN_PARENT;
	if (!incremental) {
		free(ours.ranges);
		return 0;
	}
	if (read_map(parents, name, &parent)) {
		free(ours.ranges);
		return fail_because("the parent has no %s", name);
	}
	read_lazy_areas(images, name, &lazy);
	memcpy(complete.magics, ours.magics, MAGICS);
	complete.number = ours.number;
	snprintf(map_name, sizeof(map_name), "%s.new", name);
	snprintf(pages_name, sizeof(pages_name), "pages-%u.img", ours.number);
	snprintf(new_name, sizeof(new_name), "pages-%u.img.new", ours.number);
	if (plan_pieces(&ours, &parent, &lazy, &complete, &pieces, &count) ||
	    (our_pages = open_pages(images, ours.number, O_RDONLY, "")) < 0 ||
	    (parent_pages = open_pages(parents, parent.number, O_RDONLY, "")) < 0 ||
	    (target_pages = open_pages(target, ours.number, O_WRONLY | O_CREAT | O_EXCL, ".new")) < 0 ||
	    write_pieces(pieces, count, complete.bytes, our_pages, parent_pages, target_pages) ||
	    write_map(target, map_name, &complete))
		goto out;
	if (renameat(target, new_name, target, pages_name) || renameat(target, map_name, target, name) ||
	    (elsewhere && (unlinkat(images, pages_name, 0) || unlinkat(images, name, 0))))
		fail_because("%s: %s", name, strerror(errno));
	else
		result = 0;
out:
	for (int i = 0, fds[] = { our_pages, parent_pages, target_pages }; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(pieces);
	free(lazy.list);
	free(ours.ranges);
	free(parent.ranges);
	free(complete.ranges);
	return result;
}

/* ---- sharing --------------------------------------------------------------------------------- */

/* Makes `to` use the blocks of `from` for a range that is the same in both; returns for how many bytes. The kernel
   compares again. */
static uint64_t share(int from, uint64_t source, int to, uint64_t target, uint64_t length)
{
	union {
		struct file_dedupe_range range;
		char room[sizeof(struct file_dedupe_range) + sizeof(struct file_dedupe_range_info)];
	} request;
	uint64_t done = 0;

	while (done < length) {
		struct file_dedupe_range_info *result = request.range.info;

		memset(&request, 0, sizeof(request));
		request.range.src_offset = source + done;
		request.range.src_length = length - done < SHARE_BYTES ? length - done : SHARE_BYTES;
		request.range.dest_count = 1;
		result->dest_fd = to;
		result->dest_offset = target + done;
		if (ioctl(from, FIDEDUPERANGE, &request) || result->status || !result->bytes_deduped)
			break;
		done += result->bytes_deduped;
	}
	return done;
}

/* btrfs frees an extent only when no byte of it is in use: what is not shared is written anew. */
static int write_rest(const char *content, uint64_t from, uint64_t to, int fd)
{
	static char block[COPY_BYTES];

	while (from < to) {
		size_t part = to - from < sizeof(block) ? to - from : sizeof(block);

		memcpy(block, content + from, part);
		if (pwrite(fd, block, part, from) != (ssize_t)part)
			return fail_because("pages: %s", strerror(errno));
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
		return fail_because("pages: %s", strerror(errno));
	gaps = calloc(ours->bytes / PAGE / MIN_PAGES + 2, sizeof(*gaps));
	if (!gaps)
		return fail_because("out of memory");
	for (size_t i = 0; i <= ours->count; i++) {
		const struct range *mine = &ours->ranges[i];
		/* One turn more behind the last range, to end a run. */
		uint64_t pages = i == ours->count ? 1 : mine->flags & PRESENT ? mine->pages : 0;

		for (uint64_t page = 0; page < pages; page++) {
			uint64_t address = i < ours->count ? mine->address + page * PAGE : ~0ULL, a = 0, b = 0;
			int same = 0;

			while (i < ours->count && at < parent->count && parent->ranges[at].address +
			       parent->ranges[at].pages * PAGE <= address)
				at++;
			if (i < ours->count && at < parent->count && parent->ranges[at].address <= address &&
			    parent->ranges[at].flags & PRESENT) {
				a = parent->ranges[at].offset + (address - parent->ranges[at].address);
				b = mine->offset + page * PAGE;
				same = !memcmp(there + a, here + b, PAGE);
			}
			if (same && length && a == source + length && b == target + length) {
				length += PAGE;
				continue;
			}
			/* A run of equal pages ends here. */
			if (length >= MIN_PAGES * PAGE) {
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
		failed = fail_because("pages: %s", strerror(errno));
	free(gaps);
	munmap(here, ours->bytes);
	munmap(there, parent->bytes);
	return failed;
}

static int share_process(int images, int parents, const char *name)
{
	struct map ours = { 0 }, parent = { 0 };
	int our_pages = -1, parent_pages = -1, failed = -1, missing;
	struct stat our_info, parent_info;

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
	if (our_pages < 0 || parent_pages < 0 || fstat(our_pages, &our_info) || fstat(parent_pages, &parent_info))
		goto out;
	if ((uint64_t)our_info.st_size != ours.bytes || (uint64_t)parent_info.st_size != parent.bytes)
		fail_because("the pages of %s are not all there", name);
	else if (fgetxattr(our_pages, SCATTERED, NULL, 0) >= 0)
		failed = 0; /* made of clones: they share already */
	else
		failed = share_pages(&ours, &parent, our_pages, parent_pages);
out:
	if (our_pages >= 0)
		close(our_pages);
	if (parent_pages >= 0)
		close(parent_pages);
	free(ours.ranges);
	free(parent.ranges);
	return failed;
}

int main(int argc, char **argv)
{
	int images, parents, target, failed = 0;
	struct stat images_info, target_info;
	struct dirent *entry;
	DIR *folder;

	if (argc != 3 && argc != 4)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* nothing uses the result without the caller */
	images = atoi(argv[1]);
	parents = atoi(argv[2]);
	target = atoi(argv[argc - 1]);
	folder = fdopendir(openat(images, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (!folder || fstat(images, &images_info) || fstat(target, &target_info))
		failed = fail_because("the folders cannot be read: %s", strerror(errno));
	/* A file that is written meanwhile does not end in ".img", or has the name of one that was read already. */
	while (!failed && (entry = readdir(folder))) {
		size_t length = strlen(entry->d_name);

		if (strncmp(entry->d_name, "pagemap-", 8) || length <= 4 || strcmp(entry->d_name + length - 4, ".img"))
			continue;
		if (argc == 3)
			failed = share_process(images, parents, entry->d_name);
		else
			failed = flatten(images, parents, target, entry->d_name,
					     images_info.st_dev != target_info.st_dev || images_info.st_ino != target_info.st_ino);
	}
	printf("%s\n", failed ? reason : "ok");
	return !!failed;
}
