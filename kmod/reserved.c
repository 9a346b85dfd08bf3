// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Places in the text of the kernel and of modules that the kernel itself writes:
 * static keys and static calls.
 *
 * The kernel answers the question for a place by reading whole tables, and
 * decodes an instruction for each key in front of it. A group may ask for
 * 262,144 places. So all sites are sorted once, and the kernel is asked only
 * about places that have one close by.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/sort.h>
#include <linux/static_call.h>

#include "group.h"
#include "symbols.h"

/* Of the kernel's own text, which is never freed. */
static struct sites own;

static int by_address(const void *a, const void *b)
{
	const unsigned long *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

int kernlane_sort_sites(struct sites *sites,
			const struct kernlane_tables *tables,
			unsigned long start, unsigned long end)
{
	const struct static_call_site *call;
	const struct jump_entry *key;
	size_t room = (tables->keys_end - tables->keys) +
		      (tables->calls_end - tables->calls);

	sites->nr = 0;
	sites->at = kvmalloc_array(room ?: 1, sizeof(*sites->at), GFP_KERNEL);
	if (!sites->at)
		return -ENOMEM;
	/* What was in init text is something else now: it lies elsewhere. */
	for (key = tables->keys; key < tables->keys_end; key++) {
		unsigned long at = jump_entry_code(key);

		if (at >= start && at < end)
			sites->at[sites->nr++] = at;
	}
	for (call = tables->calls; call < tables->calls_end; call++) {
		unsigned long at = (unsigned long)&call->addr + call->addr;

		if (at >= start && at < end)
			sites->at[sites->nr++] = at;
	}
	sort(sites->at, sites->nr, sizeof(*sites->at), by_address, NULL);
	return 0;
}

int kernlane_sort_reserved(const struct kernlane_tables *tables,
			   unsigned long start, unsigned long end)
{
	int err = kernlane_sort_sites(&own, tables, start, end);

	if (err || own.nr)
		return err;
	pr_err("the kernel's tables of static keys and calls are empty\n");
	return -EOPNOTSUPP;
}

void kernlane_forget_reserved(void)
{
	kvfree(own.at);
	own = (struct sites){};
}

/* Whether a site begins so close to @addr that the five bytes there may overlap. */
static bool has_site_near(const struct sites *sites, unsigned long addr)
{
	unsigned int low = 0, high = sites->nr;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (sites->at[middle] + JUMP_SIZE > addr)
			high = middle;
		else
			low = middle + 1;
	}
	return low < sites->nr && sites->at[low] < addr + JUMP_SIZE;
}

/*
 * Both calls read a whole table of the kernel or module. jump_label_text_reserved()
 * decodes the instruction at each key. It must not meet the int3 of a key that
 * is being switched: arch_jump_entry_size() has a BUG() for that.
 */
bool kernlane_is_reserved(const struct sites *sites, unsigned long addr)
{
	void *start = (void *)addr, *end = (void *)(addr + JUMP_SIZE - 1);
	bool reserved;

	if (!has_site_near(sites ?: &own, addr))
		return false;
	if (static_call(is_static_call)(start, end))
		return true;
	mutex_lock(kernlane_jump_label_mutex);
	reserved = static_call(is_static_key)(start, end);
	mutex_unlock(kernlane_jump_label_mutex);
	return reserved;
}
