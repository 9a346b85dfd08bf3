// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Finds kprobes at the places that a group changes, armed or not.
 *
 * A kprobe keeps a copy of the instruction at which it was registered. When it
 * is hit it runs that copy, and when it is disarmed it writes the copy's first
 * byte back. So nothing may be written where a kprobe is registered.
 */
#include <linux/kprobes.h>
#include <linux/sched.h>

#include "group.h"
#include "symbols.h"

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

/*
 * Likewise for all places of a group, except in its module: the kprobes in a
 * module disappear with it.
 *
 * Every byte of a function is checked. A kprobe in front of the jump may be
 * optimized: then it is a jump over several instructions. A kprobe behind the
 * jump may lie in the middle of an instruction of the original, since the
 * kernel decoded the function with the jump in it. At calls, five bytes are
 * enough: an optimized kprobe never contains a call (can_boost() in
 * arch/x86/kernel/kprobes/core.c).
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
		cond_resched_tasks_rcu_qs();
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
