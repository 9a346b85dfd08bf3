/*
 * Requests to install a group: as `kernlane live` makes them, changed in places, and made up. Some
 * pair a function with the copy of another.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fuzz.h"

#define FUNCTIONS_ROOM	(KERNLANE_MAX_FUNCTIONS * sizeof(struct kernlane_function))
#define CALLS_ROOM	(KERNLANE_MAX_CALLS * sizeof(struct kernlane_call))
#define PAGE		4096ul
/* Of entries of arrays that are made up or repeated. */
#define MANY		20000

/*
 * The arenas are apart in more than one bit, so that a changed pointer does not lead from one to
 * another: a page for the group, the functions, the calls, each in front of a page without access.
 */
void arena_make(struct arena *arena, unsigned int number)
{
	void *wanted = (void *)(0x111111000000ul * (number + 1));
	size_t size = PAGE + FUNCTIONS_ROOM + CALLS_ROOM + 3 * PAGE;
	char *at = mmap(wanted, size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (at != wanted) {
		failed("no memory for requests");
		exit(1);
	}
	arena->start = at;
	arena->size = size;
	at += PAGE;
	arena->group = (struct kernlane_group *)at - 1;
	mprotect(at, PAGE, PROT_NONE);
	at += PAGE + FUNCTIONS_ROOM;
	arena->functions_end = at;
	mprotect(at, PAGE, PROT_NONE);
	at += PAGE + CALLS_ROOM;
	arena->calls_end = at;
	mprotect(at, PAGE, PROT_NONE);
}

static void place_arrays(struct arena *arena, uint32_t functions, uint32_t calls)
{
	struct kernlane_group *group = arena->group;

	arena->functions = (struct kernlane_function *)arena->functions_end - functions;
	arena->calls = (struct kernlane_call *)arena->calls_end - calls;
	group->functions = (uintptr_t)arena->functions;
	group->calls = (uintptr_t)arena->calls;
	group->nr_functions = functions;
	group->nr_calls = calls;
	group->reserved = 0;
	group->bad_address = 0;
}

/* Which of the slot's functions are taken, by their new number plus one. */
static uint32_t choose(const struct slot *slot, uint32_t *numbers)
{
	uint32_t n, taken = 0, part = one_in(3) ? 1 + below(4) : 0;

	for (n = 0; n < slot->nr_functions; n++)
		numbers[n] = !part || one_in(part) ? ++taken : 0;
	if (!taken)
		numbers[0] = taken = 1;
	return taken;
}

void build_valid(struct arena *arena, const struct slot *slot)
{
	static __thread uint32_t numbers[KERNLANE_MAX_FUNCTIONS];
	uint32_t n, functions = choose(slot, numbers), calls = 0, drop = one_in(4) ? 2 + below(5) : 0;
	static __thread struct kernlane_call taken[MANY];

	for (n = 0; n < slot->nr_calls && calls < MANY; n++) {
		const struct kernlane_call *call = &slot->calls[n];

		if (!numbers[call->function] || (drop && one_in(drop)))
			continue;
		taken[calls] = *call;
		taken[calls].site = slot_now(slot, call->site);
		taken[calls++].function = numbers[call->function] - 1;
	}
	place_arrays(arena, functions, calls);
	memcpy(arena->calls, taken, calls * sizeof(*taken));
	for (n = 0; n < slot->nr_functions; n++) {
		if (!numbers[n])
			continue;
		arena->functions[numbers[n] - 1] = slot->functions[n];
		arena->functions[numbers[n] - 1].copy = slot_now(slot, slot->functions[n].copy);
	}
	memcpy(arena->group->module, slot->name, sizeof(slot->name));
	memcpy(arena->group->number, slot->number, sizeof(slot->number));
}

uint64_t odd_address(const struct slot *slot)
{
	static const char *const names[] = { "_stext", "_etext", "__noinstr_text_start",
		"__entry_text_start", "__sched_text_start", "__kprobes_text_end", "init_task",
		"_printk", "text_poke_queue", "kprobe_mutex", "__init_begin" };
	static uint64_t found[COUNT(names)];
	static const uint64_t constants[] = { 0, 1, 8, 0xfff, 0x7fffffffffff, 0x800000000000,
		0x8000000000000000, 0xffff800000000000, 0xffff888000000000, 0xffffffff80000000,
		0xffffffffc0000000, 0xffffffffff600000, 0xfffffffffffffffc, 0xfffffffffffffff0,
		0xffffffffffffffff };
	uint64_t address;
	uint32_t n;

	switch (below(6)) {
	case 0:
		address = constants[below(COUNT(constants))];
		break;
	case 1:
		n = below(COUNT(names));
		if (!found[n])
			found[n] = symbol(names[n]) ?: 1;
		address = found[n];
		break;
	case 2:
		address = slot->functions[below(slot->nr_functions)].entry;
		break;
	case 3:
		address = slot_now(slot, slot->functions[below(slot->nr_functions)].copy);
		break;
	case 4:
		if (!slot->nr_calls)
			return draw();
		address = slot_now(slot, slot->calls[below(slot->nr_calls)].site);
		break;
	default:
		return draw();
	}
	return one_in(2) ? address : address - 8 + below(17);
}

uint64_t odd_pointer(struct arena *arena)
{
	switch (below(6)) {
	case 0:
		return 0;
	case 1:
		return (uintptr_t)arena->functions_end - below(64);
	case 2:
		return (uintptr_t)arena->calls_end - below(64);
	case 3:
		return (uintptr_t)arena->start + below(arena->size);
	default:
		return odd_address(&slots[below(nr_slots)]);
	}
}

uint32_t odd_count(uint32_t right, uint32_t most)
{
	const uint32_t counts[] = { 0, 1, right - 1, right + 1, 2 * right, most - 1, most, most + 1,
		0x7fffffff, 0x80000000, 0xaaaaaaab, 0xffffffff, (uint32_t)draw() };

	return counts[below(COUNT(counts))];
}

void random_name(char *name)
{
	static const char *const names[] = { "kernlane", "", "kernlane_", "overrule", "kernlane_999999",
		"vmlinux", "kernlane_1\n", "/", "kernlane_1x" };
	uint32_t n;

	switch (below(4)) {
	case 0:
		memset(name, 0, KERNLANE_NAME);
		strcpy(name, names[below(COUNT(names))]);
		return;
	case 1:
		memcpy(name, slots[below(nr_slots)].name, KERNLANE_NAME);
		return;
	case 2:
		/* Its end is cut short, or without a zero. */
		memcpy(name, slots[below(nr_slots)].name, KERNLANE_NAME);
		n = below(KERNLANE_NAME);
		memset(name + n, one_in(2) ? 0 : 'x', KERNLANE_NAME - n);
		return;
	default:
		for (n = 0; n < KERNLANE_NAME; n++)
			name[n] = draw();
	}
}

static void flip(void *bytes, size_t size)
{
	uint32_t bits = 1 + below(4);

	while (size && bits--)
		((unsigned char *)bytes)[below(size)] ^= 1 << below(8);
}

static void mutate_group(struct arena *arena, const struct slot *slot)
{
	struct kernlane_group *group = arena->group;

	switch (below(8)) {
	case 7:
		flip(&group->reserved, sizeof(group->reserved));
		break;
	case 0:
		group->functions = one_in(2) ? odd_pointer(arena) : group->functions - 32 + below(64);
		break;
	case 1:
		group->calls = one_in(2) ? odd_pointer(arena) : group->calls - 32 + below(64);
		break;
	case 2:
		group->nr_functions = odd_count(group->nr_functions, KERNLANE_MAX_FUNCTIONS);
		break;
	case 3:
		group->nr_calls = odd_count(group->nr_calls, KERNLANE_MAX_CALLS);
		break;
	case 4:
		random_name(group->module);
		break;
	case 5:
		memcpy(group->number, slots[below(nr_slots)].number, sizeof(group->number));
		break;
	default:
		flip(group, sizeof(*group));
	}
}

static void mutate_function(struct arena *arena, const struct slot *slot, uint32_t count)
{
	struct kernlane_function *function = &arena->functions[below(count)];
	struct kernlane_function *other = &arena->functions[below(count)], kept;

	switch (below(9)) {
	case 0:
		function->entry = odd_address(slot);
		break;
	case 1:
		function->copy = odd_address(slot);
		break;
	case 2:
		function->patch_at = one_in(2) ? 14u - function->patch_at : below(256);
		break;
	case 3:
		flip(function->expected, sizeof(function->expected));
		break;
	case 4:
		flip(&function->carried, sizeof(function->carried) + sizeof(function->reserved));
		break;
	case 5:
		kept = *function;
		*function = *other;
		*other = kept;
		break;
	case 6:
		*function = *other;
		break;
	case 7:
		function->copy = other->copy;
		break;
	default:
		flip(function, sizeof(*function));
	}
}

static void mutate_call(struct arena *arena, const struct slot *slot, uint32_t count)
{
	struct kernlane_call *call = &arena->calls[below(count)];
	const struct kernlane_call *other = &arena->calls[below(count)];

	switch (below(7)) {
	case 0:
		call->site = odd_address(slot);
		break;
	case 1:
		call->site += (int)below(11) - 5;
		break;
	case 2:
		call->function = odd_count(arena->group->nr_functions, KERNLANE_MAX_FUNCTIONS);
		break;
	case 3:
		call->reserved = draw();
		break;
	case 4:
		*call = *other;
		break;
	case 5:
		call->function = other->function;
		break;
	default:
		flip(call, sizeof(*call));
	}
}

/* The arrays grow to thousands of entries that are there already. */
static void repeat(struct arena *arena)
{
	struct kernlane_group *group = arena->group;
	uint32_t functions = group->nr_functions, calls = group->nr_calls, n;
	struct kernlane_function first = *arena->functions;
	struct kernlane_call call = {};

	if (calls)
		call = arena->calls[below(calls)];
	if (one_in(4))
		functions = KERNLANE_MAX_FUNCTIONS;
	calls = one_in(8) ? KERNLANE_MAX_CALLS : below(MANY);
	place_arrays(arena, functions, calls);
	for (n = 0; n < functions; n++) {
		arena->functions[n] = first;
		arena->functions[n].entry += n;
	}
	for (n = 0; n < calls; n++)
		arena->calls[n] = call;
}

/* What changes to and fro is right or refused, never something else. */
static void flicker(struct arena *arena, uint32_t functions, uint32_t calls)
{
	struct kernlane_function *function = &arena->functions[below(functions)];

	arena->flicker_by = 1ul << 63;
	switch (below(3)) {
	case 0:
		arena->flicker = (uint64_t *)&function->entry;
		break;
	case 1:
		arena->flicker = (uint64_t *)&function->copy;
		break;
	default:
		arena->flicker = calls ? (uint64_t *)&arena->calls[below(calls)].site : NULL;
	}
}

void build_mutated(struct arena *arena, const struct slot *slot)
{
	uint32_t changes = 1 + below(3), functions, calls;

	build_valid(arena, slot);
	functions = arena->group->nr_functions;
	calls = arena->group->nr_calls;
	if (one_in(10))
		flicker(arena, functions, calls);
	else if (one_in(20))
		repeat(arena);
	else
		while (changes--)
			switch (below(3)) {
			case 0:
				mutate_group(arena, slot);
				break;
			case 1:
				mutate_function(arena, slot, functions);
				break;
			default:
				if (calls)
					mutate_call(arena, slot, calls);
			}
}

void build_random(struct arena *arena, const struct slot *slot)
{
	uint32_t functions = 1 + below(20), calls = below(40), n;

	place_arrays(arena, functions, calls);
	for (n = 0; n < functions; n++) {
		struct kernlane_function *function = &arena->functions[n];

		function->entry = odd_address(slot);
		function->copy = odd_address(slot);
		function->patch_at = one_in(2) ? 5 : one_in(2) ? 9 : below(256);
		memset(function->expected, one_in(4) ? draw() : 6, sizeof(function->expected));
		function->carried = one_in(8) ? draw() : below(2);
		function->reserved = one_in(4) ? draw() : 0;
	}
	for (n = 0; n < calls; n++) {
		arena->calls[n].site = odd_address(slot);
		arena->calls[n].function = one_in(4) ? draw() : below(functions);
		arena->calls[n].reserved = one_in(8) ? draw() : 0;
	}
	if (one_in(3))
		random_name(arena->group->module);
	else
		memcpy(arena->group->module, slot->name, sizeof(slot->name));
	memcpy(arena->group->number, slot->number, sizeof(slot->number));
}
