/* Borrowing a task by ptrace(2): its registers, its stops, and system calls made in its name. */

#ifndef TRACEE_H
#define TRACEE_H

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>

#if !defined(__x86_64__)
#error "tasks are borrowed on x86-64 only"
#endif

#define SYSCALL_STOP (SIGTRAP | 0x80)
#define INTERRUPT_STOP (SIGTRAP | PTRACE_EVENT_STOP << 8)
#define USER_CODE_SEGMENT 0x33 /* of a 64-bit program */

typedef struct user_regs_struct registers;

static inline int get_registers(pid_t pid, registers *r)
{
	struct iovec data = { r, sizeof(*r) };

	return ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &data);
}

static inline int set_registers(pid_t pid, const registers *r)
{
	struct iovec data = { (void *)r, sizeof(*r) };

	return ptrace(PTRACE_SETREGSET, pid, NT_PRSTATUS, &data);
}

/* Waits for the task's next stop and returns its kind; 0 when there will be none, or none within `tries`
   times 0.1 ms. With `tries` of 0 there is no limit: a task whose registers were changed cannot be left
   alone, and the calls it makes do not block, but it may get little of the processor. */
static inline int wait_for_stop(pid_t pid, int tries)
{
	static const struct timespec moment = { .tv_nsec = 100000 };
	int status;

	if (!tries)
		return waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status) ? status >> 8 : 0;
	for (int i = 0; i < tries; i++) {
		pid_t pid_stopped = waitpid(pid, &status, __WALL | WNOHANG);

		if (pid_stopped == pid)
			return WIFSTOPPED(status) ? status >> 8 : 0;
		if (pid_stopped < 0)
			return 0;
		if (i > 10) /* mostly it is a matter of microseconds */
			nanosleep(&moment, NULL);
	}
	return 0;
}

/* Lets a borrowed task run to the entry of a system call, or from there to its exit. Stops on the way, for
   signals that stop or continue the task, are passed over. No signal mask holds SIGSTOP back: `*owes_stop`
   is set when the task got one, which the caller has to send again. */
static inline int run_to_syscall(pid_t pid, int *owes_stop)
{
	int kind;

	do {
		if (ptrace(PTRACE_SYSCALL, pid, 0, 0))
			return -1;
		kind = wait_for_stop(pid, 0);
		*owes_stop |= kind == SIGSTOP;
	} while (kind == SIGSTOP || kind >> 8 == PTRACE_EVENT_STOP);
	return kind == SYSCALL_STOP ? 0 : -1;
}

struct remote_call {
	unsigned long instruction; /* the address of a system call instruction in the task */
	long number, a, b, c;
};

/* Has the stopped task make one system call. The caller puts its registers back. */
static inline int call_remotely(pid_t pid, const registers *stopped, struct remote_call call, long *result,
				int *owes_stop)
{
	registers r = *stopped;

	r.rip = call.instruction;
	r.rax = call.number;
	r.orig_rax = -1;
	r.rdi = call.a;
	r.rsi = call.b;
	r.rdx = call.c;
	/* To the call's entry, then to its exit. */
	if (set_registers(pid, &r) || run_to_syscall(pid, owes_stop) || run_to_syscall(pid, owes_stop) ||
	    get_registers(pid, &r))
		return -1;
	*result = (long)r.rax;
	return 0;
}

/* Where the kernel's own code (vdso) is in a process. 0, or -1 when it has none. */
static inline int find_vdso(pid_t pid, unsigned long *start, unsigned long *end)
{
	char path[64], line[512];
	int result = -1;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "re");
	if (!maps)
		return -1;
	while (result && fgets(line, sizeof(line), maps))
		if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", start, end) == 2)
			result = 0;
	fclose(maps);
	return result;
}

#endif
