// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Measures how long functions take from entry to return, with and without the
 * time in which the task was switched out.
 *
 * One ioctl() attaches and detaches all probes, so a process that is killed
 * leaves nothing behind. An fprobe sees entry and return. It adds the same cost
 * to every call: use the times to compare functions, not to add them up.
 */
#include <linux/fprobe.h>
#include <linux/hash.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>
#include <linux/delay.h>

#include "group.h"
#include "symbols.h"

/* The most invocations under way at once, in all tasks. */
#define MAX_ACTIVE	4096
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

/* The time of an entry, and how long the task had been out until then. */
struct invocation {
	u64 entered;
	u64 out;
};

struct timing {
	struct fprobe probe;
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

static int on_entry(struct fprobe *probe, unsigned long entry_ip,
		    unsigned long ret_ip, struct pt_regs *regs, void *data)
{
	struct timing *timing = container_of(probe, struct timing, probe);
	struct invocation *invocation = data;
	struct out *out;

	if (!READ_ONCE(timing->counting))
		return 1;
	out = find_out(timing, current, true);
	if (!out) {
		this_cpu_inc(times_of(timing, entry_ip)->missed);
		return 1;
	}
	this_cpu_inc(times_of(timing, entry_ip)->entered);
	invocation->out = out->sum;
	invocation->entered = ktime_get_mono_fast_ns();
	return 0;
}

static void on_exit(struct fprobe *probe, unsigned long entry_ip,
		    unsigned long ret_ip, struct pt_regs *regs, void *data)
{
	struct timing *timing = container_of(probe, struct timing, probe);
	const struct invocation *invocation = data;
	u64 now = ktime_get_mono_fast_ns();
	struct out *out = find_out(timing, current, false);

	if (!out || !READ_ONCE(timing->counting))
		return;
	this_cpu_inc(times_of(timing, entry_ip)->returned);
	this_cpu_add(times_of(timing, entry_ip)->ns,
		     now - invocation->entered);
	this_cpu_add(times_of(timing, entry_ip)->out_ns,
		     out->sum - invocation->out);
}

static void is_switch(struct tracepoint *tracepoint, void *found)
{
	if (!strcmp(tracepoint->name, "sched_switch"))
		*(struct tracepoint **)found = tracepoint;
}

static int take_entries(struct timing *timing,
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

		if (!kernlane_in_kernel_text(entry) ||
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

static struct timing *make_timing(const struct kernlane_timing *from)
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
	err = take_entries(timing, from);
	if (err)
		goto fail;
	/*
	 * While it counts, the tracer cannot be switched off: an fprobe that is
	 * removed after that leaves ftrace's records broken.
	 */
	timing->probe.ops.flags = FTRACE_OPS_FL_PERMANENT;
	timing->probe.entry_handler = on_entry;
	timing->probe.exit_handler = on_exit;
	timing->probe.entry_data_size = sizeof(struct invocation);
	timing->probe.nr_maxactive = MAX_ACTIVE;
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
	err = register_fprobe_ips(&timing->probe, timing->entries, timing->nr);
	if (err == -EBUSY)
		err = -ENODEV;	/* The tracer is switched off. */
	if (err)
		goto out;
	err = wait(SETTLE_MS);
	if (!err) {
		unsigned long missed = READ_ONCE(timing->probe.nmissed);

		WRITE_ONCE(timing->counting, true);
		err = wait(ms);
		WRITE_ONCE(timing->counting, false);
		timing->missed = READ_ONCE(timing->probe.nmissed) - missed;
	}
	if (WARN_ON_ONCE(unregister_fprobe(&timing->probe))) {
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

long kernlane_measure_times(struct kernlane_timing __user *user)
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
	timing = make_timing(&from);
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
