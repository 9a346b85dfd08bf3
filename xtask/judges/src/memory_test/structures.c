/*
 * Makes the kernel use data of known kinds between the marks: hundreds of files, a pipe, memory,
 * page tables. Needs no library.
 */
#include "bare.h"

#define NR_READ 0
#define NR_WRITE 1
#define NR_OPEN 2
#define NR_CLOSE 3
#define NR_STAT 4
#define NR_MMAP 9
#define NR_PIPE 22
#define NR_FORK 57
#define NR_WAIT4 61
#define NR_MKDIR 83
#define NR_UNLINK 87
#define NR_MOUNT 165

#define FILES 1500
#define PAGES 1500

/* A call that must not fail. */
static long must(long number, long a, long b, long c, long d, long e, long f)
{
	long result = call(number, a, b, c, d, e, f);

	if (result < 0)
		call(NR_EXIT, -result, 0, 0, 0, 0, 0);
	return result;
}

static char name[] = "/made/f0000";
static char block[4096];

static void named(int number)
{
	for (int digit = 10; digit > 6; digit--, number /= 10)
		name[digit] = '0' + number % 10;
}

static void work(void)
{
	int ends[2], status;
	volatile char *memory;

	for (int file = 0; file < FILES; file++) {
		named(file);
		long opened = must(NR_OPEN, (long)name, 0102, 0600, 0, 0, 0);
		must(NR_WRITE, opened, (long)block, sizeof(block), 0, 0, 0);
		must(NR_CLOSE, opened, 0, 0, 0, 0, 0);
	}
	for (int round = 0; round < 2; round++)
		for (int file = 0; file < FILES; file++) {
			named(file);
			must(NR_STAT, (long)name, (long)block, 0, 0, 0, 0);
		}
	must(NR_PIPE, (long)ends, 0, 0, 0, 0, 0);
	for (int round = 0; round < 200; round++) {
		must(NR_WRITE, ends[1], (long)block, sizeof(block), 0, 0, 0);
		must(NR_READ, ends[0], (long)block, sizeof(block), 0, 0, 0);
	}
	/* Private and anonymous. */
	memory = (void *)call(NR_MMAP, 0, PAGES * 4096L, 3, 0x22, -1, 0);
	for (int page = 0; page < PAGES; page++)
		memory[page * 4096L] = 1;
	for (int child = 0; child < 5; child++) {
		long forked = must(NR_FORK, 0, 0, 0, 0, 0, 0);
		if (!forked) {
			memory[child * 4096L] = 2;
			call(NR_EXIT, 0, 0, 0, 0, 0, 0);
		}
		must(NR_WAIT4, forked, (long)&status, 0, 0, 0, 0);
	}
	for (int file = 0; file < FILES; file++) {
		named(file);
		must(NR_UNLINK, (long)name, 0, 0, 0, 0, 0);
	}
}

static __attribute__((used)) void run(void)
{
	must(NR_MKDIR, (long)"/made", 0700, 0, 0, 0, 0);
	must(NR_MOUNT, (long)"none", (long)"/made", (long)"tmpfs", 0, 0, 0);
	MARK(1);
	work();
	MARK(2);
	call(NR_EXIT, 0, 0, 0, 0, 0, 0);
}

START(run);
