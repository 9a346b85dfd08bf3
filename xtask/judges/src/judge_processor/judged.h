/*
 * What points and programs need: output and memory.
 */
#ifndef JUDGED_H
#define JUDGED_H

#include "bare.h"
#include "timing.h"
#include "words.h"

#define NR_WRITE 1
#define NR_MMAP 9
#define NR_MUNMAP 11
#define NR_MADVISE 28
#define NR_GETRUSAGE 98
#define READ_AND_WRITE 3
#define PRIVATE_ANONYMOUS 0x22
#define NO_HUGE_PAGES 15

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
static void **pointer(byte *memory, ulong stride, ulong skew, ulong i)
{
	return (void **)(memory + i * stride + ((i + i / 32) & 63) * skew);
}

/* `struct rusage` is two times of seconds and microseconds, and 14 other numbers. */
#define FAULTS 8
#define SWITCHES 17

#endif
