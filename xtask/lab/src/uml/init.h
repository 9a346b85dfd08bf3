/*
 * For an init without a library: numbers of system calls, the console, and what ends a load that
 * went wrong.
 */
#ifndef INIT_H
#define INIT_H

#include "bare.h"
#include "words.h"

enum {
	NR_READ = 0, NR_WRITE = 1, NR_OPEN = 2, NR_CLOSE = 3, NR_MMAP = 9, NR_IOCTL = 16,
	NR_PIPE = 22, NR_PAUSE = 34, NR_SOCKET = 41, NR_CONNECT = 42, NR_BIND = 49, NR_LISTEN = 50,
	NR_GETSOCKNAME = 51, NR_SOCKETPAIR = 53, NR_SETSOCKOPT = 54, NR_EXECVE = 59, NR_MKDIR = 83,
	NR_SCHED_SETSCHEDULER = 144, NR_MOUNT = 165, NR_REBOOT = 169, NR_RECVMMSG = 299,
	NR_SENDMMSG = 307, NR_MEMFD_CREATE = 319, NR_IO_URING_SETUP = 425,
	NR_IO_URING_ENTER = 426, NR_IO_URING_REGISTER = 427
};

enum { O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_CREAT = 0100, O_TRUNC = 01000 };

static void print(const char *text)
{
	call(NR_WRITE, 1, (long)text, length(text), 0, 0, 0);
}

/* "WORD NUMBER", in a place that the next call uses again. */
static char *sentence(const char *word, ulong number)
{
	static char text[64];
	char digits[20];
	int n = 0, at = 0;

	for (; word[at]; at++)
		text[at] = word[at];
	do
		digits[n++] = '0' + number % 10;
	while (number /= 10);
	while (n)
		text[at++] = digits[--n];
	text[at] = 0;
	return text;
}

static void power_off(void)
{
	call(NR_REBOOT, 0xfee1dead, 672274793, 0x4321fedc, 0, 0, 0);
	call(NR_EXIT, 1, 0, 0, 0, 0, 0);
}

static void fail(const char *what)
{
	print("failed: ");
	print(what);
	print("\n");
	power_off();
	for (;;)
		;
}

static void require(int holds, const char *what)
{
	if (!holds)
		fail(what);
}

static void raise_loopback(long fd)
{
	static struct { char name[16]; short flags; char rest[22]; } request = { "lo" };

	require(call(NR_IOCTL, fd, 0x8913, (long)&request, 0, 0, 0) == 0, "reading lo's flags");
	request.flags |= 1;
	require(call(NR_IOCTL, fd, 0x8914, (long)&request, 0, 0, 0) == 0, "raising lo");
}

#endif
