/* The page server of one box: it gives the restored processes their memory when they first use it.

   A tree with a gigabyte of memory would take most of a second to be read from its images before it could run. Instead
   CRIU leaves such memory empty and registers it with a userfaultfd of each process (its protocol for lazy pages: this
   program is at the other end). A process that touches a page which is not there waits until this program has copied it
   from the image. The images are mapped, so that all boxes of a point share the page cache.

     pages IMAGES CRIU LISTEN KEEPER SOCKET FOLDER

   Descriptors: the folder of the images; a stream socket whose other end CRIU gets; a SOCK_SEQPACKET socket on which the
   daemon connects; a pidfd of the keeper. SOCKET is the path of the listening socket, FOLDER what the daemon calls the
   images.

   Requests, one packet each, answered by one packet ("ok ..." or "error ERRNO"):

     arm PID:HOST_PID ...   all processes exist and none has run; their numbers in the box and on the host. Answered with
                            the number of bytes that are missing.
     images                 FOLDER.
     tracked                the processes (HOST_PID) whose memory was registered for tracking, and the missing bytes.
     fill                   copies all of it. Answered when nothing is missing any more.
     wait                   answered then too. (A process that has used a part of its memory gets the rest by and by.)
     give HOST_PID ...      with a userfaultfd of each of these processes: nothing is missing, and the tree stands still.
                            Memory that was not written since the restore is registered with that descriptor and protected
                            (engine/memory.py): the next dump finds it unchanged. Answered with the processes of which that
                            is true. This program ends then.

   Nothing that is missing may ever be taken for empty. The kernel forgets what is missing when the last descriptor of a
   userfaultfd is closed: the process would find zeros. So there are two processes with one table of descriptors. The
   first, the guard, does nothing but wait. When either of them ends before its time, the other one ends the box, and keeps
   the descriptors until no process of it is left. The same happens when a page cannot be read. SOCKET.failed says why.

   Memory that the processes move, give back, or inherit by fork is followed: the kernel reports these calls and lets them
   return when the report was read. No page can be copied meanwhile (EAGAIN), so a report is always read first. */

#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "pagemap.h"
#include "reason.h"
#include "waypoint.h"

#define FINISHED 0x52535446 /* CRIU has nothing more to say (LAZY_PAGES_RESTORE_FINISHED) */
#define LARGE_PAGES ((16ULL << 20) / PAGE) /* a process with less is filled at once, and not tracked (engine/memory.py) */
#define AREA_BYTES (64ULL << 10) /* smaller areas are not tracked either */
#define WINDOW_PAGES 16
#define MAX_WINDOW_PAGES 256
#define FILL_PAGES 128 /* at once, between two looks at what processes wait for */
#define USED_PART 16 /* a process that has used this part of its missing memory is filled in the background */
#define MAX_CLIENTS 4
#define MAX_GIVEN 128
#define REAP_MS 1000
#define BOX_ENDED 3 /* the server's exit code */
#define RETRY_MS 2
#define MAX_RETRIES 5000 /* without any page copied: memory is short */

struct area { /* of image pages in a process, at their present place */
	uint64_t start, pages;
	uint64_t first; /* page of the image */
	int moved; /* it counts as written */
};
struct task {
	int pid, host_pid, fd, alive, tracked;
	const char *content; /* the image of its pages */
	uint64_t content_pages;
	unsigned char *settled; /* a bit for each page of the image: it is there, or not wanted any more */
	struct area *areas; /* by address */
	size_t count;
	uint64_t missing, lazy; /* pages */
	uint64_t next_fault, window; /* of a process that reads in order */
	size_t fill_area; /* before it everything is settled */
};
struct work {
	struct task *task;
	enum { FAULT, UNPROTECT } kind;
	uint64_t start, bytes;
};

static struct task **tasks;
static size_t task_count;
static struct work *queue;
static size_t queue_count, queue_room;
static int images, criu, listener, keeper, other = -1; /* other: a pidfd of the guard */
static const char *socket_path;
static const char *folder_path;
static int clients[MAX_CLIENTS];
static int filling = -1, waiting = -1; /* the clients that are to hear when nothing is missing */
static int armed, progress, retries;

/* ---- the end --------------------------------------------------------------------------------- */

