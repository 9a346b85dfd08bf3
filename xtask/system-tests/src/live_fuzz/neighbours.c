/* BPF programs that are attached to functions, and processors that are switched off and on. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuzz.h"

#define ONLINE	"/sys/devices/system/cpu/cpu1/online"
#define TYPES	"/sys/kernel/btf/vmlinux"

static _Atomic unsigned int attached, refused, went, stayed;

pthread_mutex_t program_mutex = PTHREAD_MUTEX_INITIALIZER;

static pid_t start(const char *where, const char *function, int output)
{
	pid_t process = fork();

	if (process)
		return process;
	dup2(output, 1);
	execl("/kl/fentry", "fentry", where, function, NULL);
	_exit(127);
}

/* A program that does nothing, for a while, at a function of a group. */
static void attach_one(void)
{
	const struct slot *slot = &slots[below(nr_slots)];
	const struct kernlane_function *function = &slot->functions[below(slot->nr_functions)];
	const char *where = one_in(2) ? "entry" : "exit";
	char name[128], said[64] = "";
	int ends[2];
	pid_t process;

	symbol_at(name, sizeof(name), function->entry);
	if (pipe2(ends, O_CLOEXEC))
		return;
	pthread_mutex_lock(&program_mutex);
	note("BPF at the %s of %s", where, name);
	process = start(where, name, ends[1]);
	close(ends[1]);
	if (read(ends[0], said, sizeof(said) - 1) > 0 && !strcmp(said, "attached\n"))
		attached++;
	else
		refused++;
	pause_ms(below(2500));
	kill(process, SIGKILL);
	waitpid(process, NULL, 0);
	pthread_mutex_unlock(&program_mutex);
	close(ends[0]);
}

void *attach(void *seed)
{
	draw_seed(*(uint64_t *)seed);
	while (!stop && !access(TYPES, F_OK)) {
		attach_one();
		pause_ms(below(1500));
	}
	return NULL;
}

/* The kernel may refuse that for a moment. */
static void switch_to(const char *state)
{
	note("processor 1: %s", state);
	if (write_file(ONLINE, state))
		stayed++;
	else if (*state == '0')
		went++;
}

void *switch_processors(void *seed)
{
	draw_seed(*(uint64_t *)seed);
	while (!stop && !access(ONLINE, F_OK)) {
		pause_ms(below(6000));
		switch_to("0");
		pause_ms(below(1500));
		switch_to("1");
	}
	return NULL;
}

void neighbours_go(void)
{
	if (!access(ONLINE, F_OK) && write_file(ONLINE, "1"))
		failed("the second processor comes back");
}

bool neighbours_missing(void)
{
	return (!attached && !access(TYPES, F_OK)) || (!went && !access(ONLINE, F_OK));
}

void neighbours_report(void)
{
	printf("BPF programs       %u attached, %u refused\n", attached, refused);
	printf("processors         went %u times, refused %u times\n", went, stayed);
	if (neighbours_missing())
		failed("BPF programs and processors come and go");
}
