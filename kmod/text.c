// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Reads and writes the entries and calls of a group in the kernel's text, and
 * diverts the entries while it does.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bsearch.h>
#include <linux/ftrace.h>
#include <linux/slab.h>

#include "group.h"
#include "symbols.h"

/*
 * How many sites are written at a time: as many as KERNLANE_POKE_QUEUE() writes
 * at once (TP_VEC_MAX, later TEXT_POKE_ARRAY_MAX, in arch/x86/kernel/alternative.c).
 */
#define SITES_AT_ONCE	256

void kernlane_make_branch(u8 *bytes, u8 opcode, unsigned long from,
			  unsigned long to)
{
	s32 distance = (s32)(to - (from + JUMP_SIZE));

	bytes[0] = opcode;
	memcpy(bytes + 1, &distance, sizeof(distance));
}

static unsigned long call_target(const struct call *call, bool direct)
{
	return direct ? call->function->copy - call->accounting :
			call->function->entry;
}

static bool call_is(const struct call *call, bool direct)
{
	u8 bytes[JUMP_SIZE];

	kernlane_make_branch(bytes, call->opcode, call->site,
			     call_target(call, direct));
	return !memcmp((void *)call->site, bytes, JUMP_SIZE);
}

/*
 * Aims a call at the copy or at the entry, unless another tool has changed the
 * call or has registered a kprobe there. Returns whether the call goes there
 * now.
 */
static bool queue_call(struct call *call, bool direct)
{
	u8 bytes[JUMP_SIZE];

	if (call->direct == direct)
		return true;
	if (!call_is(call, call->direct) ||
	    kernlane_find_probe(call->site, call->site + JUMP_SIZE))
		return false;
	kernlane_make_branch(bytes, call->opcode, call->site,
			     call_target(call, direct));
	static_call(poke_queue)((void *)call->site, bytes, JUMP_SIZE, NULL);
	call->direct = direct;
	return true;
}

/* Whether something is attached to a function's tracer site. */
static bool is_traced(const struct function *function)
{
	static const u8 nop[] = { 0x0f, 0x1f, 0x44, 0x00, 0x00 };

	return memcmp((void *)function->tracer_site, nop, sizeof(nop));
}

static __always_inline int by_tracer_site(const void *key, const void *element)
{
	const unsigned long *site = key;
	const struct function *function = element;

	if (*site == function->tracer_site)
		return 0;
	return *site < function->tracer_site ? -1 : 1;
}

static void notrace divert(unsigned long ip, unsigned long parent_ip,
			   struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct group *group = container_of(ops, struct group, ops);
	const struct function *function;

	/* Call nothing here: a function of the group would come back here. */
	function = __inline_bsearch(&ip, group->functions, group->nr_functions,
				    sizeof(*function), by_tracer_site);
	if (function)
		kernlane_set_ip(fregs, function->copy);
}

/* One request for all sites: the kernel copies its list for each request. */
static int filter_sites(struct group *group)
{
	unsigned long *sites = kvmalloc_array(group->nr_functions,
					      sizeof(*sites), GFP_KERNEL);
	unsigned int i, nr = 0;
	int err;

	if (!sites)
		return -ENOMEM;
	for (i = 0; i < group->nr_functions; i++)
		if (!group->functions[i].carried)
			sites[nr++] = group->functions[i].tracer_site;
	err = ftrace_set_filter_ips(&group->ops, sites, nr, 0, 0);
	kvfree(sites);
	return err;
}

/* Sends every entry of the group's functions to the copies. */
static int start_diverting(struct group *group)
{
	int err;

	memset(&group->ops, 0, sizeof(group->ops));
	group->ops.func = divert;
	group->ops.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT |
			   FTRACE_OPS_FL_DYNAMIC;
#ifndef CONFIG_HAVE_DYNAMIC_FTRACE_WITH_ARGS
	group->ops.flags |= FTRACE_OPS_FL_SAVE_REGS;
#endif
	err = filter_sites(group);
	if (err)
		goto fail;
	err = register_ftrace_function(&group->ops);
	if (err)
		goto fail;
	/* No task enters the five bytes any more; wait for those inside. */
	kernlane_wait_for_tasks();
	return 0;

fail:
	ftrace_free_filter(&group->ops);
	return err;
}

