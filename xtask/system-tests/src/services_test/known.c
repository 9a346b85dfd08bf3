/*
 * Does known work, and shows what the kernel itself counted before and after it. Needs no library.
 *
 * known inner|outer|work
 *
 * inner: the marks stand directly around the work; outer: around the reading of the kernel's
 * counters, too; work: only the work.
 */

#include "bare.h"

#define NR_READ 0
#define NR_WRITE 1
#define NR_OPEN 2
#define NR_CLOSE 3
#define NR_LSEEK 8
#define NR_MMAP 9
#define NR_PIPE 22
#define NR_NANOSLEEP 35
#define NR_GETPID 39
#define NR_FORK 57
#define NR_WAIT4 61
#define NR_GETPPID 110

#define PAGES 200
#define FORKS 30
#define PAGES_OF_CHILD 5
#define ROUNDS 50
#define SLEEPS 10
#define CALLS 100

static const char *const names[] = {
	"/proc/stat", "/proc/vmstat", "/proc/interrupts", "/proc/softirqs",
};
#define FILES 4
#define ROOM 65536

/* Shared memory: what a fork leaves alone. */
static struct {
	byte texts[2][FILES][ROOM];
	long sizes[2][FILES];
} *shown;
static long files[FILES];

static long must(long result)
{
	if (result < 0)
		call(NR_EXIT, 1, 0, 0, 0, 0, 0);
	return result;
}

/* Everything is touched beforehand, so that reading raises no fault. */
static void open_files(void)
{
	shown = (void *)must(call(NR_MMAP, 0, sizeof(*shown), 3, 0x21, -1, 0));
	for (unsigned int at = 0; at < sizeof(*shown); at += 4096)
		((volatile byte *)shown)[at] = 1;
	for (int i = 0; i < FILES; i++)
		files[i] = must(call(NR_OPEN, (long)names[i], 0, 0, 0, 0, 0));
}

static void snapshot(int which)
{
	for (int i = 0; i < FILES; i++) {
		long got, size = 0;

		must(call(NR_LSEEK, files[i], 0, 0, 0, 0, 0));
		do {
			got = must(call(NR_READ, files[i], (long)shown->texts[which][i] + size, ROOM - size, 0, 0, 0));
			size += got;
		} while (got > 0 && size < ROOM);
		shown->sizes[which][i] = size;
	}
}

static void work(void)
{
	byte *pages = (byte *)must(call(NR_MMAP, 0, PAGES * 4096, 3, 0x22, -1, 0));
	int forth[2], back[2], status;
	long pause[2] = { 0, 1000000 };
	byte one = 1;

	for (int i = 0; i < PAGES; i++)
		pages[i * 4096] = 1;
	for (int i = 0; i < FORKS; i++) {
		if (must(call(NR_FORK, 0, 0, 0, 0, 0, 0)) == 0) {
			for (int page = 0; page < PAGES_OF_CHILD; page++)
				pages[page * 4096] = 2;
			call(NR_EXIT, 0, 0, 0, 0, 0, 0);
		}
		must(call(NR_WAIT4, -1, (long)&status, 0, 0, 0, 0));
	}
	must(call(NR_PIPE, (long)forth, 0, 0, 0, 0, 0));
	must(call(NR_PIPE, (long)back, 0, 0, 0, 0, 0));
	if (must(call(NR_FORK, 0, 0, 0, 0, 0, 0)) == 0) {
		for (int i = 0; i < ROUNDS; i++) {
			must(call(NR_READ, forth[0], (long)&one, 1, 0, 0, 0));
			must(call(NR_WRITE, back[1], (long)&one, 1, 0, 0, 0));
		}
		call(NR_EXIT, 0, 0, 0, 0, 0, 0);
	}
	for (int i = 0; i < ROUNDS; i++) {
		must(call(NR_WRITE, forth[1], (long)&one, 1, 0, 0, 0));
		must(call(NR_READ, back[0], (long)&one, 1, 0, 0, 0));
	}
	must(call(NR_WAIT4, -1, (long)&status, 0, 0, 0, 0));
	for (int i = 0; i < SLEEPS; i++)
		must(call(NR_NANOSLEEP, (long)pause, 0, 0, 0, 0, 0));
	for (int i = 0; i < CALLS; i++) {
		call(NR_GETPID, 0, 0, 0, 0, 0, 0);
		call(NR_GETPPID, 0, 0, 0, 0, 0, 0);
	}
}

static void print(const void *text, long size)
{
	while (size > 0) {
		long put = must(call(NR_WRITE, 1, (long)text, size, 0, 0, 0));

		text = (const byte *)text + put;
		size -= put;
	}
}

static void show(int which)
{
	for (int i = 0; i < FILES; i++) {
		print("== ", 3);
		print(which ? "after " : "before ", which ? 6 : 7);
		for (const char *at = names[i]; *at; at++)
			print(at, 1);
		print("\n", 1);
		print(shown->texts[which][i], shown->sizes[which][i]);
	}
}

__attribute__((used)) static void run(long *stack)
{
	byte how = *(const byte *)stack[2];

	if (how == 'w') {
		MARK(1);
		work();
		MARK(2);
		call(NR_EXIT, 0, 0, 0, 0, 0, 0);
	}
	open_files();
	/* What is done only once is done: the second time nothing is allocated. */
	snapshot(0);
	if (how == 'o')
		MARK(1);
	snapshot(0);
	if (how == 'i')
		MARK(1);
	work();
	if (how == 'i')
		MARK(2);
	snapshot(1);
	if (how == 'o')
		MARK(2);
	show(0);
	show(1);
	call(NR_EXIT, 0, 0, 0, 0, 0, 0);
}

START(run);
