/* Has processes create a userfaultfd each, and takes it out of them.

   The kernel can report which memory was written since it was write-protected through a userfaultfd in
   asynchronous mode (engine/memory.py says what for). Such a descriptor covers the memory of the process that
   created it, so every process to be tracked has to create its own. It must not stay in that process's table:
   the process would see it, and CRIU would refuse it.

     track SOCKET PID ...

   The processes by their numbers on the host. For each, one packet goes to the socket at that descriptor:
   "PID ok" with the userfaultfd, ready for use, or "PID reason".

     track

   Tries in its own memory whether this kernel notices every write: "ok\n" on standard output, or the reason.

   A process is stopped for this for some ten microseconds, at any point of its work: its main thread is made
   to do two system calls. Then it is put back so that the kernel continues the interrupted work as after any
   stop. Signals wait meanwhile. If this program is killed in between, the process is killed too: half way
   through it is of no use, and the session has its checkpoints. */

#define _GNU_SOURCE
#include <asm/unistd.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "reason.h"
#include "tracee.h"
#include "waypoint.h"

#define MAX_TRIES 500 /* times 0.1 ms: a task that does not stop by then is in a deep sleep, as in vfork(2) */
#define USER_MODE_ONLY 1 /* needs no privilege; in asynchronous mode no fault is handled outside the kernel */
#define OPTIONS PTRACE_O_TRACESYSGOOD
#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

static int owes_stop; /* the borrowed task got a SIGSTOP, which it gets again when it is released */

/* The address of a system call instruction in a process, in the kernel's own code there; or 0. */
static unsigned long find_instruction(pid_t pid)
{
	unsigned char code[16384];
	unsigned long start, end;
	struct iovec ours, theirs;

	if (find_vdso(pid, &start, &end) || end - start > sizeof(code))
		return 0;
	ours = (struct iovec){ code, end - start };
	theirs = (struct iovec){ (void *)start, end - start };
	if (process_vm_readv(pid, &ours, 1, &theirs, 1, 0) != (ssize_t)(end - start))
		return 0;
	for (size_t i = 0; i + 1 < end - start; i++)
		if (code[i] == 0x0f && code[i + 1] == 0x05)
			return start + i;
	return 0;
}

/* Lets a borrowed task run to where the kernel decides how the interrupted work goes on. */
static int run_to_interruption(pid_t pid)
{
	int kind;

	do {
		if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || ptrace(PTRACE_CONT, pid, 0, 0))
			return -1;
		kind = wait_for_stop(pid, 0);
		owes_stop |= kind == SIGSTOP;
	} while (kind == SIGSTOP);
	return kind >> 8 == PTRACE_EVENT_STOP ? 0 : -1;
}

/* A userfaultfd of the stopped task, as a descriptor of this program; or -1. */
static int create_userfaultfd(pid_t pid, const registers *stopped, unsigned long instruction)
{
	struct remote_call create = { instruction, __NR_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY, 0, 0 };
	struct remote_call close_it = { instruction, __NR_close, 0, 0, 0 };
	struct uffdio_api api = { .api = UFFD_API, .features = WP_ASYNC };
	long theirs, closed;
	int process, ours = -1;

	if (call_remotely(pid, stopped, create, &theirs, &owes_stop))
		return fail_because("it cannot be made to call");
	if (theirs < 0)
		return fail_because("userfaultfd: %s", strerror(-theirs));
	process = syscall(SYS_pidfd_open, pid, 0);
	if (process >= 0) {
		ours = syscall(SYS_pidfd_getfd, process, theirs, 0);
		close(process);
	}
	if (ours < 0)
		fail_because("pidfd_getfd: %s", strerror(errno));
	close_it.a = theirs;
	if (call_remotely(pid, stopped, close_it, &closed, &owes_stop) || closed) {
		fail_because("it keeps the descriptor");
	} else if (ours >= 0) {
		if (!ioctl(ours, UFFDIO_API, &api))
			return ours;
		fail_because("no asynchronous write protection: %s", strerror(errno));
	}
	if (ours >= 0)
		close(ours);
	return -1;
}

