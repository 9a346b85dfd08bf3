// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Places in the kernel's text that the kernel itself writes: static keys and
 * static calls.
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

/* Ascending: of the kernel's own text, which is never freed. */
static unsigned long *sites;
static unsigned int nr_sites;

static int by_address(const void *a, const void *b)
{
	const unsigned long *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void add_site(unsigned long addr)
{
	/* What was in the kernel's init text is something else now. */
	if (kernlane_in_kernel_text(addr))
		sites[nr_sites++] = addr;
}

int kernlane_sort_reserved(const struct kernlane_tables *tables)
{
	const struct static_call_site *call;
	const struct jump_entry *key;
	size_t room = (tables->keys_end - tables->keys) +
		      (tables->calls_end - tables->calls);

	sites = kvmalloc_array(room, sizeof(*sites), GFP_KERNEL);
	if (!sites)
		return -ENOMEM;
	for (key = tables->keys; key < tables->keys_end; key++)
		add_site(jump_entry_code(key));
	for (call = tables->calls; call < tables->calls_end; call++)
		add_site((unsigned long)&call->addr + call->addr);
	if (!nr_sites) {
		pr_err("the kernel's tables of static keys and calls are empty\n");
		kernlane_forget_reserved();
		return -EOPNOTSUPP;
	}
	sort(sites, nr_sites, sizeof(*sites), by_address, NULL);
	return 0;
}

void kernlane_forget_reserved(void)
{
	kvfree(sites);
	sites = NULL;
	nr_sites = 0;
}

/* Whether a site begins so close to @addr that the five bytes there may overlap. */
static bool has_site_near(unsigned long addr)
{
	unsigned int low = 0, high = nr_sites;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (sites[middle] + JUMP_SIZE > addr)
			high = middle;
		else
			low = middle + 1;
	}
	return low < nr_sites && sites[low] < addr + JUMP_SIZE;
}

/*
 * Both calls read a whole table of the kernel. jump_label_text_reserved()
 * decodes the instruction at each key. It must not meet the int3 of a key that
 * is being switched: arch_jump_entry_size() has a BUG() for that.
 */
bool kernlane_is_reserved(unsigned long addr)
{
	void *start = (void *)addr, *end = (void *)(addr + JUMP_SIZE - 1);
	bool reserved;

	if (!has_site_near(addr))
		return false;
	if (static_call(is_static_call)(start, end))
		return true;
	mutex_lock(kernlane_jump_label_mutex);
	reserved = static_call(is_static_key)(start, end);
	mutex_unlock(kernlane_jump_label_mutex);
	return reserved;
}
