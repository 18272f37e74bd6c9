/* Has processes make a userfaultfd each, and takes it out of them.

   Which memory was written since some moment the kernel tells of memory that was write-protected through a
   userfaultfd in asynchronous mode (tracking.py says what for). Such a descriptor watches the memory of whoever
   made it, so every process to be watched has to make its own. It must not stay in its table: the process
   would see it, and CRIU would refuse it.

     track SOCKET PID ...

   The processes as the host numbers them. For each, one packet goes to the socket at that descriptor: "PID ok" with
   the userfaultfd, ready for use, or "PID reason".

     track

   Tries whether this kernel notices every write, in memory of its own: "ok\n" on standard output, or the reason.

   A process is stopped for this for some ten microseconds, in whatever it does: its main thread is made to do
   two system calls, and is put back so that the kernel goes on with what it was interrupted in as it does after
   any stop. Signals wait meanwhile. Should this program be killed in between, so is the process: half way
   it is of no use, and the session has its checkpoints. */

#define _GNU_SOURCE
#include <asm/unistd.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE 500 /* times 0.1 ms: who does not stop by then sleeps deeply, as in vfork(2) */
#define SYSCALL_STOP (SIGTRAP | 0x80)
#define INTERRUPT_STOP (SIGTRAP | PTRACE_EVENT_STOP << 8)
#define USER_MODE_ONLY 1 /* what everybody may make; in asynchronous mode there is nobody to handle a fault anyway */
#define WP_ASYNC (1ULL << 15)
#define OPTIONS PTRACE_O_TRACESYSGOOD
#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

#if !defined(__x86_64__)
#error "track knows x86-64"
#endif

typedef struct user_regs_struct registers;
static char reason[160];

static int because(const char *format, ...)
{
	va_list more;

	va_start(more, format);
	vsnprintf(reason, sizeof(reason), format, more);
	va_end(more);
	return -1;
}

static int get_registers(pid_t pid, registers *r)
{
	struct iovec room = { r, sizeof(*r) };

	return ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &room);
}

static int set_registers(pid_t pid, const registers *r)
{
	struct iovec room = { (void *)r, sizeof(*r) };

	return ptrace(PTRACE_SETREGSET, pid, NT_PRSTATUS, &room);
}

/* Waits for the task's next stop and tells its kind; 0 when it does not come in time. A task whose registers are
   ours is waited for as long as it takes: it makes two calls that cannot block, but it may get little of the
   processor, and could not be left alone. */
static int next_stop(pid_t pid, int patient)
{
	static const struct timespec moment = { .tv_nsec = 100000 };
	int status;

	if (patient)
		return waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status) ? status >> 8 : 0;
	for (int i = 0; i < PATIENCE; i++) {
		pid_t got = waitpid(pid, &status, __WALL | WNOHANG);

		if (got == pid)
			return WIFSTOPPED(status) ? status >> 8 : 0;
		if (got < 0)
			return 0;
		if (i > 10) /* mostly it is a matter of microseconds */
			nanosleep(&moment, NULL);
	}
	return 0;
}

/* The address of a system call instruction in the kernel's own code in every process, or 0. */
static unsigned long find_instruction(pid_t pid)
{
	char path[64], line[512];
	unsigned char code[16384];
	unsigned long found = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "re");
	while (maps && !found && fgets(line, sizeof(line), maps)) {
		unsigned long start, end;

		if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &start, &end) == 2 &&
		    end - start <= sizeof(code)) {
			struct iovec ours = { code, end - start }, theirs = { (void *)start, end - start };

			if (process_vm_readv(pid, &ours, 1, &theirs, 1, 0) != (ssize_t)(end - start))
				break;
			for (size_t i = 0; i + 1 < end - start && !found; i++)
				if (code[i] == 0x0f && code[i + 1] == 0x05)
					found = start + i;
		}
	}
	if (maps)
		fclose(maps);
	return found;
}

static int owes_stop; /* the task was told to stop meanwhile, which no mask holds back */

/* Lets a borrowed task go on to the entry of a call, or to its exit. Stops on the way, for signals that stop or
   continue it, are passed by. */
static int to_call(pid_t pid)
{
	int kind;

	do {
		if (ptrace(PTRACE_SYSCALL, pid, 0, 0))
			return -1;
		kind = next_stop(pid, 1);
		owes_stop |= kind == SIGSTOP;
	} while (kind == SIGSTOP || kind >> 8 == PTRACE_EVENT_STOP);
	return kind == SYSCALL_STOP ? 0 : -1;
}

/* And to where the kernel decides how it goes on with what it was interrupted in. */
static int to_interruption(pid_t pid)
{
	int kind;

	do {
		if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || ptrace(PTRACE_CONT, pid, 0, 0))
			return -1;
		kind = next_stop(pid, 1);
		owes_stop |= kind == SIGSTOP;
	} while (kind == SIGSTOP);
	return kind >> 8 == PTRACE_EVENT_STOP ? 0 : -1;
}

