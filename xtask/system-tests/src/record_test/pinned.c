/*
 * Between the marks, one process on each CPU executes mark 16 + CPU again and again, and does what
 * lets other CPUs take a turn: system calls, page faults, giving up the CPU, waking its neighbour.
 * While a process has the token, it increments its own counter in a line that all share, and a
 * common counter in the next line.
 *
 * pinned CPUS [count]
 *
 * With "count", each process first counts between two more marks, and waits for nobody.
 */

#include "bare.h"

#define NR_READ 0
#define NR_WRITE 1
#define NR_MMAP 9
#define NR_SCHED_YIELD 24
#define NR_GETPPID 110
#define NR_FORK 57
#define NR_WAIT4 61
#define NR_PIPE2 293
#define NR_SCHED_SETAFFINITY 203

#define MOST_CPUS 8
#define ROUNDS 200
#define COUNT 100000

/* Two lines of shared memory. */
#define SHARED 0x50000000ul
#define COUNTERS ((volatile ulong *)SHARED)
#define COMMON (COUNTERS + 8)

static void end(int status)
{
	call(NR_EXIT, status, 0, 0, 0, 0, 0);
}

static void mark(int cpu)
{
	switch (cpu) {
	case 0: MARK(16); break;
	case 1: MARK(17); break;
	case 2: MARK(18); break;
	case 3: MARK(19); break;
	case 4: MARK(20); break;
	case 5: MARK(21); break;
	case 6: MARK(22); break;
	case 7: MARK(23); break;
	}
}

static void count(int cpu)
{
	mark(cpu);
	for (volatile ulong n = 0; n < COUNT; n++)
		;
	mark(cpu);
}

static void work(int cpu, int cpus, int counts, int (*pipes)[2])
{
	ulong mask = 1ul << cpu;
	byte token = 0;
	volatile byte *pages;

	if (call(NR_SCHED_SETAFFINITY, 0, sizeof(mask), (long)&mask, 0, 0, 0) < 0)
		end(2);
	pages = (byte *)call(NR_MMAP, 0, ROUNDS * 4096, 3, 0x22, -1, 0);
	if ((long)pages < 0)
		end(3);
	if (counts)
		count(cpu);
	for (int round = 0; round < ROUNDS; round++) {
		mark(cpu);
		pages[round * 4096] = 1;
		mark(cpu);
		call(NR_GETPPID, 0, 0, 0, 0, 0, 0);
		mark(cpu);
		/* A token goes round: each waits for the one before, and wakes the one behind. */
		if ((cpu || round) && call(NR_READ, pipes[cpu][0], (long)&token, 1, 0, 0, 0) != 1)
			end(4);
		mark(cpu);
		COUNTERS[cpu]++;
		++*COMMON;
		if (call(NR_WRITE, pipes[(cpu + 1) % cpus][1], (long)&token, 1, 0, 0, 0) != 1)
			end(5);
		mark(cpu);
		call(NR_SCHED_YIELD, 0, 0, 0, 0, 0, 0);
	}
	end(0);
}

void start(long *stack)
{
	int pipes[MOST_CPUS][2], cpus, failed = 0;

	if (stack[0] != 2 && stack[0] != 3)
		end(1);
	cpus = *(char *)stack[2] - '0';
	if (cpus < 1 || cpus > MOST_CPUS)
		end(1);
	for (int cpu = 0; cpu < cpus; cpu++)
		if (call(NR_PIPE2, (long)pipes[cpu], 0, 0, 0, 0, 0) < 0)
			end(1);
	if (call(NR_MMAP, SHARED, 4096, 3, 0x31, -1, 0) != (long)SHARED)
		end(1);
	*COMMON = 0;
	MARK(1);
	for (int cpu = 0; cpu < cpus; cpu++)
		if (!call(NR_FORK, 0, 0, 0, 0, 0, 0))
			work(cpu, cpus, stack[0] == 3, pipes);
	for (int cpu = 0; cpu < cpus; cpu++) {
		int status;

		if (call(NR_WAIT4, -1, (long)&status, 0, 0, 0, 0) < 0 || status)
			failed = 1;
	}
	MARK(2);
	end(failed);
}

START(start);