/* Ends the box. Returns when none of its processes is left. */
static void end_box(const char *why)
{
	struct pollfd wait = { .fd = keeper, .events = POLLIN };
	char path[4200];
	int fd;

	snprintf(path, sizeof(path), "%s.failed", socket_path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd >= 0) {
		dprintf(fd, "%s\n", why);
		close(fd);
	}
	syscall(SYS_pidfd_send_signal, keeper, SIGKILL, NULL, 0);
	while (poll(&wait, 1, -1) < 0 && errno == EINTR)
		;
	unlink(socket_path);
}

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	char why[400];
	va_list more;

	va_start(more, format);
	vsnprintf(why, sizeof(why), format, more);
	va_end(more);
	end_box(why);
	_exit(BOX_ENDED);
}

__attribute__((noreturn)) static void finish(void)
{
	unlink(socket_path);
	_exit(0);
}

static void *get(void *old, size_t bytes)
{
	void *memory = realloc(old, bytes ? bytes : 1);

	if (!memory)
		die("its page server has no memory");
	return memory;
}

/* ---- what is where --------------------------------------------------------------------------- */

static int is_settled(const struct task *task, uint64_t page)
{
	return task->settled[page >> 3] >> (page & 7) & 1;
}

static void settle(struct task *task, uint64_t page)
{
	if (!is_settled(task, page)) {
		task->settled[page >> 3] |= 1 << (page & 7);
		task->missing--;
		progress = 1;
	}
}

static uint64_t end_of(const struct area *area)
{
	return area->start + area->pages * PAGE;
}

