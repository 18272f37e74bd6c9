/* Takes POSIX locks again inside the processes that held them.

   CRIU restores a process's locks first and its mappings later: it opens each mapped file once more and
   closes that descriptor when the mapping exists, and closing any descriptor of a file drops all of the
   process's POSIX locks on it. No error is reported. SQLite maps the file that its locks are on, so after
   a plain restore two writers are admitted and a committed row of one of them is lost.

   A POSIX lock belongs to a process, and only that process can take it. So this program, run by the keeper
   while CRIU waits in its "post-restore" stage, makes the processes do it: all tasks exist by then, every
   mapping is in place, and each task sleeps in a futex wait of CRIU's restorer. Credentials and seccomp
   filters are not restored yet, so nothing can refuse the call.

     relock PID:FD:TYPE:START:LENGTH ...

   The process by its number in its own namespace, the descriptor through which it holds the lock, F_RDLCK
   or F_WRLCK, and a length of 0 for "to the end". "ok\n", or a line with the reason, goes to descriptor 3.

   In every case a task goes on as it was: its registers and the words of its stack that were used are put
   back before it is released. If this program is killed in between, the kernel kills the task with it, so
   that the restore fails instead of going wrong. */

#define _GNU_SOURCE
#include <asm/unistd.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "reason.h"
#include "tracee.h"

#define ANSWER_FD 3
#define MAX_TRIES 2000 /* times 0.1 ms */
#define RED_ZONE 128
#define SYSCALL_LENGTH 2

/* What the kernel leaves in the result of a call that it is about to restart; user space never sees these. */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

struct lock {
	pid_t pid;
	int fd, type;
	long long start, length;
};

static int is_in_syscall(const registers *r)
{
	return (long)r->orig_rax >= 0 && r->cs == USER_CODE_SEGMENT;
}

static int is_syscall_instruction(unsigned long text)
{
	return (text & 0xffff) == 0x050f;
}

/* Lets the call that the task was in start again when the task goes on. The kernel does this itself only on
   the way out of the stop that interrupted the call, and the task is released from a later one. */
static void restart_call(registers *r)
{
	switch (-(long)r->rax) {
	case ERESTARTSYS:
	case ERESTARTNOINTR:
	case ERESTARTNOHAND:
		r->rax = r->orig_rax;
		break;
	case ERESTART_RESTARTBLOCK: /* with the rest of its timeout */
		r->rax = __NR_restart_syscall;
		break;
	default:
		return;
	}
	r->rip -= SYSCALL_LENGTH;
	r->orig_rax = -1;
}

static int read_memory(pid_t pid, unsigned long address, void *here, size_t length)
{
	struct iovec ours = { here, length }, theirs = { (void *)address, length };

	return process_vm_readv(pid, &ours, 1, &theirs, 1, 0) == (ssize_t)length ? 0 : -1;
}

static int write_memory(pid_t pid, unsigned long address, void *here, size_t length)
{
	struct iovec ours = { here, length }, theirs = { (void *)address, length };

	return process_vm_writev(pid, &ours, 1, &theirs, 1, 0) == (ssize_t)length ? 0 : -1;
}

/* Stops the task inside its futex wait. It may be just before the wait: then it is tried again. */
static int stop(pid_t pid, registers *r)
{
	static const struct timespec moment = { .tv_nsec = 100000 };

	for (int i = 0; i < MAX_TRIES; i++) {
		unsigned long text;

		if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || wait_for_stop(pid, 0) != INTERRUPT_STOP ||
		    get_registers(pid, r))
			return fail_because("process %d does not stop: %s", pid, strerror(errno));
		errno = 0;
		text = ptrace(PTRACE_PEEKTEXT, pid, r->rip - SYSCALL_LENGTH, 0);
		if (is_in_syscall(r) && !errno && is_syscall_instruction(text))
			return 0;
		if (ptrace(PTRACE_CONT, pid, 0, 0))
			return fail_because("process %d does not go on: %s", pid, strerror(errno));
		nanosleep(&moment, NULL);
	}
	return fail_because("process %d is not where CRIU leaves it", pid);
}

/* Takes the locks of a stopped process. `address`: room for a struct flock in its memory. */
static int take(pid_t pid, const registers *stopped, unsigned long address, const struct lock *locks, int count,
		int *owes_stop)
{
	for (int i = 0; i < count; i++) {
		struct flock wanted = { .l_type = locks[i].type, .l_whence = SEEK_SET,
					.l_start = locks[i].start, .l_len = locks[i].length };
		struct remote_call call = { stopped->rip - SYSCALL_LENGTH, __NR_fcntl, locks[i].fd, F_SETLK,
					    (long)address };
		long result;

		if (locks[i].pid != pid)
			continue;
		if (write_memory(pid, address, &wanted, sizeof(wanted)) ||
		    call_remotely(pid, stopped, call, &result, owes_stop))
			return fail_because("process %d cannot be made to lock: %s", pid, strerror(errno));
		if (result)
			return fail_because("process %d, descriptor %d: %s", pid, locks[i].fd,
					    result == -EAGAIN || result == -EACCES ?
						    "another process holds the lock" :
						    strerror(-result));
	}
	return 0;
}

/* Takes all locks of one process. */
static int relock(pid_t pid, const struct lock *locks, int count)
{
	registers stopped, after;
	char saved[sizeof(struct flock)];
	unsigned long address;
	int failed, owes_stop = 0;

	if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD))
		return fail_because("process %d cannot be traced: %s", pid, strerror(errno));
	/* A failure up to here has changed nothing, and the end of this program releases the task. */
	if (stop(pid, &stopped))
		return -1;
	address = (stopped.rsp - RED_ZONE - sizeof(saved)) & ~15UL;
	if (read_memory(pid, address, saved, sizeof(saved)))
		return fail_because("process %d has no stack: %s", pid, strerror(errno));
	if (ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL))
		return fail_because("process %d cannot be traced: %s", pid, strerror(errno));
	after = stopped;
	restart_call(&after);
	failed = take(pid, &stopped, address, locks, count, &owes_stop);
	if (write_memory(pid, address, saved, sizeof(saved)) || set_registers(pid, &after) ||
	    ptrace(PTRACE_DETACH, pid, 0, 0))
		return fail_because("process %d cannot be released: %s", pid, strerror(errno));
	if (owes_stop)
		kill(pid, SIGSTOP);
	return failed;
}

int main(int argc, char **argv)
{
	int count = argc - 1, failed = 0;
	struct lock *locks = calloc(count + 1, sizeof(*locks));

	if (!locks)
		failed = fail_because("%s", strerror(errno));
	for (int i = 0; i < count && !failed; i++)
		if (sscanf(argv[i + 1], "%d:%d:%d:%lld:%lld", &locks[i].pid, &locks[i].fd, &locks[i].type,
			   &locks[i].start, &locks[i].length) != 5)
			failed = fail_because("not a lock: %s", argv[i + 1]);
	for (int i = 0; i < count && !failed; i++) {
		int seen = 0;

		for (int j = 0; j < i; j++)
			seen |= locks[j].pid == locks[i].pid;
		if (!seen)
			failed = relock(locks[i].pid, locks, count);
	}
	if (dprintf(ANSWER_FD, "%s\n", failed ? reason : "ok") < 0)
		return 1;
	return !!failed;
}
