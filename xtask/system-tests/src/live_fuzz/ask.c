/* Threads that ask /dev/kernlane for something, again and again. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuzz.h"

#define DEVICE		"/dev/kernlane"
/* Longest time that a child has before it is killed. */
#define KILLED_AFTER_US	60000
#define CHILD_STACK	16384
/* Looks at askers, two milliseconds apart, for one signal: each gets one every two seconds. */
#define SIGNALLED	250
/* What a request had as its result that was killed; errors are 1 to 133. */
#define KILLED		150
#define MOST_RESULTS	151

struct asker {
	unsigned int number;
	unsigned int asked;
	pid_t task;
	int device;
	struct arena arena;
	char *stack;
	/* What a child asks. */
	unsigned long command;
	void *argument;
	long result;
};

static struct asker askers[ASKERS];
static _Atomic bool running[ASKERS];

static uint64_t *time_entries;
static unsigned int nr_time_entries;

/* In a process of its own that shares this one's memory: no library here. */
static int child(void *data)
{
	struct asker *asker = data;
	register long number asm("rax") = SYS_ioctl;

	asm volatile("syscall"
		     : "+r"(number)
		     : "D"((long)asker->device), "S"(asker->command), "d"(asker->argument)
		     : "rcx", "r11", "memory");
	asker->result = number;
	return 0;
}

static long in_child(struct asker *asker, unsigned long command, void *argument)
{
	pid_t process;

	asker->command = command;
	asker->argument = argument;
	asker->result = -KILLED;
	process = clone(child, asker->stack + CHILD_STACK, CLONE_VM | CLONE_FILES | SIGCHLD, asker);
	if (process < 0)
		return -errno;
	usleep(below(KILLED_AFTER_US));
	kill(process, SIGKILL);
	while (waitpid(process, NULL, __WALL) < 0 && errno == EINTR)
		;
	return asker->result;
}

static long request(struct asker *asker, unsigned long command, void *argument)
{
	long err;

	faults_begin();
	err = ioctl(asker->device, command, argument) ? -errno : 0;
	faults_end();
	return err;
}

static struct slot *any_slot(void)
{
	return &slots[below(nr_slots)];
}

typedef void build_fn(struct arena *arena, const struct slot *slot);

static long install(struct asker *asker, build_fn *build, const char *kind, bool killed)
{
	struct arena *arena = &asker->arena;
	const struct kernlane_group *group = arena->group;
	struct slot *slot = any_slot();
	long err;

	pthread_rwlock_rdlock(&slot->lock);
	build(arena, slot);
	note("%u.%u install %s %s functions %u calls %u%s", asker->number, asker->asked, kind,
	     slot->name, group->nr_functions, group->nr_calls, faults_name());
	err = killed ? in_child(asker, KERNLANE_INSTALL, arena->group) :
		       request(asker, KERNLANE_INSTALL, arena->group);
	arena->flicker = NULL;
	pthread_rwlock_unlock(&slot->lock);
	return err;
}

static long install_valid(struct asker *asker)
{
	return install(asker, build_valid, "valid", false);
}

static long install_mutated(struct asker *asker)
{
	return install(asker, build_mutated, "mutated", false);
}

static long install_random(struct asker *asker)
{
	return install(asker, build_random, "random", false);
}

static long install_killed(struct asker *asker)
{
	return install(asker, build_valid, "killed", true);
}

static long undo(struct asker *asker, const char *kind, bool killed)
{
	note("%u.%u undo %s %.*s%s", asker->number, asker->asked, kind, KERNLANE_NAME - 1,
	     asker->arena.group->module, faults_name());
	return killed ? in_child(asker, KERNLANE_UNDO, asker->arena.group) :
			request(asker, KERNLANE_UNDO, asker->arena.group);
}

/* Gives the slot's name and number, which both structures begin with. */
static void name(void *request, const struct slot *slot)
{
	memcpy(request, slot->name, KERNLANE_NAME);
	memcpy(request + KERNLANE_NAME, slot->number, KERNLANE_NUMBER);
}

static long undo_valid(struct asker *asker)
{
	name(asker->arena.group, any_slot());
	return undo(asker, "valid", false);
}

static long undo_killed(struct asker *asker)
{
	name(asker->arena.group, any_slot());
	return undo(asker, "killed", true);
}

static long undo_mutated(struct asker *asker)
{
	name(asker->arena.group, any_slot());
	if (one_in(2))
		random_name(asker->arena.group->module);
	else
		memcpy(asker->arena.group->number, any_slot()->number, KERNLANE_NUMBER);
	return undo(asker, "mutated", false);
}

