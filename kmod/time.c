// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Measures how long functions take from entry to return, with and without the
 * time in which the task was switched out.
 *
 * One ioctl() attaches and detaches all probes, so a process that is killed
 * leaves nothing behind. A probe (follow.c) sees entry and return. It adds the
 * same cost to every call: use the times to compare functions, not to add them
 * up.
 */
#include <linux/hash.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>
#include <linux/delay.h>

#include "follow.h"
#include "group.h"
#include "symbols.h"

/* After this time all calls of traced functions go to the entries again. */
#define SETTLE_MS	400

#define TASKS_SHIFT	12
#define TASK_TRIES	32

/*
 * A task that was in one of the functions: when it was switched out, and how
 * long it was out in all, in nanoseconds.
 */
struct out {
	struct task_struct *task;
	u64 left;
	u64 sum;
};

struct timing {
	struct follower follower;
	unsigned long *entries;
	unsigned int nr;
	bool counting;
	/* Invocations while it counted that the probe did not show. */
	u64 missed;
	/* The function tracer failed and may use this for ever: free nothing. */
	bool stuck;
	struct kernlane_time __percpu *times;
	struct out *outs;
	struct tracepoint *switches;
};

/* One measurement at a time. */
static DEFINE_MUTEX(timing_mutex);

static struct out *find_out(struct timing *timing, struct task_struct *task,
			    bool make)
{
	unsigned int at = hash_ptr(task, TASKS_SHIFT), i;

	for (i = 0; i < TASK_TRIES; i++) {
		struct out *out = &timing->outs[(at + i) % (1 << TASKS_SHIFT)];
		struct task_struct *here = READ_ONCE(out->task);

		if (!here && make)
			here = cmpxchg(&out->task, NULL, task) ?: task;
		if (here == task)
			return out;
		if (!here)
			return NULL;
	}
	return NULL;
}

static void on_switch(void *data, bool preempt, struct task_struct *prev,
		      struct task_struct *next, unsigned int prev_state)
{
	struct timing *timing = data;
	u64 now = ktime_get_mono_fast_ns();
	struct out *out = find_out(timing, prev, false);

	if (out)
		out->left = now;
	out = find_out(timing, next, false);
	if (out && out->left) {
		out->sum += now - out->left;
		out->left = 0;
	}
}