static int track(pid_t pid)
{
	uint64_t mask_before, mask_all = ~0ULL;
	registers stopped;
	unsigned long instruction;
	int fd, kind = 0;

	if (ptrace(PTRACE_SEIZE, pid, 0, OPTIONS))
		return fail_because("it cannot be traced: %s", strerror(errno));
	if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || (kind = wait_for_stop(pid, MAX_TRIES)) != INTERRUPT_STOP) {
		/* It is stopped by job control, about to get a signal, or in a deep sleep. The end of this program
		   releases it as it is. */
		if (kind && !(kind >> 8))
			ptrace(PTRACE_DETACH, pid, 0, kind);
		return fail_because("it does not stop");
	}
	instruction = find_instruction(pid);
	if (!instruction || get_registers(pid, &stopped) || stopped.cs != USER_CODE_SEGMENT ||
	    ptrace(PTRACE_GETSIGMASK, pid, sizeof(mask_before), &mask_before) ||
	    ptrace(PTRACE_SETOPTIONS, pid, 0, OPTIONS | PTRACE_O_EXITKILL | PTRACE_O_SUSPEND_SECCOMP) ||
	    ptrace(PTRACE_SETSIGMASK, pid, sizeof(mask_all), &mask_all)) {
		fail_because("it cannot be borrowed: %s", strerror(errno));
		ptrace(PTRACE_SETOPTIONS, pid, 0, OPTIONS);
		ptrace(PTRACE_DETACH, pid, 0, 0);
		return -1;
	}
	owes_stop = 0;
	fd = create_userfaultfd(pid, &stopped, instruction);
	/* Back to a stop of the first kind: the kernel restarts an interrupted call, or not, by its own rules. */
	if (run_to_interruption(pid) || set_registers(pid, &stopped) ||
	    ptrace(PTRACE_SETSIGMASK, pid, sizeof(mask_before), &mask_before) ||
	    ptrace(PTRACE_SETOPTIONS, pid, 0, OPTIONS) || ptrace(PTRACE_DETACH, pid, 0, 0)) {
		fail_because("it cannot be released: %s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	if (owes_stop)
		kill(pid, SIGSTOP);
	return fd;
}

/* Sends the result for one process: its userfaultfd, or the reason why there is none. */
static void send_result(int socket, pid_t pid, int fd)
{
	char text[sizeof(reason) + 16];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .header = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec data = { text, 0 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };

	snprintf(text, sizeof(text), "%d %s", pid, fd < 0 ? reason : "ok");
	data.iov_len = strlen(text);
	if (fd >= 0) {
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control.room);
	}
	sendmsg(socket, &message, MSG_NOSIGNAL);
}

/* ---- whether this kernel can be relied on ------------------------------------------------------ */

#define PAGES 16

/* Which of the pages from `at` on are not known to be unchanged, one bit each (by the same rule as in shim.c).
   With `arm` they are protected afterwards. */
static long find_written(int pagemap, char *at, int arm)
{
	struct region regions[PAGES];
	struct scan scan = { .size = sizeof(scan), .flags = arm ? SCAN_WP_MATCHING : 0, .start = (uintptr_t)at,
			     .end = (uintptr_t)at + PAGES * PAGE, .regions = (uintptr_t)regions,
			     .region_count = PAGES, .all_of = arm ? IS_WPALLOWED | IS_WRITTEN : 0,
			     .any_of = IS_PRESENT, .returned = IS_WPALLOWED | IS_WRITTEN };
	long count = ioctl(pagemap, SCAN, &scan), pages = 0;

	for (long i = 0; i < count; i++)
		for (uint64_t page = regions[i].start; page < regions[i].end; page += PAGE)
			if (regions[i].categories != IS_WPALLOWED)
				pages |= 1L << (page - (uintptr_t)at) / PAGE;
	return count < 0 ? -1 : pages;
}

static char *map_area(char *at)
{
	char *area = mmap(at, PAGES * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);

	return area == MAP_FAILED ? NULL : area;
}