static void stop_diverting(struct group *group)
{
	if (WARN_ON_ONCE(unregister_ftrace_function(&group->ops))) {
		group->stuck = true;
		return;
	}
	ftrace_free_filter(&group->ops);
}

/*
 * Runs a step on the functions or calls [0, @nr) of a group, a batch at a time.
 * Nobody waits long for the locks: each batch takes them anew, so each compares
 * what it writes. Returns the first error.
 */
typedef int step_fn(struct group *group, unsigned int from, unsigned int to,
		    u64 *bad_address);

static int in_batches(struct group *group, step_fn *step, unsigned int nr,
		      u64 *bad_address)
{
	unsigned int from, to;
	int err = 0;

	for (from = 0; from < nr && !err; from = to) {
		to = min(nr, from + SITES_AT_ONCE);
		kernlane_lock_text();
		err = step(group, from, to, bad_address);
		kernlane_unlock_text();
		/* Undo waits for RCU tasks, and RCU tasks wait for this task. */
		cond_resched_tasks_rcu_qs();
	}
	return err;
}

/* Reports an armed kprobe as a kprobe, not as unknown bytes. */
static int differs_at(u64 addr)
{
	if (kernlane_find_probe(addr, addr + JUMP_SIZE))
		return -EADDRINUSE;
	return -EBUSY;
}

/*
 * Check that no other tool has changed or probes a byte of the entries or calls
 * [@from, @to). Sets the address at fault to 0 on success.
 */
static int compare_entries(struct group *group, unsigned int from,
			   unsigned int to, u64 *bad_address)
{
	unsigned int i;

	for (i = from; i < to; i++) {
		const struct function *function = &group->functions[i];

		/* Nothing needs to be written there, and others may. */
		if (function->carried || (function->away && !function->written))
			continue;
		*bad_address = function->patch;
		if (memcmp((void *)function->patch,
			   function->written ? function->jump :
					       function->original,
			   JUMP_SIZE))
			return differs_at(*bad_address);
	}
	*bad_address = kernlane_find_group_probe(group);
	return *bad_address ? -EADDRINUSE : 0;
}

static int compare_calls(struct group *group, unsigned int from,
			 unsigned int to, u64 *bad_address)
{
	unsigned int i;

	for (i = from; i < to; i++) {
		const struct call *call = &group->calls[i];

		/* Nothing in the module needs to be restored. */
		if (group->state == GROUP_INSTALLED && call->in_module)
			continue;
		*bad_address = call->site;
		if (!call_is(call, call->direct))
			return differs_at(*bad_address);
	}
	*bad_address = kernlane_find_group_probe(group);
	return *bad_address ? -EADDRINUSE : 0;
}

/* Compares everything. */
static int check_group(struct group *group, u64 *bad_address)
{
	int err;

	/* A removed kprobe may stay for a moment, while it is optimized. */
	static_call(settle_kprobes)();
	err = in_batches(group, compare_entries, group->nr_functions,
			 bad_address);
	return err ?: in_batches(group, compare_calls, group->nr_calls,
				 bad_address);
}

static int write_entries(struct group *group, unsigned int from,
			 unsigned int to, bool jumps, u64 *bad_address)
{
	int err = compare_entries(group, from, to, bad_address);
	unsigned int i;

	if (err)
		return err;
	for (i = from; i < to; i++) {
		struct function *function = &group->functions[i];

		if (function->carried || function->written == jumps)
			continue;
		/* A task that hits the breakpoint goes to the copy. */
		static_call(poke_queue)((void *)function->patch,
					jumps ? function->jump :
						function->original,
					JUMP_SIZE, function->jump);
		function->written = jumps;
	}
	static_call(poke_finish)();
	return 0;
}

