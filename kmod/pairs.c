// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The pairs of a module of copies: the kernel's loader has written them, from
 * the file that was proven, and nobody writes them later.
 */
#include <linux/align.h>
#include <linux/overflow.h>
#include <linux/string.h>

#include "group.h"

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
