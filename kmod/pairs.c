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
		    pairs->nr_holders > U32_MAX ||
		    size_add(struct_size(pairs, pairs, pairs->nr_pairs),
			     array_size(pairs->nr_holders,
					sizeof(struct kernlane_holder))) >
			    end - at)
			return NULL;
		return pairs;
	}
	return NULL;
}

unsigned long kernlane_entry_of(const struct kernlane_pair *pair)
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

		while (pair < end && kernlane_entry_of(pair) < function->entry)
			pair++;
		if (pair == end || kernlane_entry_of(pair) != function->entry ||
		    copy_of(pair) != function->copy) {
			*bad_address = function->entry;
			return -EINVAL;
		}
	}
	return 0;
}

/* The group's function of each of the module's pairs, or NULL. */
static struct function **functions_of(struct group *group,
				      const struct kernlane_pairs *pairs)
{
	struct function *function = group->functions;
	struct function *end = function + group->nr_functions;
	struct function **found;
	u64 i;

	found = kvcalloc(pairs->nr_pairs, sizeof(*found), GFP_KERNEL);
	for (i = 0; found && i < pairs->nr_pairs && function < end; i++)
		if (kernlane_entry_of(&pairs->pairs[i]) == function->entry)
			found[i] = function++;
	return found;
}

/*
 * Takes the copies that run other functions' code. Call it when each function
 * of the group is in a pair.
 */
int kernlane_take_holders(struct group *group)
{
	const struct kernlane_pairs *pairs = kernlane_find_pairs(group->module);
	const struct kernlane_holder *from = (void *)&pairs->pairs[pairs->nr_pairs];
	struct function **functions;
	int err = 0;
	u64 i;

	if (!pairs->nr_holders)
		return 0;
	functions = functions_of(group, pairs);
	group->holders = kvcalloc(pairs->nr_holders, sizeof(*group->holders),
				  GFP_KERNEL);
	if (!functions || !group->holders)
		err = -ENOMEM;
	for (i = 0; i < pairs->nr_holders && !err; i++, from++) {
		struct holder *holder = &group->holders[i];

		if (from->function >= pairs->nr_pairs ||
		    from->copy >= pairs->nr_pairs) {
			err = -EINVAL;
			break;
		}
		holder->function = functions[from->function];
		holder->copy = functions[from->copy];
		if (!holder->function || !holder->copy)
			err = -EINVAL;
		/* As in take_each(), group.c. */
		cond_resched_tasks_rcu_qs();
	}
	group->nr_holders = pairs->nr_holders;
	kvfree(functions);
	return err;
}