/* A jump is one instruction: nobody is between its bytes. */
static int restore_entries(struct group *group, unsigned int from,
			   unsigned int to, u64 *bad_address)
{
	return write_entries(group, from, to, false, bad_address);
}

/*
 * Writes jumps where up to five bytes of instructions are. No task was switched
 * out between them when start_diverting() came back, but ftrace may let an entry
 * pass: where several users have one function, ftrace_ops_list_func() calls none
 * of them when it is called again from one of them (trace_test_and_set_recursion()
 * in include/linux/trace_recursion.h). A CPU would then be inside the five bytes.
 *
 * For a function of which this group is the only user, the site calls the
 * group's own trampoline (FTRACE_FL_TRAMP in __ftrace_hash_rec_update(),
 * kernel/trace/ftrace.c), and that calls divert() directly, since the ops ask
 * neither for RCU nor for a guard (ftrace_ops_get_func()). That lets none pass.
 * Under ftrace_lock no other user comes. A task that was let pass before has
 * preemption disabled: trace_test_and_set_recursion() disables it. A grace period of RCU
 * waits for such code.
 */
static int write_batch(struct group *group, unsigned int from, unsigned int to,
		       u64 *bad_address)
{
	unsigned int i;
	int err;

	for (i = from; i < to; i++) {
		const struct function *function = &group->functions[i];
		u8 bytes[JUMP_SIZE];

		if (function->carried)
			continue;
		*bad_address = function->tracer_site;
		kernlane_make_branch(bytes, CALL_OPCODE, function->tracer_site,
				     group->ops.trampoline);
		if (memcmp((void *)function->tracer_site, bytes, JUMP_SIZE))
			return -EUSERS;
	}
	synchronize_rcu_expedited();
	mutex_lock(kernlane_text_mutex);
	err = write_entries(group, from, to, true, bad_address);
	mutex_unlock(kernlane_text_mutex);
	return err;
}

static int write_all_entries(struct group *group, u64 *bad_address)
{
	unsigned int from, to;
	int err = 0;

	if (!group->ops.trampoline)
		return -ENOMEM;
	for (from = 0; from < group->nr_functions && !err; from = to) {
		to = min(group->nr_functions, from + SITES_AT_ONCE);
		mutex_lock(kernlane_kprobe_mutex);
		mutex_lock(kernlane_ftrace_mutex);
		err = write_batch(group, from, to, bad_address);
		mutex_unlock(kernlane_ftrace_mutex);
		mutex_unlock(kernlane_kprobe_mutex);
		cond_resched_tasks_rcu_qs();
	}
	return err;
}

static int aim_batch(struct group *group, unsigned int from, unsigned int to,
		     u64 *bad_address)
{
	unsigned int i;

	for (i = from; i < to; i++) {
		struct call *call = &group->calls[i];
		struct function *function = call->function;

		if (!queue_call(call, !function->to_entry))
			function->at_entry = !function->to_entry;
	}
	static_call(poke_finish)();
	return 0;
}

/*
 * Aims every call at the copy, or at the entry of a traced function. Where a
 * call cannot be written, "at_entry" differs from "to_entry", so that
 * kernlane_follow_tracers() tries again.
 */
static void aim_calls(struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++)
		group->functions[i].at_entry = group->functions[i].to_entry;
	in_batches(group, aim_batch, group->nr_calls, NULL);
}

/*
 * Aims calls at the entry, also the calls in the module, so that no task goes
 * from one copy to another any more.
 */
static int restore_calls(struct group *group, unsigned int from,
			 unsigned int to, u64 *bad_address)
{
	int err = compare_calls(group, from, to, bad_address);
	unsigned int i;

	if (err)
		return err;
	for (i = from; i < to; i++)
		queue_call(&group->calls[i], false);
	static_call(poke_finish)();
	return 0;
}

/*
 * The first traced function's site: it would not be diverted for certain, or
 * its tracer would not see every call.
 */
