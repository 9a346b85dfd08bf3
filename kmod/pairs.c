// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The pairs of a module of copies: the kernel's loader has written them, from
 * the file that was proven, and nobody writes them later.
 */
#include <linux/align.h>
#include <linux/overflow.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "group.h"
#include "symbols.h"

/* The pairs in a module's data, or NULL. */
const struct kernlane_pairs *kernlane_find_pairs(const struct module *module)
{
	struct kernlane_memory data = kernlane_memory_of(module, KERNLANE_RODATA);
	unsigned long end = data.base + data.size, at;

	for (at = ALIGN(data.base, KERNLANE_PAIRS_ALIGN);
	     at < end && end - at >= sizeof(struct kernlane_pairs);
	     at += KERNLANE_PAIRS_ALIGN) {
		const struct kernlane_pairs *pairs = (const void *)at;

		if (memcmp(pairs->magic, KERNLANE_PAIRS, sizeof(pairs->magic)))
			continue;
		if (pairs->nr_pairs > KERNLANE_MAX_FUNCTIONS ||
		    struct_size(pairs, pairs, pairs->nr_pairs) > end - at)
			return NULL;
		return pairs;
	}
	return NULL;
}

static unsigned long entry_of(const struct kernlane_pair *pair)
{
	return (unsigned long)&pair->entry + pair->entry;
}

static unsigned long copy_of(const struct kernlane_pair *pair)
{
	return (unsigned long)&pair->copy + pair->copy;
}

/*
 * Whether each function stands in the module with the copy that the request
 * names. Both ascend.
 */
int kernlane_check_pairs(const struct group *group, u64 *bad_address)
{
	const struct kernlane_pairs *pairs = kernlane_find_pairs(group->module);
	const struct kernlane_pair *pair = pairs->pairs;
	const struct kernlane_pair *end = pair + pairs->nr_pairs;
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		const struct function *function = &group->functions[i];

		while (pair < end && entry_of(pair) < function->entry)
			pair++;
		if (pair == end || entry_of(pair) != function->entry ||
		    copy_of(pair) != function->copy) {
			*bad_address = function->entry;
			return -EINVAL;
		}
	}
	return 0;
}

/*
 * Takes the tracer's sites of the functions that stand in the module, but are
 * not entered from outside of it.
 */
int kernlane_take_carried(struct group *group)
{
	const struct kernlane_pairs *pairs = kernlane_find_pairs(group->module);
	const struct function *function = group->functions;
	const struct function *end = function + group->nr_functions;
	u64 i;

	group->carried = kvcalloc(pairs->nr_pairs, sizeof(*group->carried),
				  GFP_KERNEL);
	if (!group->carried)
		return -ENOMEM;
	for (i = 0; i < pairs->nr_pairs; i++) {
		unsigned long entry = entry_of(&pairs->pairs[i]), site;

		while (function < end && function->entry < entry)
			function++;
		if (function < end && function->entry == entry)
			continue;
		site = static_call(tracer_site_at)(entry);
		if (!site)
			return -EINVAL;
		group->carried[group->nr_carried++] = site;
		/* As in take_each(), group.c. */
		cond_resched_tasks_rcu_qs();
	}
	return 0;
}