/* Of any group: one without counters says so. */
static long counters(struct asker *asker)
{
	struct kernlane_counters *counters = (void *)asker->arena.start;

	name(counters, one_in(4) ? any_slot() : counting_slot);
	counters->nr = 1 + below(one_in(4) ? 1000 : 8);
	counters->sums = (uintptr_t)asker->arena.functions_end - 8 * counters->nr;
	counters->reserved = 0;
	note("%u.%u counters %s %u%s", asker->number, asker->asked, counters->module, counters->nr,
	     faults_name());
	return request(asker, KERNLANE_COUNTERS, counters);
}

static long counters_mutated(struct asker *asker)
{
	struct kernlane_counters *counters = (void *)asker->arena.start;

	name(counters, any_slot());
	if (one_in(3))
		random_name(counters->module);
	counters->nr = odd_count(8, 1024);
	counters->sums = odd_pointer(&asker->arena);
	counters->reserved = one_in(2) ? draw() : 0;
	note("%u.%u counters mutated %x %llx%s", asker->number, asker->asked, counters->nr,
	     (unsigned long long)counters->sums, faults_name());
	return request(asker, KERNLANE_COUNTERS, counters);
}

static int order(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Entries, ascending and different. */
static void build_time(struct asker *asker, struct kernlane_timing *timing)
{
	uint64_t entries[64];
	uint32_t nr = 1 + below(one_in(4) ? COUNT(entries) : 4), n, kept = 0;

	for (n = 0; n < nr; n++)
		entries[n] = time_entries[below(nr_time_entries)];
	qsort(entries, nr, sizeof(*entries), order);
	for (n = 0; n < nr; n++)
		if (!n || entries[n] != entries[n - 1])
			entries[kept++] = entries[n];
	timing->nr = kept;
	timing->milliseconds = 1 + below(60);
	timing->entries = (uintptr_t)asker->arena.functions_end - 8 * kept;
	timing->times = (uintptr_t)asker->arena.calls_end - sizeof(struct kernlane_time) * kept;
	memcpy((void *)timing->entries, entries, 8 * kept);
}

static long timing(struct asker *asker)
{
	struct kernlane_timing *timing = (void *)asker->arena.start;

	build_time(asker, timing);
	note("%u.%u time %u for %u%s", asker->number, asker->asked, timing->nr,
	     timing->milliseconds, faults_name());
	return request(asker, KERNLANE_TIME, timing);
}

static long timing_mutated(struct asker *asker)
{
	struct kernlane_timing *timing = (void *)asker->arena.start;
	/* An hour, which ends when the child does. */
	bool killed = one_in(6);

	build_time(asker, timing);
	switch (below(5)) {
	case 0:
		timing->nr = odd_count(timing->nr, KERNLANE_MAX_TIMED);
		break;
	case 1:
		timing->entries = odd_pointer(&asker->arena);
		break;
	case 2:
		timing->times = odd_pointer(&asker->arena);
		break;
	case 3:
		((uint64_t *)timing->entries)[below(timing->nr)] = odd_address(any_slot());
		break;
	default:
		timing->milliseconds = one_in(2) ? 0 : KERNLANE_MAX_MILLISECONDS + 1 + below(9);
	}
	if (killed)
		timing->milliseconds = KERNLANE_MAX_MILLISECONDS;
	note("%u.%u time mutated %x at %llx for %u%s", asker->number, asker->asked, timing->nr,
	     (unsigned long long)timing->entries, timing->milliseconds, faults_name());
	return killed ? in_child(asker, KERNLANE_TIME, timing) :
			request(asker, KERNLANE_TIME, timing);
}

/* In pieces of any size, from any place; also through files that are closed in between. */
static long status(struct asker *asker)
{
	char bytes[4096];
	int file = open(DEVICE, O_RDONLY | O_CLOEXEC);
	uint32_t left = 1 + below(6);
	long err = 0;

	if (file < 0)
		return -errno;
	note("%u.%u status%s", asker->number, asker->asked, faults_name());
	faults_begin();
	while (left-- && !err) {
		ssize_t got;

		if (one_in(4))
			lseek(file, below(5000), SEEK_SET);
		got = one_in(4) ? pread(file, bytes, 1 + below(sizeof(bytes)), below(9000)) :
				  read(file, bytes, 1 + below(sizeof(bytes)));
		if (got < 0)
			err = -errno;
	}
	faults_end();
	close(file);
	return err;
}

/* Commands that there are not, and what no program does with the device. */
static long other(struct asker *asker)
{
	static const unsigned long commands[] = { KERNLANE_INSTALL, KERNLANE_UNDO, KERNLANE_COUNTERS,
		KERNLANE_TIME, KERNLANE_LARGE_TEXT, KERNLANE_HOLD };
	unsigned long command = commands[below(COUNT(commands))];
	uint64_t pointer = odd_pointer(&asker->arena);
	void *mapped;

	note("%u.%u other %lx %llx%s", asker->number, asker->asked, command,
	     (unsigned long long)pointer, faults_name());
	switch (below(4)) {
	case 0:
		return write(asker->device, asker->arena.start, below(100)) < 0 ? -errno : 0;
	case 1:
		mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, asker->device, 0);
		if (mapped != MAP_FAILED)
			munmap(mapped, 4096);
		return mapped == MAP_FAILED ? -errno : 0;
	case 2:
		/* Never one that there is: what lies at the pointer is not disarmed. */
		command ^= 1ul << (16 + below(16));
		return request(asker, command, (void *)pointer);
	default:
		if (pointer - (uintptr_t)asker->arena.start < asker->arena.size)
			pointer = 0;
		return request(asker, command, (void *)pointer);
	}
}

