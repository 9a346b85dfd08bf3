/*
 * Runs the points that `points.rs` writes behind this text: functions, and the table of them.
 *
 *   judged record         all points between the marks 1 and 2, each once to warm and once between
 *                         the marks 4 and 5
 *   judged POINT SLICES   one point on the processor; for each slice a line with how often the
 *                         point ran, its ticks of the time stamp counter, the ticks of a chain of
 *                         dependent additions before and behind it, how often the kernel took the
 *                         processor away, and the ticks of no-ops before and behind it
 *   judged check          all points once, without time
 *   judged run ROOT PROGRAM WORD...
 *                         a program in the root file system ROOT, once to warm and once more; a
 *                         line with the ticks of loads from the L3 before both, then, before and
 *                         behind the second one, the ticks of a chain and of NEAR times no-ops,
 *                         then how often no-ops were timed while it ran, the most ticks that they
 *                         took, its microseconds in user mode and in kernel mode, its page faults,
 *                         and the ticks of loads again. This process is small, so that its copy,
 *                         which becomes the program, is torn down in no time.
 *
 *   judged count ROOT PROGRAM WORD...
 *                         the same program under ptrace; a line with how many of the first STEPS
 *                         instructions were `cpuid`, and how many system calls it makes. The C
 *                         library has done with `cpuid` after a few thousand instructions.
 *
 *   judged returns        touches pages for the first time and once more, and makes system calls;
 *                         a line with the number of pages, the address of the instruction that
 *                         touches them first, the number of calls, the address behind the call,
 *                         and the microseconds of all
 *
 * Every run of a point checks its result.
 */
#include "programs.h"

/*
 * A slice should take this number of ticks at least, but no more than MOST runs. A short slice is
 * seldom interrupted.
 */
#define SLICE 400000
#define MOST 64

enum memory { NONE, CHAIN_OF_POINTERS, PATTERN, TARGETS, SCRATCH };

struct point {
	const char *name;
	ulong (*run)(ulong iterations, void *memory);
	ulong iterations;
	ulong memory;
	ulong count;    /* of pointers, pattern bytes or targets */
	ulong stride;   /* bytes from one pointer to the next */
	ulong skew;     /* bytes that pointers lie further in their strides: 0 to 63 times */
	ulong expected; /* the result, where it does not depend on the memory */
	byte *targets;
};

extern struct point points[];
extern struct point points_end[];

/* By point, where its memory lies and what it returns. */
static struct made {
	void *memory;
	ulong expected;
} made[512];

static void make(const struct point *point, struct made *made)
{
	ulong state = 88172645463325252UL;
	ulong count = point->count;
	unsigned int *order;

	made->expected = point->expected;
	switch (point->memory) {
	case CHAIN_OF_POINTERS:
		order = cycle(count, &state);
		made->memory = pages(count * point->stride + 8192);
		for (ulong i = 0; i < count; i++)
			*pointer(made->memory, point->stride, point->skew, i) =
				pointer(made->memory, point->stride, point->skew, order[i]);
		/* Each run goes round the whole cycle. */
		made->expected = (ulong)made->memory;
		break;
	case PATTERN:
		made->memory = pages(count);
		made->expected = 0;
		for (ulong i = 0; i < count; i++) {
			byte taken = next(&state) >> 20 & 1;

			((volatile byte *)made->memory)[i] = taken;
			made->expected += taken;
		}
		made->expected *= point->iterations / count;
		break;
	case TARGETS:
		order = cycle(count, &state);
		made->memory = pages(count * sizeof(byte *));
		for (ulong i = 0; i < count; i++)
			((byte **)made->memory)[i] = point->targets + 16 * (ulong)order[i];
		break;
	case SCRATCH:
		made->memory = pages(8192);
		*(volatile byte *)made->memory = 0;
		break;
	}
}

static void run(const struct point *point, const struct made *made)
{
	if (point->run(point->iterations, made->memory) != made->expected)
		fail(point->name, ": the result is wrong");
}

/* How often the kernel took the processor away. */
static ulong switches(void)
{
	ulong usage[18];

	call(NR_GETRUSAGE, 0, (long)usage, 0, 0, 0, 0);
	return usage[SWITCHES];
}

static void slice(const struct point *point, const struct made *made, ulong repeats)
{
	ulong switched = switches();
	ulong before = chain();
	ulong crowded = no_ops();
	ulong begun = ticks();
	ulong took, behind, later;

	for (ulong i = 0; i < repeats; i++)
		run(point, made);
	took = ticks() - begun;
	later = no_ops();
	behind = chain();
	switched = switches() - switched;
	number(repeats, " ");
	number(took, " ");
	number(before, " ");
	number(behind, " ");
	number(switched, " ");
	number(crowded, " ");
	number(later, "\n");
}

static void measure(const struct point *point, const char *slices)
{
	ulong begun, took, repeats = 1;

	make(point, &made[0]);
	run(point, &made[0]);
	begun = ticks();
	run(point, &made[0]);
	took = ticks() - begun;
	while (repeats < MOST && repeats * took < SLICE)
		repeats++;
	/* Processors raise their frequency within milliseconds. */
	for (int i = 0; i < 100; i++)
		chain();
	for (int left = slices[0] - '0'; left > 0; left--)
		slice(point, &made[0], repeats);
}

static void record(void)
{
	for (struct point *point = points; point < points_end; point++)
		make(point, &made[point - points]);
	MARK(1);
	for (struct point *point = points; point < points_end; point++) {
		run(point, &made[point - points]);
		MARK(4);
		run(point, &made[point - points]);
		MARK(5);
	}
	MARK(2);
}

static void check(void)
{
	for (struct point *point = points; point < points_end; point++) {
		make(point, &made[0]);
		run(point, &made[0]);
	}
}

__attribute__((used)) static void start(long *stack)
{
	long words_given = stack[0];
	char **words = (char **)(stack + 1);

	if ((ulong)(points_end - points) > sizeof(made) / sizeof(made[0]))
		fail("judged", ": too many points");
	if (words_given == 2 && same(words[1], "record")) {
		record();
		end(0);
	}
	if (words_given == 2 && same(words[1], "check")) {
		check();
		end(0);
	}
	if (words_given > 3 && same(words[1], "run")) {
		program(words[2], words + 3, words + words_given + 1);
		end(0);
	}
	if (words_given > 3 && same(words[1], "count")) {
		count(words[2], words + 3, words + words_given + 1);
		end(0);
	}
	if (words_given == 3 && same(words[1], "chains")) {
		chains(words[2]);
		end(0);
	}
	if (words_given == 2 && same(words[1], "returns")) {
		returns();
		end(0);
	}
	for (struct point *point = points; words_given == 3 && point < points_end; point++)
		if (same(words[1], point->name)) {
			measure(point, words[2]);
			end(0);
		}
	fail("judged", ": give record, check, run, count, chains, returns, or a point and the slices (1 to 9)");
}

START(start);
