/*
 * What else changes or reads the kernel's text, and comes and goes: kprobes, the function tracers,
 * tracepoints, static keys, a livepatch.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fuzz.h"

#define TRACING		"/sys/kernel/tracing/"
#define LIVEPATCH	"/sys/kernel/livepatch/overrule/"
#define PROBES		6

static struct {
	bool there;
	bool armed;
} probes[PROBES];

static _Atomic unsigned int probes_taken, probes_refused, traced, patched, patch_refused;

/* Lets the livepatch and what it is waited for come to an end. */
static bool await_gone(const char *path, unsigned int seconds)
{
	uint64_t end = now_ms() + 1000ull * seconds;

	while (!access(path, F_OK)) {
		if (now_ms() > end)
			return false;
		pause_ms(50);
	}
	return true;
}

static uint64_t probe_address(void)
{
	const struct slot *slot = &slots[below(nr_slots)];
	const struct kernlane_function *function = &slot->functions[below(slot->nr_functions)];

	switch (below(7)) {
	case 0:
		return function->entry;
	case 1:
	case 2:
		return function->entry + function->patch_at;
	case 3:
		return function->entry + function->patch_at + KERNLANE_JUMP;
	case 4:
		return slot_now(slot, function->copy);
	case 5:
		if (slot->nr_calls)
			return slot_now(slot, slot->calls[below(slot->nr_calls)].site);
		/* Fallthrough. */
	default:
		return function->entry + below(128);
	}
}

static int tell(const char *file, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), TRACING "%s", file);
	return write_file(path, text);
}

static int arm(unsigned int n, bool on)
{
	char file[64];

	snprintf(file, sizeof(file), "events/kprobes/fuzz%u/enable", n);
	return tell(file, on ? "1" : "0");
}

static void add_or_remove(unsigned int n)
{
	uint64_t address = probe_address();
	/* Only what is appended leaves the others alone. */
	int file = open(TRACING "kprobe_events", O_WRONLY | O_APPEND | O_CLOEXEC);
	char text[64];
	int length;

	if (file < 0)
		return;
	if (probes[n].there)
		length = snprintf(text, sizeof(text), "-:fuzz%u", n);
	else
		length = snprintf(text, sizeof(text), "p:fuzz%u 0x%llx", n,
				  (unsigned long long)address);
	note("probe %s", text);
	if (probes[n].armed)
		arm(n, false);
	probes[n].armed = false;
	if (write(file, text, length) == length) {
		probes[n].there = !probes[n].there;
		probes_taken += probes[n].there;
	} else {
		probes_refused++;
	}
	close(file);
}

static void change_probe(void)
{
	unsigned int n = below(PROBES);

	if (probes[n].there && one_in(2)) {
		note("probe fuzz%u %s", n, probes[n].armed ? "disarmed" : "armed");
		if (!arm(n, !probes[n].armed))
			probes[n].armed = !probes[n].armed;
	} else {
		add_or_remove(n);
	}
}

static void trace_something(void)
{
	const struct slot *slot = &slots[below(nr_slots)];
	const char *tracer = one_in(3) ? "function_graph" : "function";
	char name[128];
	unsigned int n;

	if (one_in(2)) {
		note("tracer off");
		tell("current_tracer", "nop");
		tell("set_ftrace_filter", "");
		return;
	}
	for (n = below(4) + 1; n; n--) {
		int file = open(TRACING "set_ftrace_filter", O_WRONLY | O_APPEND | O_CLOEXEC);

		snprintf(name, sizeof(name), "%s",
			 place(slot->functions[below(slot->nr_functions)].entry));
		*strchr(name, '+') = 0;
		if (file >= 0 && write(file, name, strlen(name)) > 0)
			traced++;
		close(file);
	}
	note("tracer %s on, of %s", tracer, name);
	tell("current_tracer", tracer);
}

