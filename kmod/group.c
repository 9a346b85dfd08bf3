// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The list of groups, and the check of requests from user space. Nothing here
 * writes to the kernel's text.
 */
#include <linux/kallsyms.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/string.h>

#include "group.h"
#include "symbols.h"

LIST_HEAD(kernlane_groups);
/* Guards the groups; taken before kernlane_text_mutex. */
DEFINE_MUTEX(kernlane_groups_mutex);

struct group *kernlane_find_group(const char *name, const u8 *number)
{
	struct group *group;

	list_for_each_entry(group, &kernlane_groups, list)
		if (!strcmp(group->name, name) &&
		    !memcmp(group->number, number, KERNLANE_NUMBER))
			return group;
	return NULL;
}

/* Also releases the group's module. */
void kernlane_free_group(struct group *group)
{
	/* The function tracer may use this group for ever: free nothing. */
	if (group->stuck) {
		__module_get(THIS_MODULE);
		return;
	}
	kernlane_forget_tasks(&group->inside);
	kernlane_free_counters(group);
	kernlane_free_owners(group);
	module_put(group->module);
	kernlane_let_go(&group->kept);
	kernlane_let_this_go();
	kvfree(group->functions);
	kvfree(group->calls);
	kvfree(group->holders);
	kfree(group);
}

/* Whether the kernel itself writes to one of the five bytes at @addr. */
static bool is_reserved(const struct group *group, unsigned long addr)
{
	return kernlane_is_reserved(kernlane_sites_at(group, addr), addr);
}

/* Takes element @index of an array of a request into the group. */
typedef int take_fn(struct group *group, unsigned int index, const void *from,
		    u64 *bad_address);

static int take_function(struct group *group, unsigned int index,
			 const void *data, u64 *bad_address)
{
	const struct kernlane_function *from = data;
	struct function *function = &group->functions[index];
	unsigned long size, offset, patch_end;

	*bad_address = from->entry;
	if (index && function[-1].entry >= from->entry)
		return -EINVAL;
	if ((from->patch_at != 5 && from->patch_at != 9) ||
	    from->carried > 1 || from->reserved)
		return -EINVAL;
	patch_end = from->entry + from->patch_at + JUMP_SIZE;
	if (!kernlane_in_text(group, from->entry) ||
	    !kernlane_in_text(group, patch_end - JUMP_SIZE) ||
	    kernlane_is_refused(from->entry))
		return -EPERM;
	/* What is in the way of a jump is not in the way of calls. */
	if (!from->carried && kernlane_is_apart_in(group, from->entry, patch_end))
		return -EPERM;
	if (!static_call(symbol_of)(from->entry, &size, &offset) || offset)
		return -EINVAL;
	if (!from->carried && (size < from->patch_at + JUMP_SIZE ||
			       is_reserved(group, patch_end - JUMP_SIZE)))
		return -EINVAL;
	if (!in_module_text(group, from->copy, 1))
		return -EINVAL;
	function->entry = from->entry;
	function->end = from->entry + size;
	function->copy = from->copy;
	function->carried = from->carried;
	function->patch = from->entry + from->patch_at;
	function->tracer_site = function->patch - MCOUNT_INSN_SIZE;
	/* For an entry that is not a site, ftrace_location() gives the next site. */
	if (static_call(tracer_site_at)(function->tracer_site) !=
	    function->tracer_site)
		return -EINVAL;
	if (!function->carried && kernlane_is_entered(group, function))
		return -EPERM;
	memcpy(function->original, from->expected, JUMP_SIZE);
	kernlane_make_branch(function->jump, JUMP_OPCODE, function->patch,
			     function->copy);
	*bad_address = 0;
	return 0;
}

/*
 * With call-depth tracking (retbleed=stuff) the module loader writes accounting
 * code in front of the copies, and calls in the module go to that code:
 * sarq $5, %gs:...
 */
