/*
 * Runs commands of `kernlane live`, several at once, beside everything else. Each is stopped for a
 * while at some of its system calls: more often at those that change the kernel. Some are killed
 * there. Each ends with a status that it has a right to.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuzz.h"

#define MOST_WORDS	12
/* Of system calls, for one at which the command stays for a while. */
#define RARELY		400
/* The longest stay in milliseconds, and at a call that changes the kernel. */
#define SHORT_STAY	40
#define LONG_STAY	800

enum kind { APPLY, APPLY_FLIPPED, CYCLES, UNDO, STATUS, KINDS };

static const char *const kind_names[] = { "apply", "apply, flipped", "apply --cycles", "undo",
	"status" };
static _Atomic unsigned int results[KINDS][4], kills[KINDS];
static _Atomic unsigned int stays;

/* Small ones, whose copies can stand in for each other's. */
static const char *const functions[] = { "cmdline_proc_show", "version_proc_show",
	"uptime_proc_show", "loadavg_proc_show", "proc_pid_statm", "vfs_read,vfs_write",
	"core_sys_select,cmdline_proc_show" };

static void words_of(const char **words, enum kind kind, const char *function, char *seed)
{
	unsigned int n = 0;

	words[n++] = "/kl/kernlane";
	words[n++] = "live";
	words[n++] = kind == UNDO ? "undo" : kind == STATUS ? "status" : "apply";
	if (kind <= CYCLES) {
		words[n++] = "--vmlinux";
		words[n++] = kind == APPLY_FLIPPED ? FLIPPED : "/kl/vmlinux";
		words[n++] = "--function";
		words[n++] = function;
		words[n++] = "--algorithm=random";
		words[n++] = seed;
	}
	if (kind == CYCLES)
		words[n++] = "--cycles=2";
	if (kind == UNDO)
		words[n++] = "--wait=0";
	words[n] = NULL;
}

static pid_t start(const char **words, const char *output)
{
	pid_t process = fork();

	if (process)
		return process;
	ptrace(PTRACE_TRACEME, 0, 0, 0);
	dup2(open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
	dup2(1, 2);
	raise(SIGSTOP);
	execv(words[0], (char **)words);
	_exit(127);
}

/* Whether the call at which the command stands changes the kernel, or guards that. */
static bool is_weighty(pid_t process)
{
	struct __ptrace_syscall_info call;
	static __thread uint64_t number;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, process, sizeof(call), &call) < 0)
		return false;
	if (call.op == PTRACE_SYSCALL_INFO_ENTRY)
		number = call.entry.nr;
	return number == SYS_init_module || number == SYS_delete_module || number == SYS_ioctl ||
	       number == SYS_flock;
}

/* Leads a command through its system calls; gives what waitpid() says of its end. */
static int lead(pid_t process, enum kind kind, bool kills_it)
{
	bool killed = false;
	int status;

	for (;;) {
		int received = 0;

		if (waitpid(process, &status, __WALL) < 0)
			return -1;
		if (WIFEXITED(status) || WIFSIGNALED(status))
			return status;
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			bool weighty = is_weighty(process);

			if (!stop && (weighty ? one_in(2) : one_in(RARELY))) {
				stays++;
				pause_ms(below(weighty ? LONG_STAY : SHORT_STAY));
				killed = kills_it && weighty && one_in(6);
			}
			if (killed || stop) {
				kills[kind]++;
				kill(process, SIGKILL);
			}
		} else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) {
			received = WSTOPSIG(status);
		}
		ptrace(PTRACE_SYSCALL, process, 0, received);
	}
}

static void complain(const char *output, enum kind kind, int status)
{
	char *said = read_file(output, NULL);

	failed("kernlane live %s ended with %x: %s", kind_names[kind], status, said ?: "");
	free(said);
}

static enum kind any_command(void)
{
	switch (below(10)) {
	case 0:
	case 1:
		return UNDO;
	case 2:
		return STATUS;
	case 3:
	case 4:
		return CYCLES;
	case 5:
	case 6:
		return APPLY_FLIPPED;
	default:
		return APPLY;
	}
}

static void run_command(const char *output)
{
	const char *words[MOST_WORDS], *function = functions[below(COUNT(functions))];
	enum kind kind = any_command();
	char seed[32];
	struct flip flip;
	pid_t process;
	int status;

	if (kind == APPLY_FLIPPED && !flip_take(&flip, &function))
		kind = APPLY;
	snprintf(seed, sizeof(seed), "--seed=%u", below(1000));
	words_of(words, kind, function, seed);
	note("command %s %s", kind_names[kind], kind <= CYCLES ? function : "");
	process = start(words, output);
	waitpid(process, &status, __WALL);
	ptrace(PTRACE_SETOPTIONS, process, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
	ptrace(PTRACE_SYSCALL, process, 0, 0);
	status = lead(process, kind, one_in(4));
	if (kind == APPLY_FLIPPED)
		flip_give(&flip);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return;
	if (!WIFEXITED(status) || WEXITSTATUS(status) > 2 ||
	    (WEXITSTATUS(status) == 1 && kind != UNDO)) {
		complain(output, kind, status);
		return;
	}
	results[kind][WEXITSTATUS(status)]++;
}

void *command(void *seed)
{
	char output[32];

	snprintf(output, sizeof(output), "/tmp/command-%d", gettid());
	draw_seed(*(uint64_t *)seed);
	while (!stop)
		run_command(output);
	unlink(output);
	return NULL;
}

bool commands_missing(void)
{
	bool installed = results[APPLY][0] || results[CYCLES][0];

	return !installed || !(results[UNDO][0] || results[UNDO][1]);
}

void commands_report(void)
{
	unsigned int n;

	for (n = 0; n < KINDS; n++)
		printf("%-18s status 0 %u, status 1 %u, status 2 %u, killed %u\n", kind_names[n],
		       results[n][0], results[n][1], results[n][2], kills[n]);
	printf("commands           stopped %u times\n", stays);
	if (commands_missing())
		failed("commands install and undo");
}