static unsigned long find_traced(const struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++)
		if (is_traced(&group->functions[i]))
			return group->functions[i].tracer_site;
	return 0;
}

/*
 * Makes all functions and calls go to the copies, or changes nothing. If that
 * fails late, and what was written cannot be restored at once, the group is as
 * if installed: kernlane_is_written().
 */
int kernlane_write_group(struct group *group, u64 *bad_address)
{
	ktime_t begin = ktime_get(), poke;
	u64 ignored;
	int err;

	/* Compare before the first change, and again under the locks. */
	err = check_group(group, bad_address);
	if (err)
		return err;
	*bad_address = find_traced(group);
	if (*bad_address)
		return -EUSERS;
	err = start_diverting(group);
	if (err)
		return err;
	/* From here on a task may be in a copy, also if the rest fails. */
	group->entered = true;
	poke = ktime_get();
	err = write_all_entries(group, bad_address);
	if (err)
		in_batches(group, restore_entries, group->nr_functions,
			   &ignored);
	else
		aim_calls(group);
	group->poke_us = ktime_us_delta(ktime_get(), poke);
	stop_diverting(group);
	group->total_us = ktime_us_delta(ktime_get(), begin);
	return err;
}

/* Whether a function of the group is entered through a jump. */
bool kernlane_is_written(const struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++)
		if (group->functions[i].written)
			return true;
	return false;
}

/*
 * Restores the kernel's text, or changes nothing. If another tool comes in
 * between, the rest is restored the next time.
 */
int kernlane_restore_group(struct group *group, u64 *bad_address)
{
	int err = check_group(group, bad_address);

	if (err)
		return err;
	err = in_batches(group, restore_calls, group->nr_calls, bad_address);
	return err ?: in_batches(group, restore_entries, group->nr_functions,
				 bad_address);
}

/*
 * A tracer does not see a function run whose code is in the copy of another, or to
 * whose copy another jumps. Such copies are left for good: a jump is written only
 * while all entries are diverted.
 */
static void give_way(struct group *group)
{
	unsigned int i, next, nr;

	for (i = 0; i < group->nr_holders; i = next) {
		const struct function *function = group->holders[i].function;
		bool traced = is_traced(function);

		nr = 0;
		for (next = i; next < group->nr_holders &&
			       group->holders[next].function == function; next++) {
			struct function *copy = group->holders[next].copy;

			nr += traced && !copy->away;
			copy->away |= traced;
		}
		if (nr)
			pr_info("%s: %u of %u copies give way to their originals: a tracer is "
				"attached to %ps, whose code they run without a call\n",
				group->name, nr, group->nr_functions,
				(void *)function->entry);
	}
}

/*
 * Restores the entries of functions whose copies gave way. Where another tool has
 * changed or probes one, the next check tries again.
 */
static int restore_away(struct group *group, unsigned int from, unsigned int to,
			u64 *bad_address)
{
	unsigned int i;

	for (i = from; i < to; i++) {
		struct function *function = &group->functions[i];

		if (!function->away || !function->written ||
		    memcmp((void *)function->patch, function->jump, JUMP_SIZE) ||
		    kernlane_find_probe(function->entry, function->end))
			continue;
		static_call(poke_queue)((void *)function->patch,
					function->original, JUMP_SIZE,
					function->jump);
		function->written = false;
	}
	static_call(poke_finish)();
	return 0;
}

/*
 * Aims calls at the entries of traced functions and of those whose copies gave
 * way, and others at the copies.
 */
void kernlane_follow_tracers(struct group *group)
{
	bool changed = false, jumps = false;
	unsigned int i;

	give_way(group);
	for (i = 0; i < group->nr_functions; i++) {
		struct function *function = &group->functions[i];

		function->to_entry = function->away || is_traced(function);
		changed |= function->to_entry != function->at_entry;
		jumps |= function->away && function->written;
	}
	if (changed)
		aim_calls(group);
	if (jumps)
		in_batches(group, restore_away, group->nr_functions, NULL);
}
