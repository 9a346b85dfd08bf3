/*
 * stopped NUMBER COMMAND…: runs a command, and stops it when its first thread has come back from
 * a system call of that number for the first time. Then says "stopped PROCESS", waits until
 * somebody lets the command go on and it ends, and ends with its status. Needs no library.
 */
#include "bare.h"
#include "words.h"

#define NR_WRITE 1
#define NR_GETPID 39
#define NR_FORK 57
#define NR_EXECVE 59
#define NR_WAIT4 61
#define NR_KILL 62
#define NR_PTRACE 101

#define TRACEME 0
#define DETACH 17
#define SYSCALL 24
#define SETOPTIONS 0x4200
#define GET_SYSCALL_INFO 0x420e
#define TRACESYSGOOD 1
#define SIGTRAP 5
#define SIGSTOP 19
#define ENTRY 1
#define EXIT 2

/* struct ptrace_syscall_info */
struct info {
	byte op, pad[3];
	unsigned int arch;
	ulong instruction, stack, number, arguments[6];
};

static void say(const char *text)
{
	call(NR_WRITE, 1, (long)text, length(text), 0, 0, 0);
}

static void end(long status)
{
	call(NR_EXIT, status, 0, 0, 0, 0, 0);
}

static void say_number(long value)
{
	char digits[24];
	int at = sizeof(digits);

	digits[--at] = 0;
	do
		digits[--at] = '0' + value % 10;
	while (value /= 10);
	say(digits + at);
}

static void run_traced(char **command, char **environment)
{
	call(NR_PTRACE, TRACEME, 0, 0, 0, 0, 0);
	call(NR_KILL, call(NR_GETPID, 0, 0, 0, 0, 0, 0), SIGSTOP, 0, 0, 0, 0);
	call(NR_EXECVE, (long)command[0], (long)command, (long)environment, 0, 0, 0);
	say("stopped: the command cannot be run\n");
	end(127);
}

/* Ends with the command if that has ended. */
static int await(long process)
{
	int status = 0;

	if (call(NR_WAIT4, process, (long)&status, 0, 0, 0, 0) != process)
		end(126);
	if ((status & 0x7f) == 0)
		end(status >> 8 & 0xff);
	if ((status & 0xff) != 0x7f)
		end(128 + (status & 0x7f));
	return status >> 8 & 0xff;
}

static void stop_behind(long process, ulong wanted)
{
	static struct info info;
	ulong number = ~0ul;
	int signal;

	for (;;) {
		call(NR_PTRACE, SYSCALL, process, 0, 0, 0, 0);
		signal = await(process);
		if (signal != (SIGTRAP | 0x80))
			continue;
		call(NR_PTRACE, GET_SYSCALL_INFO, process, sizeof(info), (long)&info, 0, 0);
		if (info.op == ENTRY)
			number = info.number;
		else if (info.op == EXIT && number == wanted)
			return;
	}
}

__attribute__((used)) static void run(long *stack)
{
	char **words = (char **)(stack + 1);
	long argc = stack[0], process;
	ulong wanted = 0;

	if (argc < 3)
		end(125);
	for (const char *digit = words[1]; *digit; digit++)
		wanted = 10 * wanted + *digit - '0';
	process = call(NR_FORK, 0, 0, 0, 0, 0, 0);
	if (!process)
		run_traced(words + 2, words + argc + 1);
	await(process);
	call(NR_PTRACE, SETOPTIONS, process, 0, TRACESYSGOOD, 0, 0);
	stop_behind(process, wanted);
	call(NR_KILL, process, SIGSTOP, 0, 0, 0, 0);
	call(NR_PTRACE, DETACH, process, 0, 0, 0, 0);
	say("stopped ");
	say_number(process);
	say("\n");
	await(process);
}

START(run);