static int call(pid_t pid, const registers *stopped, unsigned long at, long number, long argument, long *answer)
{
	registers r = *stopped;

	r.rip = at;
	r.rax = number;
	r.rdi = argument;
	r.orig_rax = -1;
	if (set_registers(pid, &r))
		return -1;
	/* To the call's entry, then to its exit. */
	for (int i = 0; i < 2; i++)
		if (to_call(pid))
			return -1;
	if (get_registers(pid, &r))
		return -1;
	*answer = (long)r.rax;
	return 0;
}

/* The descriptor, ours; or -1. The task is stopped where the kernel decides how to go on, before and after. */
static int make(pid_t pid, const registers *stopped, unsigned long at)
{
	struct uffdio_api api = { .api = UFFD_API, .features = WP_ASYNC };
	long theirs, closed;
	int process, ours = -1;

	if (call(pid, stopped, at, __NR_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY, &theirs))
		return because("it cannot be made to call");
	if (theirs < 0)
		return because("userfaultfd: %s", strerror(-theirs));
	process = syscall(SYS_pidfd_open, pid, 0);
	if (process >= 0) {
		ours = syscall(SYS_pidfd_getfd, process, theirs, 0);
		close(process);
	}
	if (call(pid, stopped, at, __NR_close, theirs, &closed) || closed)
		return because("it keeps the descriptor");
	if (ours < 0)
		return because("pidfd_getfd: %s", strerror(errno));
	if (ioctl(ours, UFFDIO_API, &api)) {
		because("no asynchronous write protection: %s", strerror(errno));
		close(ours);
		return -1;
	}
	return ours;
}

static int track(pid_t pid)
{
	uint64_t before, all = ~0ULL;
	registers stopped;
	unsigned long at;
	int fd, kind = 0;

	if (ptrace(PTRACE_SEIZE, pid, 0, OPTIONS))
		return because("it cannot be traced: %s", strerror(errno));
	if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || (kind = next_stop(pid, 0)) != INTERRUPT_STOP) {
		/* Stopped by a job's signal, about to get one, or in a deep sleep: our end lets it go as it is. */
		if (kind && !(kind >> 8))
			ptrace(PTRACE_DETACH, pid, 0, kind);
		return because("it does not stop");
	}
	at = find_instruction(pid);
	if (!at || get_registers(pid, &stopped) || stopped.cs != 0x33 ||
	    ptrace(PTRACE_GETSIGMASK, pid, sizeof(before), &before) ||
	    ptrace(PTRACE_SETOPTIONS, pid, 0, OPTIONS | PTRACE_O_EXITKILL | PTRACE_O_SUSPEND_SECCOMP) ||
	    ptrace(PTRACE_SETSIGMASK, pid, sizeof(all), &all)) {
		ptrace(PTRACE_SETOPTIONS, pid, 0, OPTIONS);
		ptrace(PTRACE_DETACH, pid, 0, 0);
		return because("it cannot be borrowed: %s", strerror(errno));
	}
	owes_stop = 0;
	fd = make(pid, &stopped, at);
	/* Back to a stop of the first kind, so that an interrupted call is restarted, or not, by the kernel's rules. */
	if (to_interruption(pid) || set_registers(pid, &stopped) || ptrace(PTRACE_SETSIGMASK, pid, sizeof(before), &before) ||
	    ptrace(PTRACE_SETOPTIONS, pid, 0, OPTIONS) || ptrace(PTRACE_DETACH, pid, 0, 0))
		return because("it cannot be let go: %s", strerror(errno));
	if (owes_stop)
		kill(pid, SIGSTOP);
	return fd;
}

static void tell(int socket, pid_t pid, int fd)
{
	char text[sizeof(reason) + 16];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .header = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec data = { text, 0 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };

	data.iov_len = snprintf(text, sizeof(text), "%d %s", pid, fd < 0 ? reason : "ok");
	if (fd >= 0) {
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control.room);
	}
	sendmsg(socket, &message, MSG_NOSIGNAL);
}

/* ---- whether it can be relied on ------------------------------------------------------------- */

/* PAGEMAP_SCAN of linux/fs.h, which the headers of this machine may be too old for. */
#define SCAN 0xc0606610UL
#define SCAN_WP_MATCHING 0x1
#define IS_WPALLOWED 0x01
#define IS_WRITTEN 0x02
#define IS_PRESENT 0x08
#define PAGES 16
#define PAGE 4096UL

struct scan {
	uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages, inverted, all_of, any_of, told;
};
struct region {
	uint64_t start, end, categories;
};

/* Which of the pages from `at` on are not known to be unchanged, one bit each (shim.c goes by the same rule); with
   `arm` they are protected afterwards. */