/* The first area that ends behind an address; there may be none. */
static size_t find(const struct task *task, uint64_t address)
{
	size_t low = 0, high = task->count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (end_of(&task->areas[middle]) > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* Makes an area begin at this address, if one reaches across it. */
static void split(struct task *task, uint64_t address)
{
	size_t at = find(task, address);
	struct area *area = &task->areas[at];
	uint64_t before;

	if (at == task->count || area->start >= address)
		return;
	task->areas = get(task->areas, (task->count + 1) * sizeof(*area));
	area = &task->areas[at];
	memmove(area + 1, area, (task->count++ - at) * sizeof(*area));
	before = (address - area->start) / PAGE;
	area[0].pages = before;
	area[1].start = address;
	area[1].first += before;
	area[1].pages -= before;
}

/* What the image has for this range is not wanted any more. */
static void forget(struct task *task, uint64_t start, uint64_t end)
{
	size_t from, to;

	split(task, start);
	split(task, end);
	from = find(task, start);
	for (to = from; to < task->count && task->areas[to].start < end; to++)
		for (uint64_t i = 0; i < task->areas[to].pages; i++)
			settle(task, task->areas[to].first + i);
	memmove(task->areas + from, task->areas + to, (task->count - to) * sizeof(*task->areas));
	task->count -= to - from;
	task->fill_area = 0;
}

static int by_start(const void *one, const void *two)
{
	const struct area *a = one, *b = two;

	return a->start < b->start ? -1 : a->start > b->start;
}

static void move(struct task *task, uint64_t from, uint64_t to, uint64_t bytes)
{
	forget(task, to, to + bytes);
	split(task, from);
	split(task, from + bytes);
	for (size_t i = find(task, from); i < task->count && task->areas[i].start < from + bytes; i++) {
		task->areas[i].start += to - from;
		task->areas[i].moved = 1;
	}
	qsort(task->areas, task->count, sizeof(*task->areas), by_start);
	task->fill_area = 0;
}

static void drop(struct task *task)
{
	if (!task->alive)
		return;
	close(task->fd); /* what is registered with it is so no more */
	free(task->settled);
	free(task->areas);
	task->settled = NULL;
	task->areas = NULL;
	task->count = task->missing = 0;
	task->alive = task->tracked = 0;
	progress = 1;
}

static void add_task(struct task task)
{
	tasks = get(tasks, (task_count + 1) * sizeof(*tasks));
	tasks[task_count] = get(NULL, sizeof(task));
	*tasks[task_count++] = task;
}

/* Reads what CRIU leaves to this program of a process. */
static void load(int pid, int fd)
{
	struct task task = { .pid = pid, .fd = fd, .alive = 1 };
	struct stat info;
	struct map map;
	char name[64];
	int pages;

	snprintf(name, sizeof(name), "pagemap-%d.img", pid);
	if (read_map(images, name, &map))
		die("its memory is not to be found: %s", *reason ? reason : name);
	snprintf(name, sizeof(name), "pages-%u.img", map.number);
	pages = openat(images, name, O_RDONLY | O_CLOEXEC);
	if (pages < 0 || fstat(pages, &info) || (uint64_t)info.st_size < map.bytes)
		die("its memory is not all there: %s", name);
	if (map.bytes) {
		task.content = mmap(NULL, map.bytes, PROT_READ, MAP_SHARED, pages, 0);
		if (task.content == MAP_FAILED)
			die("its memory cannot be read: %s", strerror(errno));
	}
	close(pages);
	task.content_pages = map.bytes / PAGE;
	task.settled = get(NULL, task.content_pages / 8 + 1);
	memset(task.settled, 0xff, task.content_pages / 8 + 1);
	task.areas = get(NULL, map.count * sizeof(*task.areas));
	for (size_t i = 0; i < map.count; i++) {
		const struct range *range = &map.ranges[i];
		struct area *last = task.count ? &task.areas[task.count - 1] : NULL;
		struct area area = { range->address, range->pages, range->offset / PAGE, 0 };

		if ((range->flags & (LAZY | PRESENT)) != (LAZY | PRESENT))
			continue;
		for (uint64_t page = area.first; page < area.first + area.pages; page++)
			task.settled[page >> 3] &= ~(1 << (page & 7));
		task.missing += area.pages;
		if (last && end_of(last) == area.start && last->first + last->pages == area.first)
			last->pages += area.pages;
		else
			task.areas[task.count++] = area;
	}
	task.lazy = task.missing;
	free(map.ranges);
	add_task(task);
}

/* ---- pages ----------------------------------------------------------------------------------- */

enum outcome { DONE, LATER, GONE };

static void wake(const struct task *task, uint64_t address)
{
	struct uffdio_range range = { address, PAGE };

	ioctl(task->fd, UFFDIO_WAKE, &range); /* a process that is gone needs none */
}

/* Copies pages of the image, none of which is settled. */
static enum outcome copy(struct task *task, const struct area *area, uint64_t index, uint64_t pages)
{
	uint64_t step = pages;

	while (pages) {
		uint64_t done = 0, page = area->first + index;
		struct uffdio_copy request = { .dst = area->start + index * PAGE,
					       .src = (uintptr_t)task->content + page * PAGE,
					       .len = (step < pages ? step : pages) * PAGE,
					       .mode = task->tracked && !area->moved ? UFFDIO_COPY_MODE_WP : 0 };

		if (!ioctl(task->fd, UFFDIO_COPY, &request)) {
			done = request.len / PAGE;
		} else if (request.copy > 0) {
			done = request.copy / PAGE;
		} else if (errno == EAGAIN || errno == ENOMEM) {
			return LATER;
		} else if (errno == ESRCH) {
			return GONE;
		} else if (errno == EEXIST) {
			wake(task, request.dst);
			done = 1;
		} else if ((errno == ENOENT || errno == EINVAL) && request.len > PAGE) {
			step = request.len / PAGE / 2; /* it reaches across areas of the process */
			continue;
		} else if (errno == ENOENT) {
			done = 1; /* there is no such memory: a child did not inherit it (MADV_DONTFORK) */
		} else {
			die("a page of its memory cannot be read: %s", strerror(errno));
		}
		for (uint64_t i = 0; i < done; i++)
			settle(task, page + i);
		index += done;
		pages -= done;
	}
	return DONE;
}

/* Copies what is missing in a part of an area. */
static enum outcome fill(struct task *task, const struct area *area, uint64_t from, uint64_t to)
{
	while (from < to) {
		uint64_t end = from;

		while (end < to && !is_settled(task, area->first + end))
			end++;
		if (end > from) {
			enum outcome outcome = copy(task, area, from, end - from);

			if (outcome != DONE)
				return outcome;
		}
		from = end + 1;
	}
	return DONE;
}

/* Memory that is in no image, or was given back: it is empty. */
static enum outcome make_empty(const struct task *task, uint64_t address)
{
	struct uffdio_zeropage request = { .range = { address, PAGE } };

	if (!ioctl(task->fd, UFFDIO_ZEROPAGE, &request))
		return DONE;
	if (errno == EAGAIN || errno == ENOMEM)
		return LATER;
	if (errno == ESRCH)
		return GONE;
	if (errno != EEXIST && errno != ENOENT)
		die("a page of its memory cannot be made: %s", strerror(errno));
	wake(task, address);
	return DONE;
}

static enum outcome answer_fault(struct task *task, uint64_t address)
{
	size_t at = find(task, address);
	const struct area *area = &task->areas[at];
	uint64_t index, from, to;
	enum outcome outcome;

	if (at == task->count || area->start > address)
		return make_empty(task, address);
	index = (address - area->start) / PAGE;
	if (is_settled(task, area->first + index))
		return make_empty(task, address); /* EEXIST when it is there */
	outcome = fill(task, area, index, index + 1);
	if (outcome != DONE)
		return outcome;
	/* What is beside it will be used soon. */
	task->window = address == task->next_fault && task->window < MAX_WINDOW_PAGES ? task->window * 2
		       : address == task->next_fault ? task->window : WINDOW_PAGES;
	from = task->window > WINDOW_PAGES ? index : index / WINDOW_PAGES * WINDOW_PAGES;
	to = from + task->window < area->pages ? from + task->window : area->pages;
	task->next_fault = area->start + to * PAGE;
	return fill(task, area, from, to) == GONE ? GONE : DONE;
}

/* Memory that has moved counts as written: it is not at the place where the images have it. */
static enum outcome unprotect(struct task *task, uint64_t start, uint64_t bytes)
{
	struct uffdio_writeprotect request = { .range = { start, bytes } };

	if (!task->tracked || !ioctl(task->fd, UFFDIO_WRITEPROTECT, &request))
		return DONE;
	if (errno == EAGAIN)
		return LATER;
	if (errno == ESRCH)
		return GONE;
	task->tracked = 0; /* then all of it */
	return DONE;
}

static void enqueue(struct task *task, int kind, uint64_t start, uint64_t bytes)
{
	if (queue_count == queue_room) {
		queue_room = queue_room ? queue_room * 2 : 256;
		queue = get(queue, queue_room * sizeof(*queue));
	}
	queue[queue_count++] = (struct work){ task, kind, start, bytes };
}

static void work_off(void)
{
	size_t left = 0;

	for (size_t i = 0; i < queue_count; i++) {
		struct work work = queue[i];
		enum outcome outcome = GONE;

		if (work.task->alive)
			outcome = work.kind == FAULT ? answer_fault(work.task, work.start)
						     : unprotect(work.task, work.start, work.bytes);
		if (outcome == LATER)
			queue[left++] = work;
		else if (outcome == GONE)
			drop(work.task);
	}
	queue_count = left;
}

/* ---- what the kernel reports ----------------------------------------------------------------- */

/* Memory that a child does not inherit, although it has it (MADV_WIPEONFORK), is empty there. */
static void forget_wiped(struct task *child, int host_pid)
{
	unsigned long start = 0, end = 0, a, b;
	char path[64], line[4600];
	FILE *areas;

	snprintf(path, sizeof(path), "/proc/%d/smaps", host_pid);
	areas = fopen(path, "re");
	while (areas && fgets(line, sizeof(line), areas)) {
		if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
			start = a;
			end = b;
		} else if (!strncmp(line, "VmFlags:", 8) && strstr(line, " wf")) {
			forget(child, start, end);
		}
	}
	if (areas)
		fclose(areas);
}

/* Forked processes end without notice. */
static void reap(void)
{
	for (size_t i = 0; i < task_count; i++) {
		struct uffdio_copy request = { .dst = PAGE, .src = (uintptr_t)reason & ~(PAGE - 1), .len = PAGE };

		/* Nothing is registered there: ENOENT, as long as there is a process. */
		if (tasks[i]->alive && ioctl(tasks[i]->fd, UFFDIO_COPY, &request) && errno == ESRCH)
			drop(tasks[i]);
	}
}

static void add_child(const struct task *parent, int fd)
{
	struct task child = *parent;

	if (!parent->missing) {
		close(fd);
		return;
	}
	fcntl(fd, F_SETFL, O_NONBLOCK);
	child.fd = fd;
	child.tracked = 0; /* in no image */
	child.settled = get(NULL, child.content_pages / 8 + 1);
	memcpy(child.settled, parent->settled, child.content_pages / 8 + 1);
	child.areas = get(NULL, child.count * sizeof(*child.areas));
	memcpy(child.areas, parent->areas, child.count * sizeof(*child.areas));
	child.lazy = child.missing;
	forget_wiped(&child, parent->host_pid);
	add_task(child);
}

/* Reads all that a process has to report. */
static void read_events(struct task *task)
{
	struct uffd_msg message;

	while (task->alive) {
		ssize_t length = read(task->fd, &message, sizeof(message));

		if (length < 0 && errno == EAGAIN)
			return;
		if (length < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
			die("a forked process finds no room: %s", strerror(errno));
		if (length != sizeof(message)) {
			if (length < 0 && errno == EINTR)
				continue;
			die("its page server cannot read what is missing: %s", length < 0 ? strerror(errno) : "cut off");
		}
		switch (message.event) {
		case UFFD_EVENT_PAGEFAULT:
			enqueue(task, FAULT, message.arg.pagefault.address & ~(PAGE - 1), PAGE);
			break;
		case UFFD_EVENT_FORK:
			add_child(task, (int)message.arg.fork.ufd);
			reap();
			break;
		case UFFD_EVENT_REMAP:
			move(task, message.arg.remap.from, message.arg.remap.to, message.arg.remap.len);
			enqueue(task, UNPROTECT, message.arg.remap.to, message.arg.remap.len);
			break;
		case UFFD_EVENT_REMOVE:
		case UFFD_EVENT_UNMAP:
			forget(task, message.arg.remove.start, message.arg.remove.end);
			break;
		}
	}
}

static void read_all_events(void)
{
	for (size_t i = 0; i < task_count; i++) /* more may be added meanwhile */
		read_events(tasks[i]);
}

static void hear_criu(void)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int32_t pid;
	int fd;

	if (recv(criu, &pid, sizeof(pid), MSG_WAITALL) != sizeof(pid) || pid == FINISHED) {
		close(criu);
		criu = -1;
		if (!armed)
			die("CRIU has ended");
		return;
	}
	if (pid < 0) /* it has ended and has no memory */
		return;
	if (recvmsg(criu, &message, MSG_CMSG_CLOEXEC) <= 0 || !CMSG_FIRSTHDR(&message))
		die("CRIU has sent no userfaultfd of process %d", pid);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	load(pid, fd);
}

/* ---- requests -------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void answer(int client, const char *format, ...)
{
	char text[8192];
	va_list more;
	int length;

	va_start(more, format);
	length = vsnprintf(text, sizeof(text), format, more);
	va_end(more);
	if (length >= (int)sizeof(text))
		length = sizeof(text) - 1;
	send(client, text, length, MSG_NOSIGNAL | MSG_DONTWAIT); /* a client that is gone is noticed below */
}

