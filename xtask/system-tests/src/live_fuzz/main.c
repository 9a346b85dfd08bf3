/*
 * fuzz capture DIRECTORY COMMAND…
 *	runs `kernlane live` and keeps the groups that it installs.
 * fuzz run DIRECTORY SEED SECONDS
 *	sends requests to /dev/kernlane: valid ones made of the kept groups, mutated and random ones.
 *	Prints how many had which result, and a line `passed: …` or `FAILED: …` for each thing that
 *	must hold in the end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

/* How long a thread may take to end, and all groups to go: an undo waits five seconds at a time. */
#define PATIENCE_SECONDS 240
/* The seconds that are spent on using everything once. */
#define WARM_PART	6
#define LONGER		20

static const struct role {
	const char *name;
	void *(*run)(void *seed);
	unsigned int threads;
} roles[] = {
	{ "asker", ask, ASKERS },
	{ "disturber", disturb, 1 },
	{ "prober", probe, 1 },
	{ "patcher", patch, 1 },
	{ "load", load, 2 },
	{ "sleeper", sleep_in_pipes, 1 },
	{ "commander", command, 2 },
	{ "attacher", attach, 1 },
	{ "switcher", switch_processors, 1 },
};

#define MOST_THREADS 16

static struct thread {
	pthread_t thread;
	const char *name;
	uint64_t seed;
} threads[MOST_THREADS];

static void show_stacks(void)
{
	char command[] = "for task in /proc/[0-9]*/task/*; do echo \"$(sed -n '1p;3p' $task/status | "
			 "tr '\\n' ' ')\"; cat $task/stack; done";

	fflush(stdout);
	if (system(command))
		printf("no stacks\n");
}

static void join(struct thread *thread)
{
	struct timespec end;
	static bool shown;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += PATIENCE_SECONDS;
	if (!pthread_timedjoin_np(thread->thread, NULL, &end))
		return;
	failed("a thread is stuck: %s", thread->name);
	if (!shown)
		show_stacks();
	shown = true;
}

static bool something_missing(void)
{
	return ask_missing() || others_missing() || commands_missing() || neighbours_missing();
}

/*
 * Everything at once for @seconds, and then nothing; on a slow machine for longer, until every kind
 * has been seen to succeed.
 */
static void run(uint64_t seed, unsigned int seconds)
{
	uint64_t begin = now_ms(), end = begin + 1000ull * seconds, next = begin + 60000;
	unsigned int role, n, nr = 0;

	stop = false;
	for (role = 0; role < COUNT(roles); role++)
		for (n = 0; n < roles[role].threads; n++) {
			struct thread *thread = &threads[nr];

			/* Askers have the first numbers, which tell them which they are. */
			thread->seed = seed * MOST_THREADS + nr++;
			thread->name = roles[role].name;
			pthread_create(&thread->thread, NULL, roles[role].run, &thread->seed);
		}
	while (now_ms() < end ||
	       (something_missing() && now_ms() < begin + LONGER * (end - begin))) {
		pause_ms(500);
		if (now_ms() < next)
			continue;
		next += 60000;
		printf("%llu requests in %llu s%s%s%s%s\n", (unsigned long long)ask_count(),
		       (unsigned long long)(now_ms() - begin) / 1000,
		       ask_missing() ? ", still missing: " : "", ask_missing() ?: "",
		       commands_missing() ? ", no command has installed and undone" : "",
		       neighbours_missing() ? ", no BPF program or processor has come" : "");
		fflush(stdout);
	}
	stop = true;
	for (n = 0; n < nr; n++)
		join(&threads[n]);
}

/* The number at the end of a group's line. */
static void read_number(uint8_t *number, const char *line)
{
	const char *digits = strstr(line, " number ");
	unsigned int n;

	for (n = 0; digits && n < KERNLANE_NUMBER; n++)
		sscanf(digits + 8 + 2 * n, "%2hhx", &number[n]);
}

/* Asks until the device tells of no group any more. */
static void undo_all(void)
{
	uint64_t end = now_ms() + 1000ull * PATIENCE_SECONDS;

	for (;;) {
		struct kernlane_group group = {};
		char *text = read_file("/dev/kernlane", NULL), *line;
		int file, err;

		line = text ? strstr(text, "\ngroup ") : NULL;
		if (!text || !line) {
			free(text);
			return;
		}
		sscanf(line, "\ngroup %55s", group.module);
		read_number(group.number, line);
		file = open("/dev/kernlane", O_RDWR | O_CLOEXEC);
		err = syscall(SYS_ioctl, file, KERNLANE_UNDO, &group) ? errno : 0;
		close(file);
		free(text);
		if (now_ms() > end) {
			failed("the group %s stays: %s, at %s", group.module, strerror(err),
			       place(group.bad_address));
			return;
		}
	}
}

static void remove_module(const char *name)
{
	int err = 0, left = 100;

	while (syscall(SYS_delete_module, name, O_NONBLOCK) && left--) {
		err = errno;
		if (err == ENOENT)
			return;
		pause_ms(100);
	}
	if (left < 0)
		failed("the module %s cannot be removed: %s", name, strerror(err));
}

static void everything_goes(void)
{
	char *modules, *line, name[KERNLANE_NAME];

	others_go();
	neighbours_go();
	undo_all();
	modules = read_file("/proc/modules", NULL);
	for (line = modules; line && *line; line = strchrnul(line, '\n') + 1) {
		if (sscanf(line, "kernlane_%40s", name) == 1) {
			sscanf(line, "%55s", name);
			remove_module(name);
		}
		if (!strchr(line, '\n'))
			break;
	}
	free(modules);
}

static void report(uint64_t seed, unsigned int seconds)
{
	size_t differing = text_compare();

	if (differing)
		failed("the text is what it was: %zu bytes differ", differing);
	else
		passed("the text is what it was");
	printf("seed %llu, %u seconds, %llu requests, memory %s\n", (unsigned long long)seed, seconds,
	       (unsigned long long)ask_count(), faults_exist() ? "that fails" : "that does not fail");
	ask_report();
	others_report();
	commands_report();
	flips_report();
	neighbours_report();
	load_report();
	/* It cannot go while something has kept it, for ever. */
	ask_end();
	remove_module("kernlane");
	if (!failures)
		passed("everything was tried, and everything has gone");
}

int main(int count, char **words)
{
	uint64_t seed;
	unsigned int seconds;

	if (count >= 4 && !strcmp(words[1], "capture"))
		return capture(words[2], words + 3);
	if (count != 5 || strcmp(words[1], "run")) {
		printf("FAILED: fuzz: see the source\n");
		return 2;
	}
	seed = strtoull(words[3], NULL, 10);
	seconds = strtoul(words[4], NULL, 10);
	notes_open();
	/* Reads the symbols before there are threads. */
	note("text at %llx", (unsigned long long)symbol("_stext"));
	faults_prepare();
	slots_read(words[2]);
	ask_prepare();
	flips_prepare();
	load_prepare();
	/* Static keys flip when something is used for the first time: the text stands still later. */
	run(~seed, seconds / WARM_PART + 5);
	everything_goes();
	text_remember();
	ask_forget();
	note("begin");
	run(seed, seconds);
	everything_goes();
	report(seed, seconds);
	return 0;
}
