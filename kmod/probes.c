// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Kprobes at the places that a group changes, armed or not.
 *
 * A kprobe remembers the instruction that was there when it was registered:
 * once armed it acts as that one, and disarmed it writes that one's first byte
 * back. So nothing is written where one is registered.
 */
#include <linux/kprobes.h>
#include <linux/sched.h>

#include "group.h"
#include "symbols.h"

/* No kprobe comes or goes, and nobody else writes text. */
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

/*
 * The first of the bytes [@start, @end) at which a kprobe is registered, or 0.
 * One that the function tracer serves is none: it changes no text of its own.
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

/*
 * Likewise of a group, except in its module, which takes its kprobes with it.
 *
 * In a function every byte counts. A kprobe in front may be optimized into a
 * jump over what follows. One behind the jump was registered at what looked
 * like an instruction when decoding went through the jump, and may be in the
 * middle of one of the original. Calls are never part of an optimized kprobe
 * (can_boost() in arch/x86/kernel/kprobes/core.c).
 */
unsigned long kernlane_find_group_probe(const struct group *group)
{
	unsigned long found;
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		const struct function *function = &group->functions[i];

		found = kernlane_find_probe(function->entry, function->end);
		if (found)
			return found;
		cond_resched();
	}
	for (i = 0; i < group->nr_calls; i++) {
		const struct call *call = &group->calls[i];

		if (call->in_module)
			continue;
		found = kernlane_find_probe(call->site, call->site + JUMP_SIZE);
		if (found)
			return found;
	}
	return 0;
}
