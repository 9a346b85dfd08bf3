/*
 * Runs programs: timed, counted, of chains only, and one of faults and system calls. `driver.c`
 * says what each prints.
 */
#ifndef PROGRAMS_H
#define PROGRAMS_H

#include "judged.h"

#define NR_OPEN 2
#define NR_LSEEK 8
#define NR_DUP2 33
#define NR_NANOSLEEP 35
#define NR_FORK 57
#define NR_EXECVE 59
#define NR_WAIT4 61
#define NR_CHDIR 80
#define NR_PTRACE 101
#define NR_GETPPID 110
#define NR_PERSONALITY 135
#define NR_SCHED_GETPARAM 143
#define NR_SCHED_SETSCHEDULER 144
#define NR_CHROOT 161
#define READ_AND_WRITE_FILE 2
#define SAME_ADDRESSES 0x0040000

/* The program's addresses are not random, as in the guest. Its output goes nowhere. */
__attribute__((noreturn)) static void become(const char *root, char **words, char **environment)
{
	long nowhere = call(NR_OPEN, (long)"/dev/null", READ_AND_WRITE_FILE, 0, 0, 0, 0);

	if (nowhere < 0 || call(NR_DUP2, nowhere, 1, 0, 0, 0, 0) < 0)
		fail("/dev/null", ": cannot be opened");
	if (call(NR_CHROOT, (long)root, 0, 0, 0, 0, 0) < 0 ||
	    call(NR_CHDIR, (long)"/guest", 0, 0, 0, 0, 0) < 0)
		fail(root, ": cannot be entered");
	if (call(NR_PERSONALITY, SAME_ADDRESSES, 0, 0, 0, 0, 0) < 0)
		fail(words[0], ": addresses stay random");
	call(NR_EXECVE, (long)words[0], (long)words, (long)environment, 0, 0, 0);
	fail(words[0], ": cannot be executed");
}

/* The time near a program's for which no-ops are timed: some tenths of a millisecond. */
#define NEAR 400

/* Prints the ticks of a chain and of no-ops. */
static void crowd(const char *behind)
{
	ulong sum = 0;

	number(chain(), " ");
	for (int i = 0; i < NEAR; i++)
		sum += no_ops();
	number(sum, behind);
}

/* 4 MB: FAR_LOADS in native.rs. */
#define FAR_LOADS 65536
#define LINE 64UL

/*
 * The ticks of loads, each of which needs the one before, from more lines than an L2 has: they say
 * how busy others keep the L3 and the memory. The memory is given back, because the kernel would
 * copy its page tables for each program.
 */
static ulong far_loads(void)
{
	ulong state = 88172645463325252UL, ticks_of_all = 0;
	ulong bytes = FAR_LOADS * LINE;
	byte *memory = pages(bytes);
	unsigned int *order = cycle(FAR_LOADS, &state);

	for (ulong i = 0; i < FAR_LOADS; i++)
		*pointer(memory, LINE, 0, i) = pointer(memory, LINE, 0, order[i]);
	/* The first time brings them into the L3. */
	for (int time = 0; time < 2; time++) {
		void *at = memory;
		ulong begun = ticks();

		for (ulong i = 0; i < FAR_LOADS; i++)
			at = *(void *volatile *)at;
		ticks_of_all = ticks() - begun;
	}
	call(NR_MUNMAP, (long)memory, bytes, 0, 0, 0, 0);
	call(NR_MUNMAP, (long)order, FAR_LOADS * sizeof(*order), 0, 0, 0, 0);
	return ticks_of_all;
}

#define FIRST_IN_FIRST_OUT 1
#define AT_ONCE 1

/* Lets this process run at once when it wakes. Where that is not allowed, it wakes too seldom. */
static void raise_priority(void)
{
	int priority = 0;

	call(NR_SCHED_GETPARAM, 0, (long)&priority, 0, 0, 0, 0);
	priority++;
	call(NR_SCHED_SETSCHEDULER, 0, FIRST_IN_FIRST_OUT, (long)&priority, 0, 0, 0);
}

/*
 * Waits for a child, and prints what it used. Meanwhile it times no-ops every other millisecond
 * (WATCHED in native.rs): twice, because an interrupt takes longer than they do.
 */
static void used(long child, const char *name)
{
	const ulong pause[] = { 0, 2000000 };
	ulong usage[18], watched = 0, most = 0;
	int status = 0;
	long ended;

	if (child < 0)
		fail(name, ": cannot be started");
	raise_priority();
	for (;;) {
		ulong once, again;

		call(NR_NANOSLEEP, (long)pause, 0, 0, 0, 0, 0);
		ended = call(NR_WAIT4, child, (long)&status, AT_ONCE, (long)usage, 0, 0);
		if (ended != 0)
			break;
		once = no_ops();
		again = no_ops();
		once = once < again ? once : again;
		most = once > most ? once : most;
		watched++;
	}
	if (ended != child || status != 0)
		fail(name, ": failed");
	crowd(" ");
	number(watched, " ");
	number(most, " ");
	number(usage[0] * 1000000 + usage[1], " ");
	number(usage[2] * 1000000 + usage[3], " ");
	number(usage[FAULTS], " ");
	number(far_loads(), "\n");
}