static void switch_something(void)
{
	static const char *const switches[] = { TRACING "events/kmem/enable",
		TRACING "events/sched/sched_switch/enable", TRACING "events/raw_syscalls/enable",
		"/proc/sys/kernel/sched_schedstats", "/proc/sys/debug/kprobes-optimization" };
	unsigned int n = below(COUNT(switches));
	bool on = one_in(2);

	note("switch %s %u", switches[n], on);
	write_file(switches[n], on ? "1" : "0");
}

/* For a moment: nothing is installed meanwhile. Refused while functions are measured. */
static void switch_tracer_off(void)
{
	static const char enabled[] = "/proc/sys/kernel/ftrace_enabled";

	if (pthread_mutex_trylock(&program_mutex))
		return;
	note("tracer off");
	write_file(enabled, "0");
	usleep(below(3000));
	write_file(enabled, "1");
	pthread_mutex_unlock(&program_mutex);
}

void *probe(void *seed)
{
	draw_seed(*(uint64_t *)seed);
	while (!stop) {
		switch (below(8)) {
		case 0:
			trace_something();
			break;
		case 1:
			switch_something();
			break;
		case 2:
			switch_tracer_off();
			break;
		default:
			change_probe();
		}
		pause_ms(below(120));
		if (one_in(40))
			write_file(TRACING "trace", "");
	}
	return NULL;
}

static bool overruled(void)
{
	char *text = read_file("/proc/cmdline", NULL);
	bool found = text && !strncmp(text, "overruled", 9);

	free(text);
	return found;
}

static bool in_transition(void)
{
	char *text = read_file(LIVEPATCH "transition", NULL);
	bool found = text && *text == '1';

	free(text);
	return found;
}

static void await_transition(void)
{
	uint64_t end = now_ms() + 120000;

	while (in_transition() && now_ms() < end)
		pause_ms(50);
	if (in_transition())
		failed("the livepatch's transition does not end");
}

static void leave_patch(void)
{
	uint64_t end = now_ms() + 120000;

	write_file(LIVEPATCH "enabled", "0");
	if (!await_gone(LIVEPATCH, 120))
		failed("the livepatch stays");
	while (syscall(SYS_delete_module, "overrule", O_NONBLOCK)) {
		if (now_ms() > end) {
			failed("the livepatch's module stays: %s", strerror(errno));
			return;
		}
		pause_ms(50);
	}
}

void *patch(void *seed)
{
	size_t size;
	void *module = read_file("/kl/overrule.ko", &size);
	char options[32];

	draw_seed(*(uint64_t *)seed);
	while (!stop) {
		pause_ms(500 + below(12000));
		snprintf(options, sizeof(options), "delay=%u", below(400));
		note("livepatch comes, %s", options);
		if (syscall(SYS_init_module, module, size, options)) {
			note("livepatch refused: %s", strerror(errno));
			patch_refused++;
			continue;
		}
		patched++;
		await_transition();
		if (!overruled())
			failed("a livepatch is there, and does not win");
		pause_ms(below(800));
		note("livepatch goes");
		leave_patch();
		if (overruled())
			failed("the livepatch has gone, and changes something");
	}
	free(module);
	return NULL;
}

void others_go(void)
{
	unsigned int n;

	for (n = 0; n < PROBES; n++)
		if (probes[n].there)
			add_or_remove(n);
	for (n = 0; n < PROBES; n++)
		if (probes[n].there)
			failed("kprobe %u stays", n);
	write_file("/proc/sys/debug/kprobes-optimization", "1");
	write_file("/proc/sys/kernel/sched_schedstats", "0");
	tell("events/enable", "0");
	tell("current_tracer", "nop");
	tell("set_ftrace_filter", "");
	tell("trace", "");
}

bool others_missing(void)
{
	return !probes_taken || !traced || !patched;
}

void others_report(void)
{
	printf("kprobes            %u registered, %u refused\n", probes_taken, probes_refused);
	printf("tracer             %u functions traced\n", traced);
	printf("livepatch          came %u times, refused %u times\n", patched, patch_refused);
	if (others_missing())
		failed("kprobes, tracers and livepatches come and go");
}
