/*
 * late FROM COMMAND [ARGUMENT]…: runs the command and meanwhile wakes every 200 microseconds, with
 * the highest priority. Prints how often it woke, and by how many nanoseconds at most it woke too
 * late: for that time no task could run. Then prints the same for the time from FROM nanoseconds
 * after the start. Its exit status is the command's. Needs no library.
 */
#include "bare.h"

#define NR_WRITE 1
#define NR_FORK 57
#define NR_EXECVE 59
#define NR_WAIT4 61
#define NR_SCHED_SETSCHEDULER 144
#define NR_CLOCK_GETTIME 228
#define NR_CLOCK_NANOSLEEP 230
#define CLOCK_MONOTONIC 1
#define TIMER_ABSTIME 1
#define SCHED_FIFO 1
#define WNOHANG 1

#define SECOND 1000000000L
#define PERIOD 200000L

struct time {
	long seconds;
	long nanoseconds;
};

static void fail(void)
{
	call(NR_EXIT, 125, 0, 0, 0, 0, 0);
}

static long now(void)
{
	struct time time;

	call(NR_CLOCK_GETTIME, CLOCK_MONOTONIC, (long)&time, 0, 0, 0, 0);
	return time.seconds * SECOND + time.nanoseconds;
}

static void sleep_until(long when)
{
	struct time time = { when / SECOND, when % SECOND };

	if (call(NR_CLOCK_NANOSLEEP, CLOCK_MONOTONIC, TIMER_ABSTIME, (long)&time, 0, 0, 0))
		fail();
}

static void say(const char *text)
{
	long size = 0;

	while (text[size])
		size++;
	call(NR_WRITE, 1, (long)text, size, 0, 0, 0);
}

static void print(long value)
{
	char digits[24];
	int at = sizeof(digits);

	digits[--at] = 0;
	do
		digits[--at] = '0' + value % 10;
	while (value /= 10);
	say(digits + at);
}

/* How often, and how late at most. */
struct wakings {
	long count;
	long most;
};

static void add(struct wakings *wakings, long late)
{
	wakings->count++;
	if (late > wakings->most)
		wakings->most = late;
}

static void tell(long from, const struct wakings *wakings)
{
	say("from ");
	print(from);
	say(" ns on woken ");
	print(wakings->count);
	say(" times, at most ");
	print(wakings->most);
	say(" ns late\n");
}

static long number(const char *text)
{
	long value = 0;

	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			fail();
		value = 10 * value + *text - '0';
	}
	return value;
}

static long start(char **command, char **environment)
{
	long child = call(NR_FORK, 0, 0, 0, 0, 0, 0);

	if (child < 0)
		fail();
	if (child == 0) {
		call(NR_EXECVE, (long)command[0], (long)command, (long)environment, 0, 0, 0);
		fail();
	}
	return child;
}

__attribute__((used)) static void run(long *stack)
{
	char **words = (char **)(stack + 1);
	struct wakings all = { 0, 0 }, later = { 0, 0 };
	int priority = 99, status = 0;
	long from, begun, next, child;

	if (stack[0] < 3)
		fail();
	from = number(words[1]);
	child = start(words + 2, words + stack[0] + 1);
	if (call(NR_SCHED_SETSCHEDULER, 0, SCHED_FIFO, (long)&priority, 0, 0, 0))
		fail();
	next = begun = now();
	while (call(NR_WAIT4, child, (long)&status, WNOHANG, 0, 0, 0) == 0) {
		long late;

		next += PERIOD;
		sleep_until(next);
		late = now() - next;
		add(&all, late);
		if (next - begun >= from)
			add(&later, late);
		while (late > PERIOD) {
			late -= PERIOD;
			next += PERIOD;
		}
	}
	say("ran for ");
	print(now() - begun);
	say(" ns\n");
	tell(0, &all);
	tell(from, &later);
	call(NR_EXIT, status >> 8 & 255 ? status >> 8 & 255 : status & 127, 0, 0, 0, 0, 0);
}

START(run);