/*
 * The first run brings files into the caches, which others may have taken since, and teaches the
 * predictors.
 */
static void program(const char *root, char **words, char **environment)
{
	int status = 0;
	long child;

	number(far_loads(), " ");
	child = call(NR_FORK, 0, 0, 0, 0, 0, 0);
	if (child == 0)
		become(root, words, environment);
	if (child < 0 || call(NR_WAIT4, child, (long)&status, 0, 0, 0, 0) != child || status != 0)
		fail(words[0], ": failed");
	/* It has read its input. */
	call(NR_LSEEK, 0, 0, 0, 0, 0, 0);
	crowd(" ");
	child = call(NR_FORK, 0, 0, 0, 0, 0, 0);
	if (child == 0)
		become(root, words, environment);
	used(child, words[0]);
}

/* A program of chains only, whose cycles are known. */
static void chains(const char *given)
{
	ulong count = 0;
	long child;

	for (const char *digit = given; *digit >= '0' && *digit <= '9'; digit++)
		count = 10 * count + (*digit - '0');
	number(far_loads(), " ");
	crowd(" ");
	child = call(NR_FORK, 0, 0, 0, 0, 0, 0);
	if (child == 0) {
		while (count--)
			chain();
		end(0);
	}
	used(child, "chains");
}

#define TRACE_ME 0
#define READ_TEXT 1
#define READ_REGISTER 3
#define STEP 9
#define TO_CALL 24
#define STEPS 20000
/* Where %rip lies in `struct user`. */
#define AT_RIP 128
#define STOPPED 0x7f
#define TRAP 5

static ulong traced(long request, long child, long at)
{
	ulong word = 0;

	if (call(NR_PTRACE, request, child, at, (long)&word, 0, 0) < 0)
		fail("ptrace", ": refused");
	return word;
}

#define IS(text, instruction) (((text) & 0xffff) == (instruction))
#define CPUID 0xa20f
#define SYSCALL 0x050f

/* Lets a stopped child go on to the next stop; 0 if it ended instead. */
static int next_stop(long request, long child, const char *name)
{
	int status = 0;

	if (call(NR_PTRACE, request, child, 0, 0, 0, 0) < 0 ||
	    call(NR_WAIT4, child, (long)&status, 0, 0, 0, 0) != child)
		fail(name, ": cannot be traced");
	if (status == 0)
		return 0;
	if (status != (TRAP << 8 | STOPPED))
		fail(name, ": failed, or a signal came");
	return 1;
}

static void count(const char *root, char **words, char **environment)
{
	ulong identifications = 0, calls = 0, stops = 0;
	int status = 0;
	long child = call(NR_FORK, 0, 0, 0, 0, 0, 0);

	if (child == 0) {
		call(NR_PTRACE, TRACE_ME, 0, 0, 0, 0, 0);
		become(root, words, environment);
	}
	if (child < 0 || call(NR_WAIT4, child, (long)&status, 0, 0, 0, 0) != child ||
	    (status & 0xff) != STOPPED)
		fail(words[0], ": cannot be started");
	for (long step = 0; step < STEPS; step++) {
		ulong text = traced(READ_TEXT, child, traced(READ_REGISTER, child, AT_RIP));

		identifications += IS(text, CPUID);
		calls += IS(text, SYSCALL);
		if (!next_stop(STEP, child, words[0]))
			fail(words[0], ": ended too early");
	}
	/* Each call stops twice, but the last one, which does not return. */
	while (next_stop(TO_CALL, child, words[0]))
		stops++;
	number(identifications, " ");
	number(calls + (stops + 1) / 2, "\n");
}

#define ROUNDS 64
#define PAGE 4096UL
#define PAGES 16384UL
#define CALLS 4000000UL

/* The addresses of the instructions that touch a page first, and that follow a call. */
extern byte touched[], called[];

/* Each touch and each call is followed by a loop, as programs do something with what they got. */
static void returns(void)
{
	ulong usage[18];

	for (int round = 0; round < ROUNDS; round++) {
		byte *memory = pages(PAGES * PAGE);

		for (ulong i = 0; i < PAGES; i++)
			asm volatile("touched: movb $1, (%0)\n"
				     "mov $30, %%ecx\n"
				     "1: dec %%ecx\n"
				     "jnz 1b\n"
				     : : "r"(memory + i * PAGE) : "rcx", "memory");
		call(NR_MUNMAP, (long)memory, PAGES * PAGE, 0, 0, 0, 0);
	}
	for (ulong i = 0; i < CALLS; i++) {
		long result;

		asm volatile("syscall\n"
			     "called: mov $30, %%ecx\n"
			     "1: dec %%ecx\n"
			     "jnz 1b\n"
			     : "=a"(result) : "0"(NR_GETPPID) : "rcx", "r11", "memory");
	}
	call(NR_GETRUSAGE, 0, (long)usage, 0, 0, 0, 0);
	number(ROUNDS * PAGES, " ");
	number((ulong)touched, " ");
	number(CALLS, " ");
	number((ulong)called, " ");
	number((usage[0] + usage[2]) * 1000000 + usage[1] + usage[3], "\n");
}

#endif
