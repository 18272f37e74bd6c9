/* Processes: their families, sessions, threads, identity, limits, signals, timers; and what one sees of itself. */

#include "actor.h"

#include <asm/prctl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#define FAR 1000000 /* seconds: no timer of a script expires */

/* ---- families -------------------------------------------------------------------------------- */

static pid_t start(void)
{
	pid_t pid;

	atomic_fetch_add(&control->busy, 1);
	pid = fork();
	if (pid < 0)
		atomic_fetch_sub(&control->busy, 1);
	return (pid_t)tried(pid);
}

static pid_t last_child;

static void op_fork(const struct operation *o)
{
	pid_t pid = start();

	if (!pid) {
		last_child = 0;
		run_and_rest(o->at + 1, o->end);
	}
	last_child = pid;
}

/* A daemon: its parent ends at once. */
static void op_daemon(const struct operation *o)
{
	pid_t pid = start();

	if (!pid) {
		if (o->number[0])
			setsid();
		pid = fork();
		if (pid)
			_exit(0);
		last_child = 0;
		run_and_rest(o->at + 1, o->end);
	}
	waitpid(pid, NULL, 0);
}

/* 0: an exit code; 1: a signal. No process waits for it. */
static void op_zombie(const struct operation *o)
{
	pid_t pid = fork();
	siginfo_t info;

	if (!pid) {
		if (o->number[0])
			kill(getpid(), SIGKILL);
		_exit((int)o->number[1]);
	}
	if (tried(pid) > 0)
		waitid(P_PID, pid, &info, WEXITED | WNOWAIT);
}

/* A child that leads a session and ends, while its own child goes on in that session. */
static void op_leaderless(const struct operation *o)
{
	pid_t pid = start();

	if (!pid) {
		setsid();
		pid = fork();
		if (pid)
			_exit(0);
		run_and_rest(o->at + 1, o->end);
	}
	waitpid(pid, NULL, 0);
}

static void *be_thread(void *argument)
{
	const long *number = argument;
	char name[16];
	sigset_t set;

	/* A signal for the process must not be delivered here while the main thread blocks it. */
	sigfillset(&set);
	sigdelset(&set, SIGWINCH + (int)(number[1] & 1));
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	snprintf(name, sizeof(name), "thread %ld", number[0]);
	prctl(PR_SET_NAME, name);
	if (number[1] & 1)
		setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 7);
	if (number[1] & 2)
		prctl(PR_SET_TIMERSLACK, 123456);
	if (number[1] & 4)
		syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1);
	if (number[1] & 8)
		syscall(SYS_setresuid, -1, 1234, -1);
	atomic_fetch_sub(&control->busy, 1);
	for (;;)
		pause();
	return NULL;
}

static void op_thread(const struct operation *o)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 65536);
	atomic_fetch_add(&control->busy, 1);
	if (pthread_create(&thread, &attributes, be_thread, (void *)o->number)) {
		atomic_fetch_sub(&control->busy, 1);
		tried(-1);
	}
}

static void copy_program(int to)
{
	int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char data[65536];
	ssize_t got;

	while ((got = read(from, data, sizeof(data))) > 0)
		if (write(to, data, (size_t)got) != got)
			break;
	close(from);
}

