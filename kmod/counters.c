// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The counters of a group. They lie in dynamic per-CPU memory. The cookies in
 * the data of the group's module say where.
 */
#include <linux/align.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "group.h"

/* The cookies in a module's data, or NULL. */
static struct kernlane_cookies *find_cookies(const struct module *module)
{
	struct kernlane_memory data = kernlane_memory_of(module, KERNLANE_DATA);
	unsigned long end = data.base + data.size, at;
	struct kernlane_cookies *cookies;

	for (at = ALIGN(data.base, KERNLANE_COOKIES_ALIGN);
	     at < end && end - at >= sizeof(*cookies);
	     at += KERNLANE_COOKIES_ALIGN) {
		cookies = (struct kernlane_cookies *)at;
		if (!memcmp(cookies->magic, KERNLANE_COOKIES,
			    sizeof(cookies->magic)))
			return cookies;
	}
	return NULL;
}

static unsigned int nr_cookies(unsigned int nr_counters)
{
	return DIV_ROUND_UP(nr_counters, KERNLANE_COUNTERS_A_COOKIE);
}

void kernlane_free_counters(struct group *group)
{
	unsigned int i;

	if (!group->counters)
		return;
	for (i = 0; i < nr_cookies(group->nr_counters); i++)
		free_percpu(group->counters[i]);
	kfree(group->counters);
}

/* Allocates the counters of a group. No task is in a copy yet. */
int kernlane_take_counters(struct group *group)
{
	struct kernlane_memory data = kernlane_memory_of(group->module,
							 KERNLANE_DATA);
	struct kernlane_cookies *cookies = find_cookies(group->module);
	unsigned long room;
	unsigned int i;
	size_t marked;
	u64 nr;

	if (!cookies)
		return 0;
	nr = cookies->nr_counters;
	room = data.base + data.size - (unsigned long)cookies;
	if (!nr || nr > KERNLANE_MAX_COUNTERS)
		return -EINVAL;
	marked = struct_size_t(struct kernlane_cookies, offsets, nr_cookies(nr));
	if (marked + sizeof(cookies->magic) > room ||
	    memcmp((void *)cookies + marked, KERNLANE_COOKIES,
		   sizeof(cookies->magic)))
		return -EINVAL;
	group->counters = kcalloc(nr_cookies(nr), sizeof(*group->counters),
				  GFP_KERNEL);
	if (!group->counters)
		return -ENOMEM;
	group->nr_counters = nr;
	for (i = 0; i < nr_cookies(nr); i++) {
		size_t left = nr - i * KERNLANE_COUNTERS_A_COOKIE;
		size_t size = min_t(size_t, left, KERNLANE_COUNTERS_A_COOKIE) *
			      sizeof(u64);

		/* With many CPUs memory may be short: fail without a warning. */
		group->counters[i] = __alloc_percpu_gfp(size, sizeof(u64),
							GFP_KERNEL |
							__GFP_NOWARN);
		if (!group->counters[i])
			return -ENOMEM;
		cookies->offsets[i] = (__force u64)group->counters[i];
	}
	return 0;
}

static u64 sum_up(const struct group *group, unsigned int i)
{
	const u64 __percpu *counter =
		group->counters[i / KERNLANE_COUNTERS_A_COOKIE] +
		i % KERNLANE_COUNTERS_A_COOKIE;
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*per_cpu_ptr(counter, cpu));
	return sum;
}

/* The sums, or an error. */
static u64 *sum_all(const struct kernlane_counters *from)
{
	const struct group *group = kernlane_find_group(from->module,
							from->number);
	unsigned int i;
	u64 *sums;

	if (!group)
		return ERR_PTR(-ENOENT);
	if (!from->nr || from->nr > group->nr_counters)
		return ERR_PTR(-EINVAL);
	sums = kvcalloc(from->nr, sizeof(*sums), GFP_KERNEL);
	if (!sums)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < from->nr; i++) {
		sums[i] = sum_up(group, i);
		cond_resched_tasks_rcu_qs();
	}
	return sums;
}

long kernlane_read_counters(struct kernlane_counters __user *user)
{
	struct kernlane_counters from;
	long err = 0;
	u64 *sums;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	if (!kernlane_is_name(from.module) || from.reserved)
		return -EINVAL;
	if (mutex_lock_killable(&kernlane_groups_mutex))
		return -EINTR;
	sums = sum_all(&from);
	mutex_unlock(&kernlane_groups_mutex);
	if (IS_ERR(sums))
		return PTR_ERR(sums);
	if (copy_to_user(u64_to_user_ptr(from.sums), sums,
			 array_size(from.nr, sizeof(*sums))))
		err = -EFAULT;
	kvfree(sums);
	return err;
}
