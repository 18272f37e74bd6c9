/* Takes POSIX locks again inside the processes that held them.

   CRIU restores a process's locks first and its mappings later: it opens each mapped file once more and
   closes that descriptor when the mapping stands, and closing any descriptor of a file drops all of the
   process's POSIX locks on it. Nobody notices. SQLite maps the file that its locks are on, so after
   a plain restore two writers are admitted and one's committed row is gone.

   A POSIX lock belongs to a process: nobody can take it on another's behalf. So this program, run by the
   keeper while CRIU waits in its "post-restore" stage, has the processes do it: all tasks exist by then,
   every mapping stands, and each task sleeps in a futex wait of CRIU's restorer. Credentials and seccomp
   filters are not restored yet, so nothing can refuse the call.

     relock PID:FD:TYPE:START:LENGTH ...

   The process as its own namespace numbers it, the descriptor through which it holds the lock, F_RDLCK or
   F_WRLCK, and a length of 0 for "to the end". "ok\n", or a line with the reason, goes to descriptor 3.

   Whatever happens, a task goes on as it was: its registers and the borrowed words of its stack are put
   back before it is let go. Should this program be killed in between, the kernel kills the task with it, so
   that the restore fails instead of going wrong. */

#define _GNU_SOURCE
#include <asm/unistd.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_FD 3
#define PATIENCE 2000 /* times 0.1 ms */
#define RED_ZONE 128
#define SYSCALL_STOP (SIGTRAP | 0x80)
#define INTERRUPT_STOP (SIGTRAP | PTRACE_EVENT_STOP << 8)

/* What the kernel leaves in the result of a call that it means to restart; user space never sees these. */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

#if defined(__x86_64__)
typedef struct user_regs_struct registers;
#define STACK(r) ((r)->rsp)
#define SYSCALL_LENGTH 2

static int in_syscall(const registers *r)
{
	return (long)r->orig_rax >= 0 && r->cs == 0x33;
}

/* Lets the call that the task was in start anew when the task goes on. The kernel would do this itself
   only on the way out of the stop that interrupted it, and we leave through another one. */
static void restart(registers *r)
{
	switch (-(long)r->rax) {
	case ERESTARTSYS:
	case ERESTARTNOINTR:
	case ERESTARTNOHAND:
		r->rax = r->orig_rax;
		break;
	case ERESTART_RESTARTBLOCK: /* with what is left of its timeout */
		r->rax = __NR_restart_syscall;
		break;
	default:
		return;
	}
	r->rip -= SYSCALL_LENGTH;
	r->orig_rax = -1;
}

/* Behind a system call instruction: aims the task at it again, for another call. */
static void aim(registers *r, long number, long a, long b, long c)
{
	r->rip -= SYSCALL_LENGTH;
	r->rax = number;
	r->orig_rax = -1;
	r->rdi = a;
	r->rsi = b;
	r->rdx = c;
}

static long result(const registers *r)
{
	return r->rax;
}

static int is_syscall(unsigned long text)
{
	return (text & 0xffff) == 0x050f;
}
#else
#error "relock knows x86-64"
#endif

struct lock {
	pid_t pid;
	int fd, type;
	long long start, length;
};

static char reason[256];

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

static int copy(pid_t pid, unsigned long address, void *here, size_t length, int out)
{
	struct iovec ours = { here, length }, theirs = { (void *)address, length };
	ssize_t done = out ? process_vm_writev(pid, &ours, 1, &theirs, 1, 0) :
			     process_vm_readv(pid, &ours, 1, &theirs, 1, 0);

	return done == (ssize_t)length ? 0 : -1;
}

/* Waits for the task's next stop and tells its kind; 0 when there will be none. */
static int next_stop(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		return 0;
	return status >> 8;
}