/* 0: the same program; 1: a copy; 2: a copy that is removed; 3: a copy in a memfd. */
static void op_exec(const struct operation *o)
{
	char from[16], fd[16], path[64], script[256];
	char *argv[] = { "an actor\xff", script, from, fd, NULL };
	pid_t pid = start();

	if (pid)
		return;
	snprintf(from, sizeof(from), "%d", o->at);
	snprintf(script, sizeof(script), "%s", script_path);
	snprintf(fd, sizeof(fd), "%d", open("/tmp/actors/control", O_RDWR));
	if (o->number[0] == 3) {
		int memfd = memfd_create("program", MFD_CLOEXEC);

		copy_program(memfd);
		fexecve(memfd, argv, environ);
	}
	snprintf(path, sizeof(path), "/proc/self/exe");
	if (o->number[0]) {
		int to;

		snprintf(path, sizeof(path), "program%d", getpid());
		to = open(path, O_WRONLY | O_CREAT, 0755);
		copy_program(to);
		close(to);
	}
	if (o->number[0] == 2) { /* a script cannot remove it after it was executed: the child of the child does */
		if (!fork()) {
			char exe[64], target[256];

			for (int i = 0; i < 1000; i++) {
				ssize_t length;

				snprintf(exe, sizeof(exe), "/proc/%d/exe", getppid());
				length = readlink(exe, target, sizeof(target) - 1);
				target[length > 0 ? length : 0] = 0;
				if (strstr(target, path))
					break;
				usleep(1000);
			}
			unlink(path);
			_exit(0);
		}
	}
	execv(path, argv);
	close(atoi(fd));
	rest();
}

static void op_chroot(const struct operation *o)
{
	(void)o;
	tried(mkdir("root", 0777));
	tried(chroot("root"));
	if (o->number[0])
		tried(chdir("/"));
}

static void op_cwd(const struct operation *o)
{
	char name[32];

	snprintf(name, sizeof(name), "folder%d", getpid());
	tried(mkdir(name, 0777));
	tried(chdir(name));
	if (o->number[0]) {
		char path[64];

		snprintf(path, sizeof(path), "../%s", name);
		tried(rmdir(path));
	}
}

/* ---- identity and limits --------------------------------------------------------------------- */

static void op_name(const struct operation *o)
{
	char name[16] = { 0 };

	for (int i = 0; i < 15; i++)
		name[i] = (char)((o->number[0] * (i + 7) * 131 + i * 17) % 255 + 1);
	name[o->number[1] % 15 + 1] = 0;
	tried(prctl(PR_SET_NAME, name));
}

static void op_uid(const struct operation *o)
{
	const long *n = o->number;

	tried(syscall(SYS_setresuid, n[0], n[1], n[2]));
	if (n[3])
		setfsuid((uid_t)n[3]);
}

static void op_gid(const struct operation *o)
{
	const long *n = o->number;
	gid_t groups[3] = { (gid_t)n[3], (gid_t)n[3] + 5, 65534 };

	tried(setgroups((size_t)(n[3] % 4), groups));
	tried(syscall(SYS_setresgid, n[0], n[1], n[2]));
}

/* 0: effective, permitted, inheritable; 1: bounding; 2: ambient; 3: securebits; 4: keep */
static void op_caps(const struct operation *o)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	uint32_t mask = (uint32_t)o->number[1];

	if (o->number[0] == 1) {
		tried(prctl(PR_CAPBSET_DROP, mask % 40, 0, 0, 0));
		return;
	}
	if (o->number[0] == 3) {
		tried(prctl(PR_SET_SECUREBITS, mask & 0xff, 0, 0, 0));
		return;
	}
	if (o->number[0] == 4) {
		tried(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
		return;
	}
	if (tried(syscall(SYS_capget, &header, data)) < 0)
		return;
	if (o->number[0] == 0) {
		data[0].effective &= mask;
		data[0].permitted &= mask | (mask >> 3);
		data[0].effective &= data[0].permitted;
		data[0].inheritable = data[0].permitted & (mask >> 5);
	} else {
		data[0].inheritable |= data[0].permitted & 0x4c1;
	}
	tried(syscall(SYS_capset, &header, data));
	if (o->number[0] == 2)
		for (int capability = 0; capability < 11; capability++)
			prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0);
}

