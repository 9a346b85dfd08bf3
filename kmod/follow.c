// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Follows the invocations of functions, by what the kernel has for that: an
 * fprobe for all functions, or a kretprobe for each. Both use the function
 * tracer's site at the entry. features.h says which kernels have what.
 *
 * Meanwhile the tracer cannot be switched off: an fprobe that is removed after
 * that leaves ftrace's records broken.
 */
#include <linux/slab.h>

#include "follow.h"

/* The most invocations under way at once, in all tasks. */
#define MAX_ACTIVE	4096

#ifdef KERNLANE_PROBE_HOLDS
static int hold_tracer(struct follower *follower)
{
	return 0;
}

static int let_tracer_go(struct follower *follower)
{
	return 0;
}
#else
static void notrace do_nothing(unsigned long ip, unsigned long parent_ip,
			       struct ftrace_ops *ops,
			       struct ftrace_regs *fregs)
{
}

/* An ftrace_ops that lasts, at a function of this module that is not called. */
static int hold_tracer(struct follower *follower)
{
	struct ftrace_ops *hold = &follower->hold;
	int err;

	hold->func = do_nothing;
	hold->flags = FTRACE_OPS_FL_PERMANENT;
	err = ftrace_set_filter_ip(hold, (unsigned long)kernlane_follow, 0, 0);
	if (!err)
		err = register_ftrace_function(hold);
	if (err)
		ftrace_free_filter(hold);
	return err == -EBUSY ? -ENODEV : err;
}

static int let_tracer_go(struct follower *follower)
{
	int err = unregister_ftrace_function(&follower->hold);

	if (!err)
		ftrace_free_filter(&follower->hold);
	return err;
}
#endif

#ifdef KERNLANE_FPROBES
#ifdef KERNLANE_HAS_PROBE_OPS
typedef struct pt_regs probe_regs;
#else
typedef struct ftrace_regs probe_regs;
#endif

static int on_entry(struct fprobe *probe, unsigned long entry_ip,
		    unsigned long ret_ip, probe_regs *regs, void *data)
{
	struct follower *follower = container_of(probe, struct follower, probe);

	return !follower->entered(follower, entry_ip, data);
}

static void on_exit(struct fprobe *probe, unsigned long entry_ip,
		    unsigned long ret_ip, probe_regs *regs, void *data)
{
	struct follower *follower = container_of(probe, struct follower, probe);

	follower->left(follower, entry_ip, data);
}

static int add_probes(struct follower *follower, unsigned long *entries,
		      unsigned int nr)
{
	struct fprobe *probe = &follower->probe;
	int err;

#ifdef KERNLANE_PROBE_HOLDS
	probe->ops.flags = FTRACE_OPS_FL_PERMANENT;
	probe->nr_maxactive = MAX_ACTIVE;
#endif
	probe->entry_handler = on_entry;
	probe->exit_handler = on_exit;
	probe->entry_data_size = sizeof(struct invocation);
	err = register_fprobe_ips(probe, entries, nr);
	return err == -EBUSY ? -ENODEV : err;
}

static int remove_probes(struct follower *follower)
{
	return unregister_fprobe(&follower->probe);
}

unsigned long kernlane_missed(const struct follower *follower)
{
	return READ_ONCE(follower->probe.nmissed);
}
#else
/* The fewest invocations of one function that are followed at once. */
#define LEAST_ACTIVE	64

struct probe {
	struct kretprobe kretprobe;
	struct follower *follower;
};

static struct probe *probe_of(struct kretprobe_instance *instance)
{
	return container_of(get_kretprobe(instance), struct probe, kretprobe);
}

static int on_entry(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct probe *probe = probe_of(instance);
	struct follower *follower = probe->follower;

	return !follower->entered(follower,
				  (unsigned long)probe->kretprobe.kp.addr,
				  (void *)instance->data);
}

static int on_exit(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct probe *probe = probe_of(instance);
	struct follower *follower = probe->follower;

	follower->left(follower, (unsigned long)probe->kretprobe.kp.addr,
		       (void *)instance->data);
	return 0;
}

static void free_probes(struct follower *follower)
{
	unsigned int i;

	for (i = 0; i < follower->nr; i++)
		kfree(container_of(follower->probes[i], struct probe,
				   kretprobe));
	kfree(follower->probes);
}

static int add_probes(struct follower *follower, unsigned long *entries,
		      unsigned int nr)
{
	int err = -ENOMEM;

	follower->nr = 0;
	follower->probes = kcalloc(nr, sizeof(*follower->probes), GFP_KERNEL);
	if (!follower->probes)
		return -ENOMEM;
	while (follower->nr < nr) {
		struct probe *probe = kzalloc(sizeof(*probe), GFP_KERNEL);

		if (!probe)
			goto fail;
		probe->follower = follower;
		probe->kretprobe.kp.addr = (void *)entries[follower->nr];
		probe->kretprobe.entry_handler = on_entry;
		probe->kretprobe.handler = on_exit;
		probe->kretprobe.data_size = sizeof(struct invocation);
		probe->kretprobe.maxactive = max_t(int, MAX_ACTIVE / nr,
						   LEAST_ACTIVE);
		follower->probes[follower->nr++] = &probe->kretprobe;
	}
	err = register_kretprobes(follower->probes, nr);
	if (!err)
		return 0;
fail:
	free_probes(follower);
	return err;
}

static int remove_probes(struct follower *follower)
{
	/* Waits for the handlers; hooks that are left do nothing. */
	unregister_kretprobes(follower->probes, follower->nr);
	free_probes(follower);
	return 0;
}

unsigned long kernlane_missed(const struct follower *follower)
{
	unsigned long missed = 0;
	unsigned int i;

	for (i = 0; i < follower->nr; i++)
		missed += READ_ONCE(follower->probes[i]->nmissed) +
			  READ_ONCE(follower->probes[i]->kp.nmissed);
	return missed;
}
#endif

int kernlane_follow(struct follower *follower, unsigned long *entries,
		    unsigned int nr)
{
	int err = hold_tracer(follower);

	if (err)
		return err;
	err = add_probes(follower, entries, nr);
	if (err)
		let_tracer_go(follower);
	return err;
}

int kernlane_unfollow(struct follower *follower)
{
	int err = remove_probes(follower);

	return err ?: let_tracer_go(follower);
}
