/*
 * crowd NUMBER: starts that many threads and says "there". When it can read a byte, each of them
 * waits in read() for a pipe into which nobody writes, until a signal comes. Needs no library.
 */
#include "bare.h"

#define NR_READ 0
#define NR_WRITE 1
#define NR_PIPE 22
#define NR_PAUSE 34
#define NR_CLONE 56
#define NR_FUTEX 202
#define FUTEX_WAKE 1

/* CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD */
#define FLAGS 0x10f00

static char byte_read;
static volatile int gate;

/* The thread has its creator's stack, and does not touch it. */
static long start(long file)
{
	register long r12 asm("r12") = file;
	register long r13 asm("r13") = (long)&byte_read;
	register long r14 asm("r14") = (long)&gate;
	register long r10 asm("r10") = 0;
	register long r8 asm("r8") = 0;
	long result;

	asm volatile("syscall\n"
		     "test %%rax, %%rax\n"
		     "jnz 1f\n"
		     /* Until the gate is 1: futex(&gate, FUTEX_WAIT, 0, no limit). */
		     "2: mov %%r14, %%rdi\n"
		     "xor %%esi, %%esi\n"
		     "xor %%edx, %%edx\n"
		     "xor %%r10d, %%r10d\n"
		     "mov $202, %%eax\n"
		     "syscall\n"
		     "cmpl $0, (%%r14)\n"
		     "je 2b\n"
		     "mov %%r12, %%rdi\n"
		     "mov %%r13, %%rsi\n"
		     "mov $1, %%edx\n"
		     "xor %%eax, %%eax\n"
		     "syscall\n"
		     "mov $60, %%eax\n"
		     "xor %%edi, %%edi\n"
		     "syscall\n"
		     "1:\n"
		     : "=a"(result)
		     : "a"(NR_CLONE), "D"(FLAGS), "S"(0), "d"(0), "r"(r10), "r"(r8), "r"(r12),
		       "r"(r13), "r"(r14)
		     : "rcx", "r11", "memory");
	return result;
}

void run(long *stack)
{
	char *digits = stack[0] == 2 ? (char *)stack[2] : "";
	int pipe[2];
	long number = 0;

	for (; *digits >= '0' && *digits <= '9'; digits++)
		number = number * 10 + *digits - '0';
	if (!number || *digits || call(NR_PIPE, (long)pipe, 0, 0, 0, 0, 0))
		call(NR_EXIT, 125, 0, 0, 0, 0, 0);
	for (; number; number--)
		if (start(pipe[0]) <= 0)
			call(NR_EXIT, 124, 0, 0, 0, 0, 0);
	call(NR_WRITE, 1, (long)"there\n", 6, 0, 0, 0);
	call(NR_READ, 0, (long)&byte_read, 1, 0, 0, 0);
	gate = 1;
	call(NR_FUTEX, (long)&gate, FUTEX_WAKE, 0x7fffffff, 0, 0, 0);
	call(NR_PAUSE, 0, 0, 0, 0, 0, 0);
	call(NR_EXIT, 0, 0, 0, 0, 0, 0);
}

START(run);