/* Stops the task inside its futex wait. It may be just before it: then it gets a moment more. */
static int stop(pid_t pid, registers *r)
{
	static const struct timespec moment = { .tv_nsec = 100000 };

	for (int i = 0; i < PATIENCE; i++) {
		unsigned long text;

		if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || next_stop(pid) != INTERRUPT_STOP ||
		    get_registers(pid, r))
			return because("process %d does not stop: %s", pid, strerror(errno));
		errno = 0;
		text = ptrace(PTRACE_PEEKTEXT, pid, r->rip - SYSCALL_LENGTH, 0);
		if (in_syscall(r) && !errno && is_syscall(text))
			return 0;
		if (ptrace(PTRACE_CONT, pid, 0, 0))
			return because("process %d does not go on: %s", pid, strerror(errno));
		nanosleep(&moment, NULL);
	}
	return because("process %d is not where CRIU leaves it", pid);
}

/* Has the stopped task make one call. Its registers are the caller's to put back. */
static int call(pid_t pid, const registers *stopped, long number, long a, long b, long c, long *answer)
{
	registers r = *stopped;

	aim(&r, number, a, b, c);
	if (set_registers(pid, &r))
		return -1;
	/* To the call's entry, then to its exit. */
	for (int i = 0; i < 2; i++)
		if (ptrace(PTRACE_SYSCALL, pid, 0, 0) || next_stop(pid) != SYSCALL_STOP)
			return -1;
	if (get_registers(pid, &r))
		return -1;
	*answer = result(&r);
	return 0;
}

static int take(pid_t pid, const registers *stopped, unsigned long room, const struct lock *locks, int count)
{
	for (int i = 0; i < count; i++) {
		struct flock wanted = { .l_type = locks[i].type, .l_whence = SEEK_SET,
					.l_start = locks[i].start, .l_len = locks[i].length };
		long answer;

		if (locks[i].pid != pid)
			continue;
		if (copy(pid, room, &wanted, sizeof(wanted), 1) ||
		    call(pid, stopped, __NR_fcntl, locks[i].fd, F_SETLK, room, &answer))
			return because("process %d cannot be made to lock: %s", pid, strerror(errno));
		if (answer)
			return because("process %d, descriptor %d: %s", pid, locks[i].fd,
				       answer == -EAGAIN || answer == -EACCES ? "somebody else holds the lock" :
										strerror(-answer));
	}
	return 0;
}

/* Takes all locks of one process. */
static int relock(pid_t pid, const struct lock *locks, int count)
{
	registers stopped, after;
	char saved[sizeof(struct flock)];
	unsigned long room;
	int failed;

	if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD))
		return because("process %d cannot be traced: %s", pid, strerror(errno));
	/* A failure up to here has changed nothing, and our end lets the task go. */
	if (stop(pid, &stopped))
		return -1;
	room = (STACK(&stopped) - RED_ZONE - sizeof(saved)) & ~15UL;
	if (copy(pid, room, saved, sizeof(saved), 0))
		return because("process %d has no stack: %s", pid, strerror(errno));
	if (ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL))
		return because("process %d cannot be traced: %s", pid, strerror(errno));
	after = stopped;
	restart(&after);
	failed = take(pid, &stopped, room, locks, count);
	if (copy(pid, room, saved, sizeof(saved), 1) || set_registers(pid, &after) ||
	    ptrace(PTRACE_DETACH, pid, 0, 0))
		return because("process %d cannot be let go: %s", pid, strerror(errno));
	return failed;
}

int main(int argc, char **argv)
{
	int count = argc - 1, failed = 0;
	struct lock *locks = calloc(count + 1, sizeof(*locks));

	if (!locks)
		failed = because("%s", strerror(errno));
	for (int i = 0; i < count && !failed; i++)
		if (sscanf(argv[i + 1], "%d:%d:%d:%lld:%lld", &locks[i].pid, &locks[i].fd, &locks[i].type,
			   &locks[i].start, &locks[i].length) != 5)
			failed = because("not a lock: %s", argv[i + 1]);
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
