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
#include "bare.h"
#include "timing.h"

#define NR_WRITE 1
#define NR_OPEN 2
#define NR_LSEEK 8
#define NR_MMAP 9
#define NR_MUNMAP 11
#define NR_MADVISE 28
#define NR_DUP2 33
#define NR_NANOSLEEP 35
#define NR_FORK 57
#define NR_EXECVE 59
#define NR_WAIT4 61
#define NR_CHDIR 80
#define NR_GETRUSAGE 98
#define NR_PTRACE 101
#define NR_GETPPID 110
#define NR_PERSONALITY 135
#define NR_SCHED_GETPARAM 143
#define NR_SCHED_SETSCHEDULER 144
#define NR_CHROOT 161
#define READ_AND_WRITE_FILE 2
#define SAME_ADDRESSES 0x0040000
#define READ_AND_WRITE 3
#define PRIVATE_ANONYMOUS 0x22
#define NO_HUGE_PAGES 15

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

static ulong length(const char *text)
{
	ulong n = 0;

	while (text[n])
		n++;
	return n;
}

static int equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static void print(long to, const char *text)
{
	call(NR_WRITE, to, (long)text, length(text), 0, 0, 0);
}

__attribute__((noreturn)) static void end(int status)
{
	for (;;)
		call(NR_EXIT, status, 0, 0, 0, 0, 0);
}

__attribute__((noreturn)) static void fail(const char *what, const char *why)
{
	print(2, what);
	print(2, why);
	print(2, "\n");
	end(1);
}

static void number(ulong value, const char *behind)
{
	char digits[24];
	char *at = digits + sizeof(digits) - 1;

	*at = 0;
	do {
		*--at = '0' + value % 10;
		value /= 10;
	} while (value);
	print(1, at);
	print(1, behind);
}

static byte *pages(ulong bytes)
{
	long at = call(NR_MMAP, 0, bytes, READ_AND_WRITE, PRIVATE_ANONYMOUS, -1, 0);

	if (at < 0 && at > -4096)
		fail("judged", ": there is no memory");
	/* A kernel without huge pages refuses, which is as good. */
	call(NR_MADVISE, at, bytes, NO_HUGE_PAGES, 0, 0, 0);
	return (byte *)at;
}

static ulong next(ulong *state)
{
	*state = *state * 6364136223846793005UL + 1442695040888963407UL;
	return *state >> 33;
}

/* One cycle through all numbers below `count` in random order (Sattolo 1986). */
static unsigned int *cycle(ulong count, ulong *state)
{
	unsigned int *order = (unsigned int *)pages(count * sizeof(*order));

	for (ulong i = 0; i < count; i++)
		order[i] = i;
	for (ulong i = count - 1; i > 0; i--) {
		ulong other = next(state) % i;
		unsigned int kept = order[i];

		order[i] = order[other];
		order[other] = kept;
	}
	return order;
}

/* The pages' pointers lie in all sets of an L1D of 64 sets and of an L2 of 2048. */
static void **pointer(const struct point *point, byte *memory, ulong i)
{
	return (void **)(memory + i * point->stride + ((i + i / 32) & 63) * point->skew);
}

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
			*pointer(point, made->memory, i) = pointer(point, made->memory, order[i]);
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

/* `struct rusage` is two times of seconds and microseconds, and 14 other numbers. */
#define FAULTS 8
#define SWITCHES 17

/* How often the kernel took the processor away. */
static ulong switches(void)
{
	ulong usage[18];

	call(NR_GETRUSAGE, 0, (long)usage, 0, 0, 0, 0);
	return usage[SWITCHES];
}

/*
 * The ticks of 16 000 no-ops of 6 bytes (NO_OPS in native.rs): as many in a cycle as the core
 * takes, unless its other thread, which may belong to another virtual machine, takes some.
 */
static ulong no_ops(void)
{
	ulong begun = ticks();

	asm volatile("mov $160, %%ecx\n"
		     ".balign 64\n"
		     "1:\n"
		     ".rept 100\n"
		     ".nops 6\n"
		     ".endr\n"
		     "dec %%ecx\n"
		     "jnz 1b\n"
		     : : : "rcx", "memory");
	return ticks() - begun;
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

/*
 * The ticks of loads, each of which needs the one before, from more lines than an L2 has: they say
 * how busy others keep the L3 and the memory. The memory is given back, because the kernel would
 * copy its page tables for each program.
 */
static ulong far_loads(void)
{
	static const struct point point = { .stride = 64 };
	ulong state = 88172645463325252UL, ticks_of_all = 0;
	ulong bytes = FAR_LOADS * point.stride + 8192;
	byte *memory = pages(bytes);
	unsigned int *order = cycle(FAR_LOADS, &state);

	for (ulong i = 0; i < FAR_LOADS; i++)
		*pointer(&point, memory, i) = pointer(&point, memory, order[i]);
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

__attribute__((used)) static void start(long *stack)
{
	long words_given = stack[0];
	char **words = (char **)(stack + 1);

	if ((ulong)(points_end - points) > sizeof(made) / sizeof(made[0]))
		fail("judged", ": too many points");
	if (words_given == 2 && equal(words[1], "record")) {
		record();
		end(0);
	}
	if (words_given == 2 && equal(words[1], "check")) {
		check();
		end(0);
	}
	if (words_given > 3 && equal(words[1], "run")) {
		program(words[2], words + 3, words + words_given + 1);
		end(0);
	}
	if (words_given > 3 && equal(words[1], "count")) {
		count(words[2], words + 3, words + words_given + 1);
		end(0);
	}
	if (words_given == 3 && equal(words[1], "chains")) {
		chains(words[2]);
		end(0);
	}
	if (words_given == 2 && equal(words[1], "returns")) {
		returns();
		end(0);
	}
	for (struct point *point = points; words_given == 3 && point < points_end; point++)
		if (equal(words[1], point->name)) {
			measure(point, words[2]);
			end(0);
		}
	fail("judged", ": give record, check, run, count, chains, returns, or a point and the slices (1 to 9)");
}

START(start);