static long unload(struct asker *asker)
{
	struct slot *slot = any_slot();

	note("%u.%u unload %s%s", asker->number, asker->asked, slot->name, faults_name());
	return slot_unload(slot);
}

/* For a while modules that this task loads are placed, or until it dies, or others say no. */
static long place_text(struct asker *asker)
{
	unsigned long on = one_in(8) ? below(1000) : below(2);
	bool killed = one_in(8);

	note("%u.%u place %lu%s%s", asker->number, asker->asked, on, killed ? " killed" : "",
	     faults_name());
	return killed ? in_child(asker, KERNLANE_LARGE_TEXT, (void *)on) :
			request(asker, KERNLANE_LARGE_TEXT, (void *)on);
}

/* Where the kernel put a module's code, or 0. */
static uint64_t text_of(const char *module)
{
	char path[128], text[32] = "";
	int file;

	snprintf(path, sizeof(path), "/sys/module/%s/sections/.text", module);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return 0;
	if (read(file, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(file);
	return strtoull(text, NULL, 16);
}

/* Until the file is closed; that of the thread stays open. */
static long hold(struct asker *asker, const char *module, uint64_t text)
{
	struct kernlane_hold *hold = (void *)asker->arena.start;
	long result;
	int file = -1;

	snprintf(hold->module, sizeof(hold->module), "%s", module);
	hold->text = text;
	note("%u.%u hold %s %llx%s", asker->number, asker->asked, module,
	     (unsigned long long)text, faults_name());
	if (one_in(8))
		return request(asker, KERNLANE_HOLD, hold);
	file = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (file < 0)
		return -errno;
	faults_begin();
	result = ioctl(file, KERNLANE_HOLD, hold) ? -errno : 0;
	faults_end();
	if (one_in(4))
		usleep(below(20000));
	close(file);
	return result;
}

static long hold_valid(struct asker *asker)
{
	return hold(asker, "loop", text_of("loop"));
}

/* Modules that nobody may hold, or that come and go; and addresses of others. */
static long hold_mutated(struct asker *asker)
{
	const char *names[] = { "loop", "kernlane", "overrule", any_slot()->name, "" };
	const char *module = names[below(COUNT(names))];
	uint64_t text = text_of(names[below(COUNT(names))]);

	switch (below(4)) {
	case 0:
		text = time_entries[below(nr_time_entries)];
		break;
	case 1:
		text += below(1 << 16) - (1 << 15);
		break;
	case 2:
		text = draw();
		break;
	}
	return hold(asker, module, text);
}

static long load_module(struct asker *asker)
{
	struct slot *slot = any_slot();

	note("%u.%u load %s", asker->number, asker->asked, slot->name);
	return slot_load(slot);
}

static struct kind {
	const char *name;
	unsigned int weight;
	long (*ask)(struct asker *asker);
	/* A fuzzer that never sees it succeed tests nothing. */
	bool must_succeed;
	_Atomic unsigned int results[MOST_RESULTS];
} kinds[] = {
	{ "install, valid", 30, install_valid, true },
	{ "install, mutated", 36, install_mutated },
	{ "install, random", 12, install_random },
	{ "install, killed", 6, install_killed },
	{ "undo, valid", 16, undo_valid, true },
	{ "undo, mutated", 6, undo_mutated },
	{ "undo, killed", 3, undo_killed },
	{ "counters, valid", 8, counters, true },
	{ "counters, mutated", 8, counters_mutated },
	{ "time, valid", 2, timing, true },
	{ "time, mutated", 6, timing_mutated },
	{ "status", 10, status, true },
	{ "place", 6, place_text, true },
	{ "hold, valid", 6, hold_valid },
	{ "hold, mutated", 8, hold_mutated },
	{ "other", 8, other },
	{ "module unloaded", 4, unload, true },
	{ "module loaded", 14, load_module, true },
};

static struct kind *any_kind(void)
{
	unsigned int sum = 0, n;
	uint32_t at;

	for (n = 0; n < COUNT(kinds); n++)
		sum += kinds[n].weight;
	at = below(sum);
	for (n = 0; at >= kinds[n].weight; n++)
		at -= kinds[n].weight;
	return &kinds[n];
}

static void nothing(int signal)
{
}

void ask_prepare(void)
{
	/* System calls that it interrupts are not begun again. */
	struct sigaction action = { .sa_handler = nothing };
	unsigned int n, m;

	sigaction(SIGUSR1, &action, NULL);
	for (n = 0; n < nr_slots; n++)
		nr_time_entries += slots[n].nr_functions;
	time_entries = malloc(nr_time_entries * sizeof(*time_entries));
	nr_time_entries = 0;
	for (n = 0; n < nr_slots; n++)
		for (m = 0; m < slots[n].nr_functions; m++)
			time_entries[nr_time_entries++] = slots[n].functions[m].entry;
	for (n = 0; n < ASKERS; n++) {
		askers[n].number = n;
		arena_make(&askers[n].arena, n);
		askers[n].stack = malloc(CHILD_STACK);
		askers[n].device = open(DEVICE, O_RDWR | O_CLOEXEC);
		if (askers[n].device < 0) {
			failed("%s: %s", DEVICE, strerror(errno));
			exit(1);
		}
	}
}

/* @argument points to a seed; the number of the asker is in its lowest bits. */
void *ask(void *argument)
{
	uint64_t seed = *(uint64_t *)argument;
	struct asker *asker = &askers[seed % ASKERS];

	draw_seed(seed);
	asker->task = gettid();
	running[asker->number] = true;
	while (!stop) {
		struct kind *kind = any_kind();
		long result;

		asker->asked++;
		faults_draw();
		result = kind->ask(asker);
		/* What was drawn, and not used. */
		faults_end();
		kind->results[-result < MOST_RESULTS ? -result : MOST_RESULTS - 1]++;
	}
	running[asker->number] = false;
	/* What it asked for lasts while its file is open. */
	if (ioctl(asker->device, KERNLANE_LARGE_TEXT, 0))
		failed("placing cannot be ended: %s", strerror(errno));
	return NULL;
}

void *disturb(void *seed)
{
	draw_seed(*(uint64_t *)seed);
	while (!stop) {
		unsigned int n = below(ASKERS);
		uint64_t *word = askers[n].arena.flicker;

		if (running[n] && one_in(SIGNALLED))
			syscall(SYS_tgkill, getpid(), askers[n].task, SIGUSR1);
		if (word)
			__atomic_fetch_xor(word, askers[n].arena.flicker_by, __ATOMIC_RELAXED);
		usleep(word ? 0 : 2000);
	}
	return NULL;
}

void ask_end(void)
{
	unsigned int n;

	for (n = 0; n < ASKERS; n++)
		close(askers[n].device);
}

uint64_t ask_count(void)
{
	uint64_t sum = 0;
	unsigned int n;

	for (n = 0; n < ASKERS; n++)
		sum += askers[n].asked;
	return sum;
}

void ask_forget(void)
{
	unsigned int n, m;

	for (n = 0; n < ASKERS; n++)
		askers[n].asked = 0;
	for (n = 0; n < COUNT(kinds); n++)
		for (m = 0; m < MOST_RESULTS; m++)
			kinds[n].results[m] = 0;
}

const char *ask_missing(void)
{
	unsigned int n;

	for (n = 0; n < COUNT(kinds); n++)
		if (kinds[n].must_succeed && !kinds[n].results[0])
			return kinds[n].name;
	return NULL;
}

void ask_report(void)
{
	unsigned int n, m;

	for (n = 0; n < COUNT(kinds); n++) {
		unsigned int sum = 0;

		for (m = 0; m < MOST_RESULTS; m++)
			sum += kinds[n].results[m];
		printf("%-18s %7u:", kinds[n].name, sum);
		for (m = 0; m < MOST_RESULTS; m++)
			if (kinds[n].results[m])
				printf(" %s %u", !m ? "done" : m == KILLED ? "killed" :
				       strerrorname_np(m) ?: "?", kinds[n].results[m]);
		printf("\n");
	}
	if (ask_missing())
		failed("of the requests \"%s\" none succeeded", ask_missing());
	fflush(stdout);
}