static long written(int pagemap, char *at, int arm)
{
	struct region regions[PAGES];
	struct scan scan = { .size = sizeof(scan), .flags = arm ? SCAN_WP_MATCHING : 0, .start = (uintptr_t)at,
			     .end = (uintptr_t)at + PAGES * PAGE, .regions = (uintptr_t)regions,
			     .region_count = PAGES, .all_of = arm ? IS_WPALLOWED | IS_WRITTEN : 0,
			     .any_of = IS_PRESENT, .told = IS_WPALLOWED | IS_WRITTEN };
	long count = ioctl(pagemap, SCAN, &scan), found = 0;

	for (long i = 0; i < count; i++)
		for (uint64_t page = regions[i].start; page < regions[i].end; page += PAGE)
			if (regions[i].categories != IS_WPALLOWED)
				found |= 1L << (page - (uintptr_t)at) / PAGE;
	return count < 0 ? -1 : found;
}

static char *area(char *at)
{
	char *found = mmap(at, PAGES * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);

	return found == MAP_FAILED ? NULL : found;
}

/* What a child sees of memory that is protected here, and what happens here when both write. */
static int in_child(char *at)
{
	int status, pagemap;
	pid_t pid = fork();

	if (pid == 0) {
		pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		_exit(written(pagemap, at, 0) != (1L << PAGES) - 1);
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid || status;
}

static int probe(void)
{
	const long all = (1L << PAGES) - 1;
	struct uffdio_api api = { .api = UFFD_API, .features = WP_ASYNC };
	struct uffdio_register watch = { .mode = UFFDIO_REGISTER_MODE_WP };
	struct iovec ours, theirs;
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), ends[2];
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
	char *memory = area(NULL), *elsewhere = area(NULL), *moved;

	if (pagemap < 0 || !memory || !elsewhere || pipe2(ends, O_CLOEXEC) || fd < 0 || ioctl(fd, UFFDIO_API, &api))
		return because("no asynchronous write protection: %s", strerror(errno));
	memset(memory, 1, PAGES * PAGE);
	watch.range.start = (uintptr_t)memory;
	watch.range.len = PAGES * PAGE;
	if (ioctl(fd, UFFDIO_REGISTER, &watch))
		return because("memory cannot be watched: %s", strerror(errno));
	if (written(pagemap, memory, 1) != all)
		return because("memory cannot be protected: %s", strerror(errno));
	if (written(pagemap, memory, 0))
		return because("what was not written counts as written");
	/* By the process, by the kernel for it, and by another process. */
	memory[3 * PAGE] = 2;
	if (write(ends[1], "x", 1) != 1 || read(ends[0], memory + 5 * PAGE, 1) != 1)
		return because("%s", strerror(errno));
	ours = (struct iovec){ "x", 1 };
	theirs = (struct iovec){ memory + 7 * PAGE, 1 };
	if (process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0) != 1)
		return because("%s", strerror(errno));
	if (written(pagemap, memory, 0) != (1L << 3 | 1L << 5 | 1L << 7))
		return because("writes are overlooked");
	written(pagemap, memory, 1);
	/* Inherited: the child's is not protected, and the parent's still is, also when it has to be copied. */
	if (in_child(memory) || written(pagemap, memory, 0))
		return because("memory of a child counts as unchanged");
	memory[2 * PAGE] = 2;
	/* Given back and used again, once read and once written. */
	if (madvise(memory + 8 * PAGE, 2 * PAGE, MADV_DONTNEED))
		return because("%s", strerror(errno));
	memory[8 * PAGE] = *(volatile char *)(memory + 9 * PAGE);
	if ((written(pagemap, memory, 0) & ~(1L << 9)) != (1L << 2 | 1L << 8))
		return because("writes to fresh memory are overlooked");
	/* All of it moved, and something else in its place. */
	moved = mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere);
	if (moved != elsewhere || !area(memory))
		return because("%s", strerror(errno));
	memset(memory, 3, PAGES * PAGE);
	if ((written(pagemap, moved, 0) | 1L << 9) != all || written(pagemap, memory, 0) != all)
		return because("memory that has moved counts as unchanged");
	/* Some of it moved away and back, between others. */
	if (ioctl(fd, UFFDIO_REGISTER, &watch) || written(pagemap, memory, 1) != all)
		return because("memory cannot be protected again: %s", strerror(errno));
	if (mremap(memory + 4 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) != elsewhere ||
	    mremap(elsewhere, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + 4 * PAGE) != memory + 4 * PAGE)
		return because("%s", strerror(errno));
	memory[11 * PAGE] = 2;
	if ((written(pagemap, memory, 0) & (1L << 4 | 1L << 11)) != (1L << 4 | 1L << 11))
		return because("writes beside memory that has moved are overlooked");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		printf("%s\n", probe() ? reason : "ok");
		return 0;
	}
	for (int i = 2; i < argc; i++) {
		int fd = track(atoi(argv[i]));

		tell(atoi(argv[1]), atoi(argv[i]), fd);
		if (fd >= 0)
			close(fd);
	}
	return 0;
}