/* The last of the functions that begins at or before @addr. */
static unsigned int function_at(const struct timing *timing, unsigned long addr)
{
	unsigned int low = 0, high = timing->nr;

	while (high - low > 1) {
		unsigned int middle = low + (high - low) / 2;

		if (timing->entries[middle] <= addr)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static struct kernlane_time __percpu *times_of(struct timing *timing,
					       unsigned long addr)
{
	return timing->times + function_at(timing, addr);
}

static bool on_entry(struct follower *follower, unsigned long entry,
		     struct invocation *invocation)
{
	struct timing *timing = container_of(follower, struct timing, follower);
	struct out *out;

	if (!READ_ONCE(timing->counting))
		return false;
	out = find_out(timing, current, true);
	if (!out) {
		this_cpu_inc(times_of(timing, entry)->missed);
		return false;
	}
	this_cpu_inc(times_of(timing, entry)->entered);
	invocation->out = out->sum;
	invocation->entered = ktime_get_mono_fast_ns();
	return true;
}

static void on_exit(struct follower *follower, unsigned long entry,
		    const struct invocation *invocation)
{
	struct timing *timing = container_of(follower, struct timing, follower);
	u64 now = ktime_get_mono_fast_ns();
	struct out *out = find_out(timing, current, false);

	if (!out || !READ_ONCE(timing->counting))
		return;
	this_cpu_inc(times_of(timing, entry)->returned);
	this_cpu_add(times_of(timing, entry)->ns, now - invocation->entered);
	this_cpu_add(times_of(timing, entry)->out_ns,
		     out->sum - invocation->out);
}

static void is_switch(struct tracepoint *tracepoint, void *found)
{
	if (!strcmp(tracepoint->name, "sched_switch"))
		*(struct tracepoint **)found = tracepoint;
}

static int take_entries(struct timing *timing, struct opened *opened,
			const struct kernlane_timing *from)
{
	unsigned int i;

	timing->entries = vmemdup_array_user(u64_to_user_ptr(from->entries),
					     from->nr, sizeof(unsigned long));
	if (IS_ERR(timing->entries)) {
		int err = PTR_ERR(timing->entries);

		timing->entries = NULL;
		return err;
	}
	for (i = 0; i < timing->nr; i++) {
		unsigned long entry = timing->entries[i];

		if ((!kernlane_in_kernel_text(entry) &&
		     !kernlane_holds_text(opened, entry)) ||
		    kernlane_is_apart(entry, entry + 1) ||
		    (i && entry <= timing->entries[i - 1]))
			return -EINVAL;
	}
	return 0;
}

static void free_timing(struct timing *timing)
{
	if (timing->stuck)
		return;
	free_percpu(timing->times);
	kvfree(timing->entries);
	kvfree(timing->outs);
	kfree(timing);
}

static struct timing *make_timing(struct opened *opened,
				  const struct kernlane_timing *from)
{
	struct timing *timing = kzalloc(sizeof(*timing), GFP_KERNEL);
	int err = -ENOMEM;

	if (!timing)
		return ERR_PTR(-ENOMEM);
	timing->nr = from->nr;
	timing->outs = kvcalloc(1 << TASKS_SHIFT, sizeof(*timing->outs),
				GFP_KERNEL);
	timing->times = __alloc_percpu(array_size(from->nr,
						  sizeof(*timing->times)),
				       __alignof__(*timing->times));
	if (!timing->outs || !timing->times)
		goto fail;
	for_each_kernel_tracepoint(is_switch, &timing->switches);
	err = -EOPNOTSUPP;
	if (!timing->switches)
		goto fail;
	err = take_entries(timing, opened, from);
	if (err)
		goto fail;
	timing->follower.entered = on_entry;
	timing->follower.left = on_exit;
	return timing;
fail:
	free_timing(timing);
	return ERR_PTR(err);
}

/* 0, or -EINTR when a signal came first. */
static int wait(unsigned int ms)
{
	return msleep_interruptible(ms) ? -EINTR : 0;
}

static int measure(struct timing *timing, unsigned int ms)
{
	int err;

	err = tracepoint_probe_register(timing->switches, on_switch, timing);
	if (err)
		return err;
	err = kernlane_follow(&timing->follower, timing->entries, timing->nr);
	if (err)
		goto out;
	err = wait(SETTLE_MS);
	if (!err) {
		unsigned long missed = kernlane_missed(&timing->follower);

		WRITE_ONCE(timing->counting, true);
		err = wait(ms);
		WRITE_ONCE(timing->counting, false);
		timing->missed = kernlane_missed(&timing->follower) - missed;
	}
	if (WARN_ON_ONCE(kernlane_unfollow(&timing->follower))) {
		timing->stuck = true;
		kernlane_keep_this();
		__module_get(THIS_MODULE);
	}
out:
	tracepoint_probe_unregister(timing->switches, on_switch, timing);
	/* Wait for handlers on other CPUs, which still use the timing. */
	tracepoint_synchronize_unregister();
	synchronize_rcu();
	return err;
}

static void sum_up(const struct timing *timing, unsigned int i,
		   struct kernlane_time *sum)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		const struct kernlane_time *of = per_cpu_ptr(timing->times,
							     cpu) + i;

		sum->entered += of->entered;
		sum->returned += of->returned;
		sum->missed += of->missed;
		sum->ns += of->ns;
		sum->out_ns += of->out_ns;
	}
}

static int give(const struct timing *timing, struct kernlane_time __user *to)
{
	unsigned int i;

	for (i = 0; i < timing->nr; i++) {
		struct kernlane_time sum = {};

		sum_up(timing, i, &sum);
		if (copy_to_user(&to[i], &sum, sizeof(sum)))
			return -EFAULT;
	}
	return 0;
}

long kernlane_measure_times(struct opened *opened,
			    struct kernlane_timing __user *user)
{
	struct kernlane_timing from;
	struct timing *timing;
	long err;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	if (!from.nr || from.nr > KERNLANE_MAX_TIMED || !from.milliseconds ||
	    from.milliseconds > KERNLANE_MAX_MILLISECONDS)
		return -EINVAL;
	if (!mutex_trylock(&timing_mutex))
		return -EBUSY;
	timing = make_timing(opened, &from);
	if (IS_ERR(timing)) {
		err = PTR_ERR(timing);
		goto out;
	}
	err = measure(timing, from.milliseconds);
	if (!err)
		err = give(timing, u64_to_user_ptr(from.times));
	if (!err && put_user(timing->missed, &user->missed))
		err = -EFAULT;
	free_timing(timing);
out:
	mutex_unlock(&timing_mutex);
	return err;
}
