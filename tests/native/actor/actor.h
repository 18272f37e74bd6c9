/* The actor: a program that makes itself a tree of processes with the resources that a script names, and then rests.

     actor SCRIPT        starts the trees of a script, each in a child and a folder of its own below the working folder
     actor SCRIPT INDEX SLOT   goes on with a block of a script, in a process that has executed a program

   A script has one operation in each line: a name and numbers. An operation that ends with "{" has a block of operations
   for a child, up to the line "}". What an operation needs and does not find (a descriptor, a mapping), it leaves out. An
   operation that fails is counted, no more: which of them fail is the same each time, and what a process has in the end
   is what is compared.

   All processes share the file "control" of the working folder. The host waits there until none is busy, asks all of
   them what they see of themselves, and reads their answers. So no process has a descriptor that is not in its script. */

#ifndef ACTOR_H
#define ACTOR_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_ACTORS 1024
#define ANSWER_BYTES 2032
#define MAX_NUMBERS 6
#define MAX_DESCRIPTORS 48
#define MAX_MAPPINGS 24

struct operation {
	char name[20];
	long number[MAX_NUMBERS];
	int at, end; /* its index, and that of the operation behind its block; 0 without a block */
};

struct control {
	atomic_uint round; /* the host raises it and wakes all who wait for that */
	atomic_uint busy;  /* how many processes still carry out their script */
	atomic_uint actors;
	atomic_uint failed; /* operations */
	struct {
		atomic_uint round; /* the one that was answered last */
		int32_t pid;
		uint32_t reserved[2];
		char text[ANSWER_BYTES];
	} answer[MAX_ACTORS];
};

extern struct control *control;
extern const char *script_path;

/* What this process can name in its script. */
extern int descriptors[MAX_DESCRIPTORS], descriptor_count;
struct mapping {
	char *start;
	size_t length;
};
extern struct mapping mappings[MAX_MAPPINGS];
extern int mapping_count;

void run(int from, int to);
void run_and_rest(int from, int to) __attribute__((noreturn));
void rest(void) __attribute__((noreturn));

/* Counts what fails; returns the result. */
long tried(long result);
/* Remembers a descriptor that was made (or not). */
int keep(int fd);
/* The descriptor that a number of the script means, or -1 if there is none. */
int descriptor(long number);
/* A file of the working folder by its number. */
const char *file_name(long number);

struct operator {
	const char *name;
	void (*run)(const struct operation *o);
};
extern const struct operator process_operators[], file_operators[], socket_operators[], memory_operators[];

void describe_self(char *text, size_t size);

#endif