static uint64_t all_missing(void)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < task_count; i++)
		pages += tasks[i]->missing;
	return pages;
}

/* The private memory of a process that is in no file: the next area of /proc/PID/maps. */
static int next_area(FILE *maps, unsigned long *start, unsigned long *end, int *is_stack)
{
	char line[4600], kind[8], name[16];
	unsigned long inode;

	while (fgets(line, sizeof(line), maps)) {
		*name = 0;
		if (sscanf(line, "%lx-%lx %7s %*x %*s %lu %15s", start, end, kind, &inode, name) < 4 || kind[3] != 'p' || inode)
			continue;
		*is_stack = !strcmp(name, "[stack]");
		if (!*name || *is_stack || !strcmp(name, "[heap]") || !strncmp(name, "[anon", 5))
			return 1;
	}
	return 0;
}

static FILE *open_maps(int host_pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/maps", host_pid);
	return fopen(path, "re");
}

/* The memory that has missing pages is registered, once more and for tracking too; what has none is released. All that
   is missing has to be in memory that is registered. */
static int arm_task(struct task *task)
{
	FILE *maps = open_maps(task->host_pid);
	uint64_t registered = 0; /* pages */
	unsigned long start, end;
	int is_stack, failed = 0;

	if (!maps)
		return -1;
	task->tracked = task->lazy >= LARGE_PAGES;
	while (!failed && next_area(maps, &start, &end, &is_stack)) {
		struct uffdio_register request = { .range = { start, end - start },
						   .mode = UFFDIO_REGISTER_MODE_MISSING |
							   (task->tracked ? UFFDIO_REGISTER_MODE_WP : 0) };
		size_t at = find(task, start), first;

		if (at == task->count || task->areas[at].start >= end) {
			ioctl(task->fd, UFFDIO_UNREGISTER, &request.range); /* it may not be registered */
			continue;
		}
		failed = ioctl(task->fd, UFFDIO_REGISTER, &request);
		first = at;
		for (; at < task->count && task->areas[at].start < end; at++) {
			uint64_t from = task->areas[at].start < start ? start : task->areas[at].start;
			uint64_t to = end_of(&task->areas[at]) > end ? end : end_of(&task->areas[at]);

			registered += (to - from) / PAGE;
		}
		/* What is read through /proc (arguments, variables) does not wait for what is missing. */
		for (; !failed && is_stack && first < at; first++)
			failed = fill(task, &task->areas[first], 0, task->areas[first].pages) != DONE;
	}
	fclose(maps);
	return failed || registered != task->lazy ? -1 : 0;
}

