/* Memory: mappings of every kind, and what is shared by System V. */

#include "actor.h"

#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>

static void remember(char *start, size_t length)
{
	if (start == MAP_FAILED) {
		tried(-1);
		return;
	}
	if (mapping_count < MAX_MAPPINGS)
		mappings[mapping_count++] = (struct mapping){ start, length };
}

static struct mapping *mapping(long number)
{
	return mapping_count ? &mappings[number % mapping_count] : NULL;
}

/* 0: kind; 1: pages; 2: protection; 3: flags; 4: what is written */
static void op_map(const struct operation *o)
{
	static const int flags[] = { MAP_NORESERVE, MAP_LOCKED, MAP_POPULATE, MAP_GROWSDOWN | MAP_STACK };
	size_t length = (size_t)(o->number[1] % 20 + 1) * 4096;
	int protection = PROT_READ | PROT_WRITE, way = MAP_PRIVATE, fd = -1;
	char name[40];
	char *start;

	snprintf(name, sizeof(name), "mapped%d-%d", getpid(), mapping_count);
	switch (o->number[0]) {
	case 0: way = MAP_PRIVATE | MAP_ANONYMOUS; break;
	case 1: way = MAP_SHARED | MAP_ANONYMOUS; break;
	case 2: /* a file, privately */
	case 3: /* a file, shared */
	case 4: /* a file without a name */
		fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		way = o->number[0] == 2 ? MAP_PRIVATE : MAP_SHARED;
		break;
	case 5: fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING), way = MAP_SHARED; break;
	case 6: fd = open("/dev/zero", O_RDWR | O_CLOEXEC), way = o->number[3] & 8 ? MAP_SHARED : MAP_PRIVATE; break;
	case 7: fd = open("/bin/sh", O_RDONLY | O_CLOEXEC), way = MAP_PRIVATE; break;
	case 8: /* shared, for reading only */
		fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		tried(ftruncate(fd, (off_t)length));
		close(fd);
		fd = open(name, O_RDONLY | O_CLOEXEC);
		way = MAP_SHARED;
		protection = PROT_READ;
		break;
	}
	if (fd >= 0 && o->number[0] != 7 && o->number[0] != 8)
		ftruncate(fd, (off_t)length) ? (void)0 : (void)0;
	if (way & MAP_ANONYMOUS)
		way |= flags[o->number[3] % 4];
	start = mmap(NULL, length, protection, way, fd, 0);
	if (start != MAP_FAILED && protection & PROT_WRITE)
		for (size_t page = 0; page < length; page += 4096 * (size_t)(1 + o->number[4] % 3))
			snprintf(start + page, 64, "page %zu of mapping %ld, %ld", page / 4096, o->number[0], o->number[4]);
	if (o->number[0] == 4)
		tried(unlink(name));
	if (start != MAP_FAILED && o->number[2])
		tried(mprotect(start, length, (int)(o->number[2] % 8) & ~(protection == PROT_READ ? PROT_WRITE : 0)));
	if (o->number[0] == 5 && o->number[3] & 4)
		tried(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
	if (fd >= 0 && o->number[0] == 5 && o->number[3] & 2)
		keep(fd);
	else if (fd >= 0)
		close(fd);
	remember(start, length);
}

static void op_protect(const struct operation *o)
{
	struct mapping *m = mapping(o->number[0]);

	if (m) /* a page in the middle: the mapping becomes three */
		tried(mprotect(m->start + m->length / 2 / 4096 * 4096, 4096, (int)o->number[1] % 8));
}

static void op_advise(const struct operation *o)
{
	static const int advice[] = { MADV_DONTFORK, MADV_DONTDUMP,  MADV_WIPEONFORK, MADV_MERGEABLE, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
				      MADV_RANDOM,   MADV_SEQUENTIAL, MADV_DONTNEED,   MADV_COLD,      MADV_FREE,     102 /* MADV_GUARD_INSTALL */ };
	struct mapping *m = mapping(o->number[0]);

	if (m)
		tried(madvise(m->start, o->number[2] & 1 ? 4096 : m->length, advice[o->number[1] % 12]));
}