static void op_prctl(const struct operation *o)
{
	switch (o->number[0]) {
	case 0: tried(prctl(PR_SET_DUMPABLE, o->number[1] & 1)); break;
	case 1: tried(prctl(PR_SET_PDEATHSIG, 1 + o->number[1] % 30)); break;
	case 2: tried(prctl(PR_SET_CHILD_SUBREAPER, 1)); break;
	case 3: tried(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); break;
	case 4: tried(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)); break;
	case 5: tried(prctl(PR_SET_TIMERSLACK, 100000 + o->number[1])); break;
	case 6: tried(personality((unsigned long)(o->number[1] & 1 ? ADDR_NO_RANDOMIZE : STICKY_TIMEOUTS))); break;
	case 7: tried(prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0)); break;
	case 8: tried(prctl(PR_SET_TSC, PR_TSC_SIGSEGV)); break;
	case 9: tried(prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0)); break;
	case 10: tried(prctl(67 /* PR_SET_MEMORY_MERGE */, 1, 0, 0, 0)); break;
	}
}

static void op_priority(const struct operation *o)
{
	struct sched_param none = { 0 };
	int score;
	char text[16];

	switch (o->number[0]) {
	case 0: tried(setpriority(PRIO_PROCESS, 0, (int)o->number[1] % 20)); break;
	case 1: tried(sched_setscheduler(0, o->number[1] & 1 ? SCHED_BATCH : SCHED_IDLE, &none)); break;
	case 2: tried(sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none)); break;
	case 3: {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(o->number[1] % 2, &set);
		tried(sched_setaffinity(0, sizeof(set), &set));
		break;
	}
	case 4: tried(syscall(SYS_ioprio_set, 1, 0, 2 << 13 | o->number[1] % 8)); break;
	case 5:
		score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
		snprintf(text, sizeof(text), "%ld", o->number[1] % 1000);
		tried(write(score, text, strlen(text)));
		close(score);
		break;
	case 6:
		score = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);
		snprintf(text, sizeof(text), "0x%lx", o->number[1] % 128);
		tried(write(score, text, strlen(text)));
		close(score);
		break;
	case 7: umask((mode_t)(o->number[1] & 0777)); break;
	}
}

static void op_rlimit(const struct operation *o)
{
	static const int resources[] = { RLIMIT_CORE, RLIMIT_NOFILE, RLIMIT_STACK, RLIMIT_FSIZE, RLIMIT_MEMLOCK, RLIMIT_CPU,
					 RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, RLIMIT_LOCKS, RLIMIT_RTPRIO };
	static const rlim_t values[] = { 1 << 20, 700, 8 << 20, 1 << 26, 1 << 20, FAR, 900, 400000, 77, 3 };
	long which = o->number[0] % 10;
	struct rlimit limit = { values[which] - (rlim_t)o->number[1] % 3, values[which] };

	tried(setrlimit(resources[which], &limit));
}

/* Filters that allow everything, or refuse a call that no script makes. */
static void op_seccomp(const struct operation *o)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 216 + (uint32_t)o->number[0] % 3, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 99),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { 4, filter };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	tried(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, o->number[1] & 1 ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program));
}

/* ---- signals and timers ---------------------------------------------------------------------- */

static const int signals[] = { SIGUSR1, SIGUSR2, SIGTERM, SIGHUP, SIGWINCH, SIGCHLD, SIGALRM, SIGURG };
#define SIGNAL(number) ((number) % 11 < 8 ? signals[(number) % 11] : SIGRTMIN + (int)((number) % 11))

static void on_signal(int number)
{
	(void)number;
}

static void on_signal_with_info(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info, (void)context;
}

static void op_action(const struct operation *o)
{
	struct sigaction action = { .sa_handler = SIG_IGN };
	static const int flags[] = { 0, SA_RESTART, SA_NODEFER, SA_ONSTACK | SA_RESTART, SA_RESETHAND, SA_NOCLDWAIT };

	if (o->number[1] % 3 == 1)
		action.sa_handler = on_signal;
	if (o->number[1] % 3 == 2) {
		action.sa_sigaction = on_signal_with_info;
		action.sa_flags = SA_SIGINFO;
	}
	action.sa_flags |= flags[o->number[2] % 6];
	sigemptyset(&action.sa_mask);
	for (int i = 0; i < 8; i++)
		if (o->number[3] >> i & 1)
			sigaddset(&action.sa_mask, signals[i]);
	tried(sigaction(SIGNAL(o->number[0]), &action, NULL));
}