static void arm(int client, char *words)
{
	for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
		int pid, host_pid;

		if (sscanf(word, "%d:%d", &pid, &host_pid) != 2)
			continue;
		for (size_t i = 0; i < task_count; i++)
			if (tasks[i]->pid == pid)
				tasks[i]->host_pid = host_pid;
	}
	read_all_events();
	for (size_t i = 0; i < task_count; i++) {
		struct task *task = tasks[i];

		if (!task->host_pid || arm_task(task)) {
			answer(client, "error %d process %d", EINVAL, task->pid);
			return;
		}
	}
	armed = 1;
	answer(client, "ok %llu", (unsigned long long)(all_missing() * PAGE));
}

static void answer_tracked(int client)
{
	char text[4096] = "";
	size_t length = 0;

	reap();
	for (size_t i = 0; i < task_count && length < sizeof(text) - 16; i++)
		if (tasks[i]->alive && tasks[i]->tracked)
			length += sprintf(text + length, " %d", tasks[i]->host_pid);
	answer(client, "ok %llu%s", (unsigned long long)(all_missing() * PAGE), text);
}

/* Protects what was not written since the restore with another userfaultfd. 0, or -1. */
static int give_task(struct task *task, int fd)
{
	static struct region regions[SCAN_REGIONS];
	struct scan scan = { .size = sizeof(scan), .end = END_OF_MEMORY, .regions = (uintptr_t)regions,
			     .region_count = SCAN_REGIONS, .inverted = IS_WRITTEN | IS_PFNZERO,
			     .all_of = IS_WPALLOWED | IS_WRITTEN | IS_PFNZERO, .any_of = IS_PRESENT | IS_SWAPPED,
			     .returned = IS_WPALLOWED };
	struct region *unwritten = NULL;
	size_t count = 0;
	char path[64];
	int pagemap, is_stack, failed = 0;
	unsigned long start, end;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", task->host_pid);
	pagemap = open(path, O_RDONLY | O_CLOEXEC);
	if (pagemap < 0)
		return -1;
	while (!failed && scan.start < scan.end) {
		long got = ioctl(pagemap, SCAN, &scan);

		failed = got < 0 || scan.walk_end <= scan.start;
		if (got > 0) {
			unwritten = get(unwritten, (count + got) * sizeof(*unwritten));
			memcpy(unwritten + count, regions, got * sizeof(*unwritten));
			count += got;
		}
		scan.start = scan.walk_end;
	}
	close(pagemap);
	maps = failed ? NULL : open_maps(task->host_pid);
	failed |= !maps;
	for (size_t i = 0; !failed && next_area(maps, &start, &end, &is_stack);) {
		struct uffdio_register tracked = { .range = { start, end - start }, .mode = UFFDIO_REGISTER_MODE_WP };

		ioctl(task->fd, UFFDIO_UNREGISTER, &tracked.range); /* it may not be registered */
		while (i < count && unwritten[i].end <= start)
			i++;
		if (i == count || unwritten[i].start >= end || is_stack || end - start < AREA_BYTES)
			continue;
		failed = ioctl(fd, UFFDIO_REGISTER, &tracked);
		for (; !failed && i < count && unwritten[i].start < end; i++) {
			struct uffdio_writeprotect protect = { .mode = UFFDIO_WRITEPROTECT_MODE_WP };

			if (unwritten[i].start < start || unwritten[i].end > end) {
				/* One region may reach over two areas. */
				uint64_t from = unwritten[i].start < start ? start : unwritten[i].start;
				uint64_t to = unwritten[i].end > end ? end : unwritten[i].end;

				protect.range = (struct uffdio_range){ from, to - from };
				failed = ioctl(fd, UFFDIO_WRITEPROTECT, &protect);
				if (unwritten[i].end > end)
					break;
				continue;
			}
			protect.range = (struct uffdio_range){ unwritten[i].start, unwritten[i].end - unwritten[i].start };
			failed = ioctl(fd, UFFDIO_WRITEPROTECT, &protect);
		}
	}
	if (maps)
		fclose(maps);
	free(unwritten);
	return failed ? -1 : 0;
}