static u8 find_accounting(const struct group *group, const struct call *call,
			  const u8 *branch)
{
	static const u8 sarq[] = { 0x65, 0x48, 0xc1 };
	unsigned long target, size;
	s32 distance;

	memcpy(&distance, branch + 1, sizeof(distance));
	target = call->site + JUMP_SIZE + distance;
	size = call->function->copy - target;
	if (!size || size > MAX_ACCOUNTING ||
	    !in_module_text(group, target, sizeof(sarq)) ||
	    memcmp((void *)target, sarq, sizeof(sarq)))
		return 0;
	return size;
}

static int take_call(struct group *group, unsigned int index, const void *data,
		     u64 *bad_address)
{
	const struct kernlane_call *from = data;
	struct call *call = &group->calls[index];
	u8 branch[JUMP_SIZE];

	*bad_address = from->site;
	if (from->function >= group->nr_functions || from->reserved)
		return -EINVAL;
	call->site = from->site;
	call->function = &group->functions[from->function];
	call->in_module = in_module_text(group, from->site, JUMP_SIZE);
	call->direct = call->in_module;
	if (!call->in_module && call->function->carried)
		return -EINVAL;
	if (!call->in_module &&
	    (!kernlane_in_text(group, from->site) ||
	     kernlane_is_apart_in(group, from->site, from->site + JUMP_SIZE)))
		return -EPERM;
	if (copy_from_kernel_nofault(branch, (void *)call->site, JUMP_SIZE))
		return -EFAULT;
	call->opcode = branch[0];
	if (call->opcode != CALL_OPCODE && call->opcode != JUMP_OPCODE)
		return -EBUSY;
	if (!call->in_module && is_reserved(group, call->site))
		return -EINVAL;
	if (call->in_module)
		call->accounting = find_accounting(group, call, branch);
	*bad_address = 0;
	return 0;
}

static int take_each(struct group *group, take_fn *take, const void *elements,
		     unsigned int nr, size_t size, u64 *bad_address)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < nr && !err; i++) {
		err = take(group, i, elements + i * size, bad_address);
		/*
		 * Undo waits for RCU tasks, and RCU tasks wait for this task.
		 * With preempt=full, cond_resched() would not end that.
		 */
		cond_resched_tasks_rcu_qs();
	}
	return err;
}

static int order_calls(const void *a, const void *b)
{
	const struct call *x = a, *y = b;

	return x->site < y->site ? -1 : x->site > y->site;
}

/* Sorts the calls by address, and refuses calls that overlap. */
static int sort_calls(struct group *group, u64 *bad_address)
{
	unsigned int i;

	sort(group->calls, group->nr_calls, sizeof(*group->calls), order_calls,
	     NULL);
	for (i = 1; i < group->nr_calls; i++) {
		if (group->calls[i - 1].site + JUMP_SIZE <=
		    group->calls[i].site)
			continue;
		*bad_address = group->calls[i].site;
		return -EINVAL;
	}
	return 0;
}

/*
 * Whether one of the bytes [@start, @end) lies between a function's entry and
 * the end of its jump, if it has one.
 */
static bool in_entries(const struct group *group, unsigned long start,
		       unsigned long end)
{
	unsigned int low = 0, high = group->nr_functions;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (group->functions[middle].entry < end)
			low = middle + 1;
		else
			high = middle;
	}
	while (low && group->functions[low - 1].carried)
		low--;
	return low && group->functions[low - 1].patch + JUMP_SIZE > start;
}

/* Whether one of the bytes [@start, @end) is in a call of a group. */
static bool in_calls(const struct group *group, unsigned long start,
		     unsigned long end)
{
	unsigned int low = 0, high = group->nr_calls;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (group->calls[middle].site < end)
			low = middle + 1;
		else
			high = middle;
	}
	return low && group->calls[low - 1].site + JUMP_SIZE > start;
}

/* The first address of @group that the installed group @by uses, or 0. */
static unsigned long find_taken(const struct group *group,
				const struct group *by)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++) {
		unsigned long start = group->functions[i].entry;
		unsigned long end = group->functions[i].patch + JUMP_SIZE;

		if (group->functions[i].carried)
			continue;
		if (in_entries(by, start, end) || in_calls(by, start, end))
			return start;
	}
	for (i = 0; i < group->nr_calls; i++) {
		unsigned long start = group->calls[i].site;
		unsigned long end = start + JUMP_SIZE;

		if (in_entries(by, start, end) || in_calls(by, start, end))
			return start;
	}
	return 0;
}