/* Whether inherited memory that is protected here counts as unchanged in a child. */
static int is_unchanged_in_child(char *at)
{
	int status, pagemap;
	pid_t pid = fork();

	if (pid == 0) {
		pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		_exit(find_written(pagemap, at, 0) != (1L << PAGES) - 1);
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid || status;
}

static int probe(void)
{
	const long all = (1L << PAGES) - 1;
	struct uffdio_api api = { .api = UFFD_API, .features = WP_ASYNC };
	struct uffdio_register tracked = { .mode = UFFDIO_REGISTER_MODE_WP };
	struct iovec ours, theirs;
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), ends[2];
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
	char *memory = map_area(NULL), *elsewhere = map_area(NULL), *moved;

	if (pagemap < 0 || !memory || !elsewhere || pipe2(ends, O_CLOEXEC) || fd < 0 || ioctl(fd, UFFDIO_API, &api))
		return fail_because("no asynchronous write protection: %s", strerror(errno));
	memset(memory, 1, PAGES * PAGE);
	tracked.range.start = (uintptr_t)memory;
	tracked.range.len = PAGES * PAGE;
	if (ioctl(fd, UFFDIO_REGISTER, &tracked))
		return fail_because("memory cannot be tracked: %s", strerror(errno));
	if (find_written(pagemap, memory, 1) != all)
		return fail_because("memory cannot be protected: %s", strerror(errno));
	if (find_written(pagemap, memory, 0))
		return fail_because("memory that was not written counts as written");
	/* By the process, by the kernel for it, and by another process. */
	memory[3 * PAGE] = 2;
	if (write(ends[1], "x", 1) != 1 || read(ends[0], memory + 5 * PAGE, 1) != 1)
		return fail_because("%s", strerror(errno));
	ours = (struct iovec){ "x", 1 };
	theirs = (struct iovec){ memory + 7 * PAGE, 1 };
	if (process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0) != 1)
		return fail_because("%s", strerror(errno));
	if (find_written(pagemap, memory, 0) != (1L << 3 | 1L << 5 | 1L << 7))
		return fail_because("writes are overlooked");
	find_written(pagemap, memory, 1);
	/* Inherited: the child's memory is not protected; the parent's still is, also when it has to be copied. */
	if (is_unchanged_in_child(memory) || find_written(pagemap, memory, 0))
		return fail_because("memory of a child counts as unchanged");
	memory[2 * PAGE] = 2;
	/* Given back and used again, once read and once written. */
	if (madvise(memory + 8 * PAGE, 2 * PAGE, MADV_DONTNEED))
		return fail_because("%s", strerror(errno));
	memory[8 * PAGE] = *(volatile char *)(memory + 9 * PAGE);
	if ((find_written(pagemap, memory, 0) & ~(1L << 9)) != (1L << 2 | 1L << 8))
		return fail_because("writes to fresh memory are overlooked");
	/* All of it moved, and something else in its place. */
	moved = mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere);
	if (moved != elsewhere || !map_area(memory))
		return fail_because("%s", strerror(errno));
	memset(memory, 3, PAGES * PAGE);
	if ((find_written(pagemap, moved, 0) | 1L << 9) != all || find_written(pagemap, memory, 0) != all)
		return fail_because("memory that has moved counts as unchanged");
	/* Some of it moved away and back, between other pages. */
	if (ioctl(fd, UFFDIO_REGISTER, &tracked) || find_written(pagemap, memory, 1) != all)
		return fail_because("memory cannot be protected again: %s", strerror(errno));
	if (mremap(memory + 4 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) != elsewhere ||
	    mremap(elsewhere, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + 4 * PAGE) != memory + 4 * PAGE)
		return fail_because("%s", strerror(errno));
	memory[11 * PAGE] = 2;
	if ((find_written(pagemap, memory, 0) & (1L << 4 | 1L << 11)) != (1L << 4 | 1L << 11))
		return fail_because("writes beside memory that has moved are overlooked");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		printf("%s\n", probe() ? reason : "ok");
		return 0;
	}
	for (int i = 2; i < argc; i++) {
		int fd;

		*reason = 0;
		fd = track(atoi(argv[i]));
		send_result(atoi(argv[1]), atoi(argv[i]), fd);
		if (fd >= 0)
			close(fd);
	}
	return 0;
}