static void give(int client, char *words, const int *fds, int count)
{
	char text[4096] = "";
	size_t length = 0;
	int at = 0;

	do {
		progress = 0;
		read_all_events();
		work_off();
	} while (progress);
	if (queue_count || all_missing()) {
		answer(client, "error %d", EBUSY);
		return;
	}
	for (char *word = strtok(words, " "); word && at < count; word = strtok(NULL, " "), at++)
		for (size_t i = 0; i < task_count; i++)
			if (tasks[i]->alive && tasks[i]->tracked && tasks[i]->host_pid == atoi(word) && length < sizeof(text) - 16 &&
			    !give_task(tasks[i], fds[at]))
				length += sprintf(text + length, " %d", atoi(word));
	for (size_t i = 0; i < task_count; i++)
		drop(tasks[i]);
	answer(client, "ok%s", text);
	finish();
}

static void act(int client, char *packet, const int *fds, int count)
{
	char *space = strchr(packet, ' '), *words = space ? space + 1 : packet + strlen(packet);

	if (space)
		*space = 0;
	if (!strcmp(packet, "arm") && !armed) {
		while (criu >= 0 && poll(&(struct pollfd){ .fd = criu, .events = POLLIN }, 1, 0) > 0)
			hear_criu();
		arm(client, words);
	} else if (!strcmp(packet, "images")) {
		answer(client, "ok %s", folder_path);
	} else if (!strcmp(packet, "tracked")) {
		answer_tracked(client);
	} else if (!strcmp(packet, "fill")) {
		filling = client;
		retries = 0;
	} else if (!strcmp(packet, "wait")) {
		waiting = client;
	} else if (!strcmp(packet, "give") && armed) {
		give(client, words, fds, count);
	} else {
		answer(client, "error %d", ENOSYS);
	}
}

