/*
 * Programs whose sharing is known, one after the other, on four CPUs with a process each. All
 * memory that they share is at fixed addresses, a page for each program.
 *
 *   counters in one line    each process increments its own word of the line
 *   counters in four lines  each increments a word in a line of its own
 *   ping-pong               two processes hand a word to and fro
 *   spin lock               all take a lock, and increment a counter in another line
 *   readers and writers     one process loads a word of a line; the others increment words of it
 */

#include "bare.h"

#define NR_READ 0
#define NR_WRITE 1
#define NR_MMAP 9
#define NR_FORK 57
#define NR_WAIT4 61
#define NR_SCHED_SETAFFINITY 203
#define NR_PIPE2 293

#define CPUS 4
#define TIMES 5000
#define ROUNDS 200
#define HOLDS 500

#define SHARED 0x50000000ul
#define PAGE(n) ((volatile ulong *)(SHARED + (n) * 4096))
#define ONE_LINE PAGE(0)
#define OWN_LINES PAGE(1)
#define BALL PAGE(2)
#define LOCK PAGE(3)
#define GUARDED (LOCK + 8)
#define READ PAGE(4)

static void end(int status)
{
	call(NR_EXIT, status, 0, 0, 0, 0, 0);
}

static void increment(volatile ulong *counter)
{
	for (int n = 0; n < TIMES; n++)
		++*counter;
}

static void ping_pong(ulong own)
{
	for (ulong n = 0; n < ROUNDS; n++) {
		while (*BALL % 2 != own)
			asm volatile("pause");
		++*BALL;
	}
}

static void locks(void)
{
	for (int n = 0; n < HOLDS; n++) {
		ulong held = 1;

		for (;;) {
			asm volatile("xchg %0, %1" : "+r"(held), "+m"(*LOCK) : : "memory");
			if (!held)
				break;
			while (*LOCK)
				asm volatile("pause");
			held = 1;
		}
		++*GUARDED;
		*LOCK = 0;
	}
}

static void reads(void)
{
	for (int n = 0; n < TIMES; n++)
		(void)READ[7];
}

/* All processes come here before one goes on: the first counts the others, then lets them go. */
static void together(int cpu, int (*pipes)[2])
{
	byte token = 0;

	if (cpu) {
		call(NR_WRITE, pipes[0][1], (long)&token, 1, 0, 0, 0);
		if (call(NR_READ, pipes[cpu][0], (long)&token, 1, 0, 0, 0) != 1)
			end(4);
		return;
	}
	for (int other = 1; other < CPUS; other++)
		if (call(NR_READ, pipes[0][0], (long)&token, 1, 0, 0, 0) != 1)
			end(5);
	for (int other = 1; other < CPUS; other++)
		call(NR_WRITE, pipes[other][1], (long)&token, 1, 0, 0, 0);
}

static void work(int cpu, int (*pipes)[2])
{
	ulong mask = 1ul << cpu;

	if (call(NR_SCHED_SETAFFINITY, 0, sizeof(mask), (long)&mask, 0, 0, 0) < 0)
		end(2);
	together(cpu, pipes);
	increment(ONE_LINE + cpu);
	together(cpu, pipes);
	increment(OWN_LINES + 8 * cpu);
	together(cpu, pipes);
	if (cpu < 2)
		ping_pong(cpu);
	together(cpu, pipes);
	locks();
	together(cpu, pipes);
	if (cpu)
		increment(READ + cpu);
	else
		reads();
	together(cpu, pipes);
	end(0);
}

void start(long *stack)
{
	int pipes[CPUS][2], failed = 0;

	(void)stack;
	for (int cpu = 0; cpu < CPUS; cpu++)
		if (call(NR_PIPE2, (long)pipes[cpu], 0, 0, 0, 0, 0) < 0)
			end(1);
	if (call(NR_MMAP, SHARED, 5 * 4096, 3, 0x31, -1, 0) != (long)SHARED)
		end(1);
	/* Every page has its place before the processes use it. */
	for (int page = 0; page < 5; page++)
		*PAGE(page) = 0;
	MARK(1);
	for (int cpu = 0; cpu < CPUS; cpu++)
		if (!call(NR_FORK, 0, 0, 0, 0, 0, 0))
			work(cpu, pipes);
	for (int cpu = 0; cpu < CPUS; cpu++) {
		int status;

		if (call(NR_WAIT4, -1, (long)&status, 0, 0, 0, 0) < 0 || status)
			failed = 1;
	}
	MARK(2);
	end(failed || *GUARDED != CPUS * HOLDS);
}

START(start);
