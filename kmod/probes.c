// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Finds kprobes at the places that a group changes, armed or not.
 *
 * A kprobe keeps a copy of the instruction at which it was registered. When it
 * is hit it runs that copy, and when it is disarmed it writes the copy's first
 * byte back. So nothing may be written where a kprobe is registered.
 *
 * A group has up to 262,144 calls, and its functions have megabytes of code,
 * but there are few kprobes. So each kprobe is looked up in the group.
 */
#include <linux/hash.h>
#include <linux/kprobes.h>
#include <linux/rculist.h>
#include <linux/sched.h>

#include "group.h"
#include "symbols.h"

/* As in kernel/kprobes.c of Linux 6.1 to 7.2; kernlane_is_in_table() tries it. */
#define KPROBE_HASH_BITS	6

/* Until the unlock, no kprobe comes or goes and nobody else writes text. */
void kernlane_lock_text(void)
{
	mutex_lock(kernlane_kprobe_mutex);
	mutex_lock(kernlane_text_mutex);
}

void kernlane_unlock_text(void)
{
	mutex_unlock(kernlane_text_mutex);
	mutex_unlock(kernlane_kprobe_mutex);
}

/* If another kprobe is at that address, the kernel has put both behind a third. */
bool kernlane_is_in_table(const struct kprobe *probe)
{
	const struct kprobe *other;
	bool found = false;

	rcu_read_lock();
	hlist_for_each_entry_rcu(other, &kernlane_kprobes[hash_ptr(
						probe->addr, KPROBE_HASH_BITS)],
				 hlist)
		found |= other->addr == probe->addr;
	rcu_read_unlock();
	return found;
}

/*
 * The first of the bytes [@start, @end) at which a kprobe is registered, or 0.
 * Kprobes that use the function tracer do not count: they change no text.
 */
unsigned long kernlane_find_probe(unsigned long start, unsigned long end)
{
	unsigned long addr;

	lockdep_assert_held(kernlane_kprobe_mutex);
	for (addr = start; addr < end; addr++) {
		struct kprobe *probe = static_call(kprobe_at)((void *)addr);

		if (probe && !kprobe_ftrace(probe))
			return addr;
	}
	return 0;
}

/* Whether the group has written a jump at a function's entry, or will. */
static bool has_entry(const struct function *function)
{
	return !function->carried && (function->written || !function->away);
}

/*
 * Every byte of a function counts. A kprobe in front of the jump may be
 * optimized: then it is a jump over several instructions. A kprobe behind the
 * jump may lie in the middle of an instruction of the original, since the
 * kernel decoded the function with the jump in it.
 */
static bool is_in_functions(const struct group *group, unsigned long addr)
{
	unsigned int low = 0, high = group->nr_functions;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (group->functions[middle].entry <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low && addr < group->functions[low - 1].end &&
	       has_entry(&group->functions[low - 1]);
}

/*
 * At calls, five bytes are enough: an optimized kprobe never contains a call
 * (can_boost() in arch/x86/kernel/kprobes/core.c). The kprobes in the group's
 * module disappear with it.
 */
static bool is_in_calls(const struct group *group, unsigned long addr)
{
	unsigned int low = 0, high = group->nr_calls;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (group->calls[middle].site <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	return low && addr < group->calls[low - 1].site + JUMP_SIZE &&
	       !group->calls[low - 1].in_module;
}

/* Likewise for all places of a group, of which this is the first. */
unsigned long kernlane_find_group_probe(const struct group *group)
{
	unsigned long first = 0;
	unsigned int i;

	lockdep_assert_held(kernlane_kprobe_mutex);
	for (i = 0; i < 1 << KPROBE_HASH_BITS; i++) {
		const struct kprobe *probe;

		hlist_for_each_entry(probe, &kernlane_kprobes[i], hlist) {
			unsigned long addr = (unsigned long)probe->addr;

			if (!(probe->flags & KPROBE_FLAG_FTRACE) &&
			    (!first || addr < first) &&
			    (is_in_functions(group, addr) ||
			     is_in_calls(group, addr)))
				first = addr;
		}
	}
	return first;
}