static void disconnect(int *client)
{
	if (filling == *client)
		filling = -1;
	if (waiting == *client)
		waiting = -1;
	close(*client);
	*client = -1;
}

static void receive(int *client)
{
	char packet[65536];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(MAX_GIVEN * sizeof(int))];
	} control;
	struct iovec data = { packet, sizeof(packet) - 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	ssize_t length = recvmsg(*client, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	int fds[MAX_GIVEN], count = 0;

	if (length < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (length <= 0) {
		disconnect(client);
		return;
	}
	packet[length] = 0;
	for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header))
		if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
			count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(header), count * sizeof(int));
		}
	if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		answer(*client, "error %d", EMSGSIZE);
	else
		act(*client, packet, fds, count);
	for (int i = 0; i < count; i++)
		close(fds[i]);
}

static void accept_client(void)
{
	int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	if (client < 0)
		return;
	for (int i = 0; i < MAX_CLIENTS; i++)
		if (clients[i] < 0) {
			clients[i] = client;
			return;
		}
	close(client);
}

/* ---- the work -------------------------------------------------------------------------------- */

static int is_to_be_filled(const struct task *task)
{
	if (!task->alive || !task->missing || !armed)
		return 0;
	return filling >= 0 || task->lazy < LARGE_PAGES || task->lazy - task->missing >= task->lazy / USED_PART;
}

static struct task *next_to_fill(void)
{
	for (size_t i = 0; i < task_count; i++)
		if (is_to_be_filled(tasks[i]))
			return tasks[i];
	return NULL;
}

/* Copies some of what is missing. */
static void fill_some(struct task *task)
{
	for (size_t i = task->fill_area; i < task->count; i++) {
		const struct area *area = &task->areas[i];
		uint64_t from = 0, to;
		enum outcome outcome;

		while (from < area->pages && is_settled(task, area->first + from))
			from++;
		if (from == area->pages) {
			task->fill_area = i + 1;
			continue;
		}
		to = from + FILL_PAGES < area->pages ? from + FILL_PAGES : area->pages;
		outcome = fill(task, area, from, to);
		if (outcome == GONE)
			drop(task);
		return;
	}
	if (task->missing)
		die("its page server has lost count of what is missing");
}

/* Processes that have everything, and are not tracked, need no server. Returns whether one does. */
static int drop_complete(void)
{
	size_t left = 0;
	int needed = 0;

	for (size_t i = 0; i < task_count; i++) {
		struct task *task = tasks[i];
		int queued = 0;

		for (size_t j = 0; j < queue_count; j++)
			queued |= queue[j].task == task;
		if (armed && task->alive && !task->missing && !task->tracked && !queued)
			drop(task);
		needed |= task->alive;
		if (task->alive || queued)
			tasks[left++] = task;
		else
			free(task);
	}
	task_count = left;
	return needed || !armed || criu >= 0;
}