static void block(int number)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, number);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

/* A signal that is blocked and sent. */
static void op_pending(const struct operation *o)
{
	int number = SIGNAL(o->number[0]);
	union sigval value = { .sival_int = (int)o->number[2] };

	block(number);
	switch (o->number[1] % 4) {
	case 0: break;
	case 1: tried(kill(getpid(), number)); break;
	case 2: tried(sigqueue(getpid(), number, value)); break;
	case 3: tried(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number)); break;
	}
}

static void op_altstack(const struct operation *o)
{
	stack_t stack = { .ss_sp = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
			  .ss_size = 65536,
			  .ss_flags = o->number[0] & 1 ? (int)(1U << 31) /* SS_AUTODISARM */ : 0 };

	tried(sigaltstack(&stack, NULL));
}

static void op_timer(const struct operation *o)
{
	struct itimerval interval = { { o->number[1], 5 }, { FAR, 0 } };
	struct sigevent event = { .sigev_notify = o->number[2] & 1 ? SIGEV_SIGNAL : SIGEV_NONE,
				  .sigev_signo = SIGNAL(o->number[1]),
				  .sigev_value = { .sival_ptr = (void *)0x1234567 } };
	struct itimerspec setting = { { o->number[1], 7 }, { FAR, 0 } };
	static const int clocks[] = { CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_PROCESS_CPUTIME_ID };
	int timer;

	if (o->number[0] < 3) {
		tried(setitimer((int)o->number[0], &interval, NULL));
		return;
	}
	if (o->number[2] & 2) {
		event.sigev_notify = SIGEV_THREAD_ID;
		event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	}
	if (tried(syscall(SYS_timer_create, clocks[o->number[0] % 4], &event, &timer)) >= 0 && !(o->number[2] & 4))
		tried(syscall(SYS_timer_settime, timer, 0, &setting, NULL));
}

static void op_stop(const struct operation *o)
{
	static const int stops[] = { SIGSTOP, SIGTSTP };

	atomic_fetch_sub(&control->busy, 1);
	kill(getpid(), stops[o->number[0] & 1]);
	atomic_fetch_add(&control->busy, 1); /* for one that was continued */
}

static void op_setsid(const struct operation *o)
{
	(void)o;
	tried(setsid());
}

/* 0: a process group of its own; 1: the last child gets one. */
static void op_setpgid(const struct operation *o)
{
	pid_t pid = o->number[0] && last_child > 0 ? last_child : 0;

	tried(setpgid(pid, pid));
}

/* ---- what a process sees of itself ----------------------------------------------------------- */

static char *put(char *at, char *end, const char *name, long value)
{
	int length = snprintf(at, (size_t)(end - at), "%s %ld\n", name, value);

	return length > 0 && length < end - at ? at + length : at;
}