/* Refuses a group that would write a byte twice, or a byte of another group. */
static int refuse_overlap(const struct group *group, u64 *bad_address)
{
	const struct group *other;
	unsigned int i;

	for (i = 0; i < group->nr_calls; i++) {
		unsigned long site = group->calls[i].site;

		if (!in_entries(group, site, site + JUMP_SIZE))
			continue;
		*bad_address = site;
		return -EINVAL;
	}
	list_for_each_entry(other, &kernlane_groups, list) {
		if (other->state != GROUP_INSTALLED)
			continue;
		*bad_address = find_taken(group, other);
		if (*bad_address)
			return -EBUSY;
	}
	return 0;
}

/*
 * Takes a reference to the module that contains the first copy, if it has the
 * right name and number.
 */
static int take_module(struct group *group, const struct request *request)
{
	const struct kernlane_group *from = &request->group;
	const struct kernlane_pairs *pairs;
	struct kernlane_memory text;
	struct module *module;

	preempt_disable();
	module = static_call(module_of)(request->functions[0].copy);
	if (module &&
	    (strcmp(module->name, from->module) || module == THIS_MODULE))
		module = NULL;
	if (module && !try_module_get(module))
		module = NULL;
	preempt_enable();
	if (!module)
		return -ENOENT;
	group->module = module;
	if (!kernlane_keep(&group->kept, module))
		return -ENOENT;
	pairs = kernlane_find_pairs(module);
	if (!pairs || memcmp(pairs->number, from->number, KERNLANE_NUMBER))
		return -ENOENT;
	memcpy(group->number, from->number, KERNLANE_NUMBER);
	text = kernlane_memory_of(module, KERNLANE_TEXT);
	group->text = text.base;
	group->text_size = text.size;
	strscpy(group->name, from->module, sizeof(group->name));
	return 0;
}

/* Whether a function is entered through a jump: an empty filter of ftrace is all. */
static bool has_jump(const struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_functions; i++)
		if (!group->functions[i].carried)
			return true;
	return false;
}

static int take_arrays(struct group *group, struct request *request)
{
	struct kernlane_group *from = &request->group;
	int err;

	group->functions = kvcalloc(from->nr_functions,
				    sizeof(*group->functions), GFP_KERNEL);
	group->calls = kvcalloc(from->nr_calls, sizeof(*group->calls),
				GFP_KERNEL);
	if (!group->functions || !group->calls)
		return -ENOMEM;
	err = take_each(group, take_function, request->functions,
			from->nr_functions, sizeof(struct kernlane_function),
			&from->bad_address);
	if (err)
		return err;
	group->nr_functions = from->nr_functions;
	if (!has_jump(group))
		return -EINVAL;
	err = take_each(group, take_call, request->calls, from->nr_calls,
			sizeof(struct kernlane_call), &from->bad_address);
	if (err)
		return err;
	group->nr_calls = from->nr_calls;
	err = sort_calls(group, &from->bad_address);
	if (err)
		return err;
	return refuse_overlap(group, &from->bad_address);
}

/* A new group with a reference to its module, in no list yet, or an error. */
struct group *kernlane_take_group(struct request *request,
				  struct opened *opened)
{
	static u64 last_id;
	struct group *group;
	int err;

	group = kzalloc(sizeof(*group), GFP_KERNEL);
	if (!group)
		return ERR_PTR(-ENOMEM);
	if (!kernlane_keep_this()) {
		kfree(group);
		return ERR_PTR(-ENODEV);
	}
	group->id = ++last_id;
	err = take_module(group, request);
	if (!err)
		err = kernlane_take_owners(group, opened);
	if (!err)
		err = take_arrays(group, request);
	if (!err)
		err = kernlane_take_counters(group);
	if (!err)
		err = kernlane_check_pairs(group, &request->group.bad_address);
	if (!err)
		err = kernlane_take_holders(group);
	if (err) {
		kernlane_free_group(group);
		return ERR_PTR(err);
	}
	return group;
}
