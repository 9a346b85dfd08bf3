// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Reads and writes the entries and calls of a group in the kernel's text, and
 * diverts the entries while it does.
 */
#include <linux/bsearch.h>
#include <linux/ftrace.h>

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

static void queue_call(struct call *call, bool direct)
{
	u8 bytes[JUMP_SIZE];

	kernlane_make_branch(bytes, call->opcode, call->site,
			     call_target(call, direct));
	static_call(poke_queue)((void *)call->site, bytes, JUMP_SIZE, NULL);
	call->direct = direct;
}

/* Whether something is attached to a function's tracer site. */
bool kernlane_is_traced(const struct function *function)
{
	static const u8 nop[] = { 0x0f, 0x1f, 0x44, 0x00, 0x00 };

	return memcmp((void *)function->tracer_site, nop, sizeof(nop));
}

static int by_tracer_site(const void *key, const void *element)
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

	function = bsearch(&ip, group->functions, group->nr_functions,
			   sizeof(*function), by_tracer_site);
	if (function)
		ftrace_regs_set_instruction_pointer(fregs, function->copy);
}

/* Sends every entry of the group's functions to the copies. */
static int start_diverting(struct group *group)
{
	unsigned int i;
	int err;

	memset(&group->ops, 0, sizeof(group->ops));
	group->ops.func = divert;
	group->ops.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT |
			   FTRACE_OPS_FL_DYNAMIC;
#ifndef CONFIG_HAVE_DYNAMIC_FTRACE_WITH_ARGS
	group->ops.flags |= FTRACE_OPS_FL_SAVE_REGS;
#endif
	for (i = 0; i < group->nr_functions; i++) {
		err = ftrace_set_filter_ip(&group->ops,
					   group->functions[i].tracer_site,
					   0, 0);
		if (err)
			goto fail;
	}
	err = register_ftrace_function(&group->ops);
	if (err)
		goto fail;
	/* From here on nobody enters the five bytes; wait for who is inside. */
	synchronize_rcu_tasks();
	synchronize_rcu_tasks_rude();
	return 0;

fail:
	ftrace_free_filter(&group->ops);
	return err;
}

static void stop_diverting(struct group *group)
{
	WARN_ON_ONCE(unregister_ftrace_function(&group->ops));
	ftrace_free_filter(&group->ops);
}

/* The first address that is not what it has to be before installing, or 0. */
static unsigned long find_foreign_bytes(const struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		const struct function *function = &group->functions[i];

		if (memcmp((void *)function->patch, function->original,
			   JUMP_SIZE))
			return function->patch;
	}
	for (i = 0; i < group->nr_calls; i++)
		if (!call_is(&group->calls[i], group->calls[i].in_module))
			return group->calls[i].site;
	return 0;
}

/* Likewise before undoing. */
unsigned long kernlane_find_changed(const struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		const struct function *function = &group->functions[i];

		if (memcmp((void *)function->patch, function->jump, JUMP_SIZE))
			return function->patch;
	}
	for (i = 0; i < group->nr_calls; i++)
		if (!call_is(&group->calls[i], group->calls[i].direct))
			return group->calls[i].site;
	return 0;
}

void kernlane_write_entries(struct group *group, bool jumps)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		struct function *function = &group->functions[i];

		/* Whoever meets the breakpoint goes to the copy either way. */
		static_call(poke_queue)((void *)function->patch,
					jumps ? function->jump :
						function->original,
					JUMP_SIZE, function->jump);
	}
	static_call(poke_finish)();
}

/*
 * Makes every call go to the copy, or to the entry of a function that is
 * traced. With @undo those in the kernel go to the entries; those in the
 * module do, too: no task may get from one copy into another any more.
 */
void kernlane_write_calls(struct group *group, bool undo)
{
	unsigned int i;

	for (i = 0; i < group->nr_calls; i++) {
		struct call *call = &group->calls[i];
		bool direct = !undo && !call->function->traced;

		if (call->direct != direct)
			queue_call(call, direct);
	}
	static_call(poke_finish)();
}

/* Lets all functions and calls go to the copies, or changes nothing. */
int kernlane_write_group(struct group *group, u64 *bad_address)
{
	ktime_t begin = ktime_get(), poke;
	unsigned int i;
	int err = 0;

	/* Before anything is changed, and once more when nothing else can. */
	mutex_lock(kernlane_text_mutex);
	*bad_address = find_foreign_bytes(group);
	mutex_unlock(kernlane_text_mutex);
	if (*bad_address)
		return -EBUSY;
	for (i = 0; i < group->nr_functions; i++)
		group->functions[i].traced = kernlane_is_traced(&group->functions[i]);
	err = start_diverting(group);
	if (err)
		return err;
	mutex_lock(kernlane_text_mutex);
	*bad_address = find_foreign_bytes(group);
	if (*bad_address) {
		err = -EBUSY;
	} else {
		poke = ktime_get();
		kernlane_write_entries(group, true);
		kernlane_write_calls(group, false);
		group->poke_us = ktime_us_delta(ktime_get(), poke);
	}
	mutex_unlock(kernlane_text_mutex);
	stop_diverting(group);
	group->total_us = ktime_us_delta(ktime_get(), begin);
	return err;
}
