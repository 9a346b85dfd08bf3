/*
 * Allocations and copies from and to user space that fail on purpose
 * (Documentation/fault-injection/fault-injection.rst): one of them, or many.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

#define DEBUGFS "/sys/kernel/debug"
/* A request of an hour's fuzzing has made no more allocations than that. */
#define MOST_CALLS 80
/* In percent, of the allocations of a thread for which many fail. */
#define MANY "20"

static bool exist;
static __thread int nth_file = -1, many_file = -1;
/* The n-th fails; many do; 0 for none. */
static __thread unsigned int nth;
static __thread bool many;
static __thread bool begun;

static void set(const char *what, const char *name, const char *value)
{
	char path[128];
	int err;

	snprintf(path, sizeof(path), DEBUGFS "/%s/%s", what, name);
	err = write_file(path, value);
	if (err && err != -ENOENT)
		failed("%s: %s", path, strerror(-err));
}

void faults_prepare(void)
{
	static const char *const kinds[] = { "failslab", "fail_page_alloc", "fail_usercopy" };
	unsigned int n;

	exist = !access("/proc/self/fail-nth", F_OK);
	if (!exist)
		return;
	for (n = 0; n < COUNT(kinds); n++) {
		set(kinds[n], "task-filter", "Y");
		set(kinds[n], "ignore-gfp-wait", "N");
		set(kinds[n], "ignore-gfp-highmem", "N");
		set(kinds[n], "min-order", "0");
		set(kinds[n], "times", "-1");
		set(kinds[n], "verbose", "0");
		set(kinds[n], "probability", MANY);
	}
}

bool faults_exist(void)
{
	return exist;
}

void faults_draw(void)
{
	nth = 0;
	many = false;
	if (!exist || !one_in(3))
		return;
	if (one_in(4))
		many = true;
	else
		nth = 1 + below(one_in(2) ? 8 : MOST_CALLS);
}

const char *faults_name(void)
{
	static __thread char text[32];

	if (!nth && !many)
		return "";
	snprintf(text, sizeof(text), many ? " many-fail" : " fails-at %u", nth);
	return text;
}

static int open_own(const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%d/%s", gettid(), name);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* The write may fail, too, while some still are to. */
static void put(int file, const char *text)
{
	unsigned int left = 1000;

	while (pwrite(file, text, strlen(text), 0) < 0 && --left)
		;
	if (!left)
		failed("fault injection cannot be set: %s", strerror(errno));
}

/* A signal whose frame cannot be copied to the stack kills the process. */
static void hold_signals(int how)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	pthread_sigmask(how, &signals, NULL);
}

void faults_begin(void)
{
	char text[16];

	if (!nth && !many)
		return;
	hold_signals(SIG_BLOCK);

	if (nth_file < 0) {
		nth_file = open_own("fail-nth");
		many_file = open_own("make-it-fail");
	}
	begun = true;
	if (many)
		put(many_file, "1");
	if (!nth)
		return;
	snprintf(text, sizeof(text), "%u", nth);
	put(nth_file, text);
}

void faults_end(void)
{
	if (begun && many)
		put(many_file, "0");
	if (begun && nth)
		put(nth_file, "0");
	if (begun)
		hold_signals(SIG_UNBLOCK);
	nth = 0;
	many = false;
	begun = false;
}