void describe_self(char *text, size_t size)
{
	char *at = text, *end = text + size - 1;
	unsigned long word = 0;
	uint64_t digest = 14695981039346656037UL;
	struct itimerval left;
	struct itimerspec setting;
	struct { /* struct sched_attr */
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} scheduling = { .size = 48 };
	uint32_t sse;
	uint16_t x87;
	stack_t stack;
	int value = 0;

	prctl(PR_GET_PDEATHSIG, &value);
	at = put(at, end, "signal at the end of the parent", value);
	at = put(at, end, "dumpable", prctl(PR_GET_DUMPABLE));
	prctl(PR_GET_CHILD_SUBREAPER, &value);
	at = put(at, end, "subreaper", value);
	at = put(at, end, "keepcaps", prctl(PR_GET_KEEPCAPS));
	at = put(at, end, "securebits", prctl(PR_GET_SECUREBITS));
	at = put(at, end, "no huge pages", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
	at = put(at, end, "timer slack", prctl(PR_GET_TIMERSLACK));
	at = put(at, end, "no new privileges", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	at = put(at, end, "write or execute", prctl(66 /* PR_GET_MDWE */, 0, 0, 0, 0));
	at = put(at, end, "merged memory", prctl(68 /* PR_GET_MEMORY_MERGE */, 0, 0, 0, 0));
	at = put(at, end, "speculation", prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0));
	value = 0;
	prctl(PR_GET_TSC, &value);
	at = put(at, end, "time stamp counter", value);
	prctl(40 /* PR_GET_TID_ADDRESS */, &word);
	at = put(at, end, "thread's end address", (long)word);
	syscall(SYS_get_robust_list, 0, &word, &digest);
	at = put(at, end, "robust list", (long)word);
	syscall(SYS_arch_prctl, ARCH_GET_FS, &word);
	at = put(at, end, "fs", (long)word);
	__asm__ volatile("stmxcsr %0" : "=m"(sse));
	__asm__ volatile("fnstcw %0" : "=m"(x87));
	at = put(at, end, "mxcsr", (long)(sse & 0xffc0));
	at = put(at, end, "x87", x87);
	at = put(at, end, "personality", personality(0xffffffff));
	at = put(at, end, "priority", getpriority(PRIO_PROCESS, 0));
	syscall(SYS_sched_getattr, 0, &scheduling, sizeof(scheduling), 0);
	at = put(at, end, "policy", scheduling.policy);
	at = put(at, end, "scheduling flags", (long)scheduling.flags);
	sigaltstack(NULL, &stack);
	at = put(at, end, "signal stack", (long)stack.ss_sp);
	at = put(at, end, "signal stack size", (long)stack.ss_size);
	at = put(at, end, "signal stack flags", stack.ss_flags);
	for (int number = 1; number < 65; number++) {
		struct { /* as the kernel has it */
			unsigned long handler, flags, restorer, mask;
		} action = { 0 };

		syscall(SYS_rt_sigaction, number, NULL, &action, 8);
		for (size_t i = 0; i < sizeof(action); i++)
			digest = (digest ^ ((unsigned char *)&action)[i]) * 1099511628211UL;
		if (action.handler || action.flags) {
			char name[40];

			snprintf(name, sizeof(name), "action %d", number);
			at = put(at, end, name, (long)(action.handler ^ action.flags << 32 ^ action.mask << 8));
		}
	}
	for (int which = 0; which < 3; which++) {
		static const char *names[] = { "real timer", "virtual timer", "profiling timer" };

		getitimer(which, &left);
		at = put(at, end, names[which], left.it_interval.tv_sec * 10 + (left.it_value.tv_sec > 0));
	}
	for (int timer = 0; timer < 6; timer++)
		if (!syscall(SYS_timer_gettime, timer, &setting)) {
			char name[40];

			snprintf(name, sizeof(name), "timer %d", timer);
			at = put(at, end, name, setting.it_interval.tv_sec * 10 + (setting.it_value.tv_sec > 0));
		}
	*at = 0;
}

/* ---- by name --------------------------------------------------------------------------------- */

const struct operator process_operators[] = {
	{ "fork", op_fork },	   { "daemon", op_daemon },	{ "leaderless", op_leaderless },
	{ "zombie", op_zombie },   { "thread", op_thread },	{ "exec", op_exec },
	{ "setsid", op_setsid },   { "setpgid", op_setpgid },	{ "chroot", op_chroot },
	{ "cwd", op_cwd },	   { "name", op_name },		{ "uid", op_uid },
	{ "gid", op_gid },	   { "caps", op_caps },		{ "prctl", op_prctl },
	{ "priority", op_priority }, { "rlimit", op_rlimit },	{ "seccomp", op_seccomp },
	{ "action", op_action },   { "pending", op_pending },	{ "altstack", op_altstack },
	{ "timer", op_timer },	   { "stop", op_stop },		{ 0 },
};
