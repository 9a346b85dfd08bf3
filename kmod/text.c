// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Reads and writes the entries and calls of a group in the kernel's text, and
 * diverts the entries while it does.
 */
#include <linux/bsearch.h>
#include <linux/ftrace.h>
#include <linux/slab.h>

#include "group.h"
#include "symbols.h"

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
		ftrace_regs_set_instruction_pointer(fregs, function->copy);
}

/* One request for all sites: the kernel copies its list for each request. */
static int filter_sites(struct group *group)
{
	unsigned long *sites = kvmalloc_array(group->nr_functions,
					      sizeof(*sites), GFP_KERNEL);
	unsigned int i;
	int err;

	if (!sites)
		return -ENOMEM;
	for (i = 0; i < group->nr_functions; i++)
		sites[i] = group->functions[i].tracer_site;
	err = ftrace_set_filter_ips(&group->ops, sites, group->nr_functions, 0,
				    0);
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
	synchronize_rcu_tasks();
	synchronize_rcu_tasks_rude();
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
 * Checks that no other tool has changed or probes a byte that will be written.
 * Call it under kernlane_lock_text(). Sets the address at fault to 0 on
 * success.
 */
static int compare(const struct group *group, bool installed, u64 *bad_address)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		const struct function *function = &group->functions[i];

		*bad_address = function->patch;
		if (memcmp((void *)function->patch,
			   installed ? function->jump : function->original,
			   JUMP_SIZE))
			goto differs;
	}
	for (i = 0; i < group->nr_calls; i++) {
		const struct call *call = &group->calls[i];

		/* Nothing in the module needs to be restored. */
		if (installed && call->in_module)
			continue;
		*bad_address = call->site;
		if (!call_is(call, call->direct))
			goto differs;
	}
	*bad_address = kernlane_find_group_probe(group);
	return *bad_address ? -EADDRINUSE : 0;

differs:
	/* Report an armed kprobe as a kprobe, not as unknown bytes. */
	if (kernlane_find_probe(*bad_address, *bad_address + JUMP_SIZE))
		return -EADDRINUSE;
	return -EBUSY;
}

static void write_entries(struct group *group, bool jumps)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		struct function *function = &group->functions[i];

		/* A task that hits the breakpoint goes to the copy. */
		static_call(poke_queue)((void *)function->patch,
					jumps ? function->jump :
						function->original,
					JUMP_SIZE, function->jump);
	}
	static_call(poke_finish)();
}

/*
 * Aims every call at the copy, or at the entry of a traced function. Where a
 * call cannot be written, "traced" differs from "to_entry", so that
 * kernlane_follow_tracers() tries again.
 */
static void aim_calls(struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++)
		group->functions[i].traced = group->functions[i].to_entry;
	for (i = 0; i < group->nr_calls; i++) {
		struct call *call = &group->calls[i];
		struct function *function = call->function;

		if (!queue_call(call, !function->to_entry))
			function->traced = !function->to_entry;
	}
	static_call(poke_finish)();
}

/*
 * Aims every call at the entry, also the calls in the module, so that no task
 * goes from one copy to another any more.
 */
static void restore_calls(struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_calls; i++)
		queue_call(&group->calls[i], false);
	static_call(poke_finish)();
}

static int check_group(const struct group *group, u64 *bad_address)
{
	int err;

	/* A removed kprobe may stay for a moment, while it is optimized. */
	static_call(settle_kprobes)();
	kernlane_lock_text();
	err = compare(group, false, bad_address);
	kernlane_unlock_text();
	return err;
}

/* Makes all functions and calls go to the copies, or changes nothing. */
int kernlane_write_group(struct group *group, u64 *bad_address)
{
	ktime_t begin = ktime_get(), poke;
	unsigned int i;
	int err;

	/* Compare before the first change, and again under the locks. */
	err = check_group(group, bad_address);
	if (err)
		return err;
	for (i = 0; i < group->nr_functions; i++)
		group->functions[i].to_entry = is_traced(&group->functions[i]);
	err = start_diverting(group);
	if (err)
		return err;
	/* From here on a task may be in a copy, also if the rest fails. */
	group->entered = true;
	kernlane_lock_text();
	err = compare(group, false, bad_address);
	if (!err) {
		poke = ktime_get();
		write_entries(group, true);
		aim_calls(group);
		group->poke_us = ktime_us_delta(ktime_get(), poke);
	}
	kernlane_unlock_text();
	stop_diverting(group);
	group->total_us = ktime_us_delta(ktime_get(), begin);
	return err;
}

/* Restores the kernel's text, or changes nothing. */
int kernlane_restore_group(struct group *group, u64 *bad_address)
{
	int err;

	static_call(settle_kprobes)();
	kernlane_lock_text();
	err = compare(group, true, bad_address);
	if (!err) {
		restore_calls(group);
		write_entries(group, false);
	}
	kernlane_unlock_text();
	return err;
}

/* Aims calls at the entries of traced functions, and others at the copies. */
void kernlane_follow_tracers(struct group *group)
{
	bool changed = false;
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		struct function *function = &group->functions[i];

		function->to_entry = is_traced(function);
		changed |= function->to_entry != function->traced;
	}
	if (!changed)
		return;
	kernlane_lock_text();
	aim_calls(group);
	kernlane_unlock_text();
}