static void tell_complete(void)
{
	if (filling >= 0)
		answer(filling, "ok");
	if (waiting >= 0 && criu < 0)
		answer(waiting, "ok");
	filling = -1;
	waiting = criu < 0 ? -1 : waiting;
}

__attribute__((noreturn)) static void serve(void)
{
	enum { KEEPER, OTHER, CRIU, LISTEN, CLIENTS, TASKS = CLIENTS + MAX_CLIENTS };
	struct pollfd *wait = NULL;

	for (;;) {
		size_t count;
		struct task *task;
		int timeout;

		progress = 0;
		read_all_events();
		work_off();
		if (!drop_complete())
			finish();
		if (armed && !all_missing() && !queue_count)
			tell_complete();
		task = queue_count ? NULL : next_to_fill();
		if (task)
			fill_some(task);
		retries = progress ? 0 : retries;
		if (filling >= 0 && !progress && ++retries > MAX_RETRIES) {
			answer(filling, "error %d", ENOMEM);
			filling = -1;
		}
		count = task_count;
		wait = get(wait, (TASKS + count) * sizeof(*wait));
		wait[KEEPER] = (struct pollfd){ .fd = keeper, .events = POLLIN };
		wait[OTHER] = (struct pollfd){ .fd = other, .events = POLLIN };
		wait[CRIU] = (struct pollfd){ .fd = criu, .events = POLLIN };
		wait[LISTEN] = (struct pollfd){ .fd = listener, .events = POLLIN };
		for (int i = 0; i < MAX_CLIENTS; i++)
			wait[CLIENTS + i] = (struct pollfd){ .fd = clients[i], .events = POLLIN };
		for (size_t i = 0; i < count; i++)
			wait[TASKS + i] = (struct pollfd){ .fd = tasks[i]->alive ? tasks[i]->fd : -1, .events = POLLIN };
		timeout = progress ? 0 : queue_count || task ? RETRY_MS : REAP_MS;
		if (poll(wait, TASKS + count, timeout) < 0 && errno != EINTR)
			die("its page server cannot wait: %s", strerror(errno));
		if (wait[KEEPER].revents)
			finish(); /* the box has ended */
		if (wait[OTHER].revents)
			die("the guard of its page server was killed");
		if (wait[CRIU].revents)
			hear_criu();
		for (int i = 0; i < MAX_CLIENTS; i++)
			if (clients[i] >= 0 && wait[CLIENTS + i].revents)
				receive(&clients[i]);
		if (wait[LISTEN].revents)
			accept_client();
		if (!progress && !queue_count && !task)
			reap();
	}
}

/* Waits for the end of the server, or of the box. */
static int guard(pid_t server)
{
	char why[100];
	int status = 0;

	while (waitpid(server, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && (!WEXITSTATUS(status) || WEXITSTATUS(status) == BOX_ENDED))
		return 0;
	if (WIFSIGNALED(status))
		snprintf(why, sizeof(why), "its page server was ended by signal %d", WTERMSIG(status));
	else
		snprintf(why, sizeof(why), "its page server has failed");
	end_box(why);
	return 1;
}

int main(int argc, char **argv)
{
	struct rlimit files;
	pid_t server;
	int score;

	if (argc != 7)
		return 2;
	images = atoi(argv[1]);
	criu = atoi(argv[2]);
	listener = atoi(argv[3]);
	keeper = atoi(argv[4]);
	socket_path = argv[5];
	folder_path = argv[6];
	if (fork()) /* the daemon need not wait for it */
		return 0;
	setsid();
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max; /* one for each forked process */
		setrlimit(RLIMIT_NOFILE, &files);
	}
	score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (score >= 0) {
		if (write(score, "-1000", 5) != 5) /* it is better not ended first, but may be */
			fail_because("%s", strerror(errno));
		close(score);
	}
	for (int signo = 1; signo < NSIG; signo++)
		if (signo != SIGCHLD)
			signal(signo, SIG_IGN); /* it ends with the box */
	for (int i = 0; i < MAX_CLIENTS; i++)
		clients[i] = -1;
	other = syscall(SYS_pidfd_open, getpid(), 0);
	if (other < 0)
		return 2;
	/* One table of descriptors for both. */
	server = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
	if (server < 0)
		return 2;
	if (server)
		return guard(server);
	serve();
}
