/*
 * Runs `kernlane live`, and writes down the modules that it loads and the groups that it installs:
 * DIRECTORY/N.ko and DIRECTORY/N.group for the N-th of all captures, and DIRECTORY/N.counters for
 * one whose counters it reads. Nothing is changed on the way.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuzz.h"

static const char *directory;
static unsigned int number;

static void *read_memory(pid_t task, uint64_t from, size_t size)
{
	void *bytes = malloc(size + 1);
	char path[32];
	int memory;

	snprintf(path, sizeof(path), "/proc/%d/mem", task);
	memory = open(path, O_RDONLY | O_CLOEXEC);
	if (memory < 0 || pread(memory, bytes, size, from) != (ssize_t)size) {
		perror("the memory of the captured command");
		exit(1);
	}
	close(memory);
	return bytes;
}

static int create(const char *suffix)
{
	char path[256];
	int file;

	snprintf(path, sizeof(path), "%s/%u.%s", directory, number, suffix);
	file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (file < 0) {
		perror(path);
		exit(1);
	}
	return file;
}

static void put(int file, const void *bytes, size_t size)
{
	if (write(file, bytes, size) != (ssize_t)size) {
		perror("a captured group");
		exit(1);
	}
}

static void keep_module(pid_t task, uint64_t bytes, uint64_t size)
{
	void *module = read_memory(task, bytes, size);
	int file = create("ko");

	put(file, module, size);
	close(file);
	free(module);
}

static void keep_group(pid_t task, uint64_t from)
{
	struct kernlane_group *group = read_memory(task, from, sizeof(*group));
	size_t functions = group->nr_functions * sizeof(struct kernlane_function);
	size_t calls = group->nr_calls * sizeof(struct kernlane_call);
	char path[128], *text;
	uint64_t base;
	int file;

	snprintf(path, sizeof(path), "/sys/module/%s/sections/.text", group->module);
	text = read_file(path, NULL);
	if (!text) {
		perror(path);
		exit(1);
	}
	base = strtoull(text, NULL, 16);
	file = create("group");
	put(file, group, sizeof(*group));
	put(file, &base, sizeof(base));
	put(file, read_memory(task, group->functions, functions), functions);
	put(file, read_memory(task, group->calls, calls), calls);
	close(file);
	number++;
}

/* The group that was installed last has counters. */
static void mark_counters(void)
{
	number--;
	close(create("counters"));
	number++;
}

static void look(pid_t task)
{
	struct __ptrace_syscall_info call;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, task, sizeof(call), &call) < 0 ||
	    call.op != PTRACE_SYSCALL_INFO_ENTRY)
		return;
	if (call.entry.nr == SYS_init_module)
		keep_module(task, call.entry.args[0], call.entry.args[1]);
	else if (call.entry.nr == SYS_ioctl && call.entry.args[1] == KERNLANE_INSTALL)
		keep_group(task, call.entry.args[2]);
	else if (call.entry.nr == SYS_ioctl && call.entry.args[1] == KERNLANE_COUNTERS)
		mark_counters();
}

static void find_number(void)
{
	char path[256];

	do
		snprintf(path, sizeof(path), "%s/%u.group", directory, number);
	while (!access(path, F_OK) && ++number);
}

int capture(const char *into, char **command)
{
	pid_t child;
	int status;

	directory = into;
	find_number();
	child = fork();
	if (!child) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		execvp(command[0], command);
		_exit(127);
	}
	waitpid(child, &status, 0);
	ptrace(PTRACE_SETOPTIONS, child, 0,
	       PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
	ptrace(PTRACE_SYSCALL, child, 0, 0);
	for (;;) {
		pid_t task = waitpid(-1, &status, __WALL);
		int received = 0;

		if (task < 0)
			return 1;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (task == child)
				return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
			continue;
		}
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			look(task);
		else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP)
			received = WSTOPSIG(status);
		ptrace(PTRACE_SYSCALL, task, 0, received);
	}
}
