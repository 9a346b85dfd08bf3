/*
 * Does between the marks what is hard to record exactly, and prints how many instructions that
 * took by the guest's own count.
 * Under -icount shift=0 the time stamp counter counts instructions. Needs no library.
 *
 * counted whole|unended|failed
 */

#include "bare.h"

#define NR_WRITE 1
#define NR_MMAP 9
#define NR_FORK 57
#define NR_WAIT4 61
#define NR_PRCTL 157
#define NR_MEMFD_CREATE 319
#define PR_SET_NAME 15

#define PAGES 500
#define FORKS 20
#define REPEATS 50
#define PATCHED_CALLS 30
#define ALIAS_CALLS 40

static void fail(void)
{
	call(NR_EXIT, 1, 0, 0, 0, 0, 0);
}

/* protection: 1 read, 2 write, 4 execute; fd -1: fresh memory */
static byte *map(long size, long protection, long fd)
{
	long at = call(NR_MMAP, 0, size, protection, fd < 0 ? 0x22 : 1, fd, 0);

	if (at < 0)
		fail();
	return (byte *)at;
}

static ulong tsc(void)
{
	unsigned int low, high;

	asm volatile("rdtsc" : "=a"(low), "=d"(high));
	return (ulong)high << 32 | low;
}

/* Every page raises an exception in the middle of straight code. */
static void touch_pages(void)
{
	volatile byte *page = map(PAGES * 4096, 3, -1);

	for (int i = 0; i < PAGES; i++)
		page[i * 4096] += i;
}

/*
 * The string instruction behind this immediate is reached REPEATS times, and
 * raises an exception once.
 */
static void repeat(void)
{
	byte *to = map(2 * 4096, 3, -1);

	/* Of another size than those of the string instruction, so that they can be told apart. */
	*(volatile long *)to = 1;
	for (int i = 0; i < REPEATS; i++) {
		byte *at = i ? to : to + 4096 - 500;
		long count = 1000;

		asm volatile("mov $0x7e57c0de, %%eax; rep stosb" : "+D"(at), "+c"(count) : : "eax", "memory");
	}
}

static void fork_and_wait(void)
{
	for (int i = 0; i < FORKS; i++) {
		long child = call(NR_FORK, 0, 0, 0, 0, 0, 0);

		if (child == 0)
			call(NR_EXIT, 0, 0, 0, 0, 0, 0);
		if (child < 0)
			fail();
		call(NR_WAIT4, -1, 0, 0, 0, 0, 0);
	}
}

/* mov $value, %eax; ret */
static void put_function(volatile byte *at, byte value)
{
	const byte code[] = { 0xb8, value, 0xde, 0xc0, 0x7e, 0xc3 };

	for (unsigned int i = 0; i < sizeof(code); i++)
		at[i] = code[i];
}

/* Code that changes under the same address. */
static void patch(void)
{
	byte *code = map(4096, 7, -1);
	unsigned int (*function)(void) = (unsigned int (*)(void))code;

	for (byte value = 1; value <= 2; value++) {
		put_function(code, value);
		for (int i = 0; i < PATCHED_CALLS; i++)
			if (function() != (0x7ec0de00u | value))
				fail();
	}
}

/* One page of code at two addresses. */
static void alias(void)
{
	long fd = call(NR_MEMFD_CREATE, (long)"code", 0, 0, 0, 0, 0);
	byte *first, *second;

	put_function(map(4096, 3, -1), 0);
	if (fd < 0)
		fail();
	/* A file of a page: writing it makes it that long. */
	static byte page[4096];
	put_function(page, 3);
	if (call(NR_WRITE, fd, (long)page, sizeof(page), 0, 0, 0) != sizeof(page))
		fail();
	first = map(4096, 5, fd);
	second = map(4096, 5, fd);
	for (int i = 0; i < ALIAS_CALLS; i++) {
		((unsigned int (*)(void))first)();
		((unsigned int (*)(void))second)();
	}
}

static void work(void)
{
	touch_pages();
	repeat();
	fork_and_wait();
	call(NR_PRCTL, PR_SET_NAME, (long)"renamed", 0, 0, 0, 0);
	patch();
	alias();
	MARK(7);
}

static void print(ulong value)
{
	char line[24];
	int at = sizeof(line);

	line[--at] = '\n';
	do
		line[--at] = '0' + value % 10;
	while (value /= 10);
	call(NR_WRITE, 1, (long)(line + at), sizeof(line) - at, 0, 0, 0);
}

__attribute__((used)) static void run(long *stack)
{
	const char *how = (const char *)stack[2];
	ulong before, after;

	if (stack[0] != 2)
		fail();
	before = tsc();
	MARK(1);
	work();
	if (how[0] == 'f')
		MARK(3);
	if (how[0] == 'w')
		MARK(2);
	after = tsc();
	print(after - before);
	call(NR_EXIT, 0, 0, 0, 0, 0, 0);
}

START(run);