/* 0: mlock; 1: mlock2, on fault; 2: all that there is; 3: munlock; 4: all to come */
static void op_mlock(const struct operation *o)
{
	struct mapping *m = mapping(o->number[1]);

	switch (o->number[0]) {
	case 0: tried(m ? mlock(m->start, m->length) : -1); break;
	case 1: tried(m ? mlock2(m->start, m->length, MLOCK_ONFAULT) : -1); break;
	case 2: tried(mlockall(MCL_CURRENT)); break;
	case 3: tried(m ? munlock(m->start, 4096) : -1); break;
	case 4: tried(mlockall(MCL_FUTURE)); break;
	}
}

static void op_unmap(const struct operation *o)
{
	struct mapping *m = mapping(o->number[0]);

	if (m && m->length > 3 * 4096) {
		tried(munmap(m->start + m->length - 4096, 4096));
		m->length -= 4096;
	}
}

static void op_remap(const struct operation *o)
{
	struct mapping *m = mapping(o->number[0]);
	char *start = m ? mremap(m->start, m->length, m->length + 8192, MREMAP_MAYMOVE) : MAP_FAILED;

	if (start != MAP_FAILED) {
		m->start = start;
		m->length += 8192;
	}
}

static void op_label(const struct operation *o)
{
	struct mapping *m = mapping(o->number[0]);

	if (m)
		tried(prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, m->start, m->length, "a name"));
}

static void op_brk(const struct operation *o)
{
	char *start = sbrk((o->number[0] % 30 + 1) * 4096);

	if (start != (char *)-1)
		snprintf(start, 64, "from sbrk %ld", o->number[0]);
}

static void op_memfd(const struct operation *o)
{
	int fd = keep(memfd_create(o->number[0] & 1 ? "one name" : "", MFD_ALLOW_SEALING | (o->number[1] & 1 ? MFD_CLOEXEC : 0) |
									    (o->number[1] & 2 ? 8U /* MFD_NOEXEC_SEAL */ : 0)));

	if (fd < 0)
		return;
	tried(ftruncate(fd, o->number[2]));
	tried(pwrite(fd, "in a memfd", 10, o->number[2] / 2));
	lseek(fd, o->number[2] / 3, SEEK_SET);
	if (o->number[3])
		tried(fcntl(fd, F_ADD_SEALS, o->number[3] & 0x1f));
}

/* ---- System V -------------------------------------------------------------------------------- */

static void op_shm(const struct operation *o)
{
	int id = (int)tried(shmget(o->number[0] & 1 ? IPC_PRIVATE : 0x1000 + (int)o->number[1], (size_t)(o->number[1] + 1) * 4096,
				   IPC_CREAT | 0640));
	char *start;

	if (id < 0)
		return;
	start = shmat(id, NULL, 0);
	if (start == (char *)-1)
		return;
	snprintf(start, 64, "shared %ld", o->number[1]);
	if (o->number[2] & 1)
		shmdt(start);
	if (o->number[2] & 2)
		shmat(id, NULL, SHM_RDONLY);
	if (o->number[2] & 4)
		tried(shmctl(id, IPC_RMID, NULL));
}

static void op_sem(const struct operation *o)
{
	int id = (int)tried(semget(o->number[0] & 1 ? IPC_PRIVATE : 0x2000 + (int)o->number[1], 1 + (int)o->number[1] % 4,
				   IPC_CREAT | 0660));
	struct sembuf add = { 0, (short)(o->number[2] + 1), (short)(o->number[0] & 2 ? SEM_UNDO : 0) };

	if (id >= 0)
		tried(semop(id, &add, 1));
}

static void op_msg(const struct operation *o)
{
	int id = (int)tried(msgget(o->number[0] & 1 ? IPC_PRIVATE : 0x3000 + (int)o->number[1], IPC_CREAT | 0606));
	struct {
		long type;
		char text[100];
	} message = { o->number[2] + 1, "a message" };

	for (int i = 0; id >= 0 && i < o->number[2] % 4; i++, message.type++)
		tried(msgsnd(id, &message, (size_t)(o->number[1] % 90 + 1), IPC_NOWAIT));
}

const struct operator memory_operators[] = {
	{ "map", op_map },     { "protect", op_protect }, { "advise", op_advise }, { "mlock", op_mlock }, { "unmap", op_unmap },
	{ "remap", op_remap }, { "label", op_label },	  { "brk", op_brk },	   { "memfd", op_memfd }, { "shm", op_shm },
	{ "sem", op_sem },     { "msg", op_msg },	  { 0 },
};
