// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Diverts functions of the running kernel to copies of them in a module, and
 * back again.
 *
 * A copy is entered by a jump that is written just behind the function
 * tracer's site of the original, so that tracers, kprobes and BPF programs
 * attached to the function keep working, and by calls in the kernel that are
 * aimed at it. While a tracer is attached to a function, the calls go to the
 * original's entry again. A livepatch is let in only when all groups have been
 * undone: it must win.
 *
 * The order of steps keeps every moment consistent:
 *
 * install: compare all bytes; divert all entries by ftrace; wait until no task
 *	can be inside the five bytes; write the jumps, then the calls; end the
 *	diversion.
 * undo: compare all bytes; restore the calls, then the entries; wait until no
 *	task is in a copy. As long as one may be, the module is held.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bsearch.h>
#include <linux/cpu.h>
#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/livepatch.h>
#include <linux/memory.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/rcupdate_wait.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/stacktrace.h>
#include <linux/static_call.h>
#include <linux/stop_machine.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include <asm/text-patching.h>

#include "kernlane.h"

#define JUMP_SIZE	KERNLANE_JUMP
#define CALL_OPCODE	0xe8
#define JUMP_OPCODE	0xe9

/* How often traced functions and leaving modules are looked at. */
#define WATCH_INTERVAL	(HZ / 5)

/* How long an undo waits for tasks to leave the copies. */
#define LEAVE_TRIES	50
#define LEAVE_PAUSE_MS	100

#define STACK_DEPTH	128

enum group_state {
	GROUP_INSTALLED,
	/* Undone, but a task may still be in a copy. */
	GROUP_LEAVING,
};

struct function {
	unsigned long entry;
	unsigned long copy;
	unsigned long patch;
	unsigned long tracer_site;
	u8 original[JUMP_SIZE];
	u8 jump[JUMP_SIZE];
	/* A tracer is attached: calls go to the entry. */
	bool traced;
};

struct call {
	unsigned long site;
	struct function *function;
	u8 opcode;
	bool in_module;
	/* Goes to the copy now. */
	bool direct;
};

struct group {
	struct list_head list;
	struct ftrace_ops ops;
	struct module *module;
	char name[KERNLANE_NAME];
	unsigned long text;
	unsigned long text_size;
	struct function *functions;
	struct call *calls;
	unsigned int nr_functions;
	unsigned int nr_calls;
	enum group_state state;
	time64_t since;
	s64 poke_us;
	s64 total_us;
};

static LIST_HEAD(groups);
/* Guards the groups; taken before text_mutex. */
static DEFINE_MUTEX(groups_mutex);

static struct mutex *kernel_text_mutex;
static unsigned long text_start, text_end;

/*
 * Functions of the kernel that are not exported. They are called by patched
 * direct calls, which need no ENDBR at the target.
 */
DEFINE_STATIC_CALL_NULL(poke_queue, text_poke_queue);
DEFINE_STATIC_CALL_NULL(poke_finish, text_poke_finish);
DEFINE_STATIC_CALL_NULL(stack_of, stack_trace_save_tsk_reliable);
DEFINE_STATIC_CALL_NULL(module_of, __module_text_address);
DEFINE_STATIC_CALL_NULL(symbol_of, kallsyms_lookup_size_offset);
DEFINE_STATIC_CALL_NULL(address_of, kallsyms_lookup_name);

/* Code that is left alone, by the symbols around it. */
static const char *const apart_names[][2] = {
	{ "__noinstr_text_start", "__noinstr_text_end" },
	{ "__entry_text_start", "__entry_text_end" },
	{ "__sched_text_start", "__sched_text_end" },
	{ "__lock_text_start", "__lock_text_end" },
	{ "__cpuidle_text_start", "__cpuidle_text_end" },
	{ "__kprobes_text_start", "__kprobes_text_end" },
	{ "__irqentry_text_start", "__irqentry_text_end" },
	{ "__softirqentry_text_start", "__softirqentry_text_end" },
	{ "__static_call_text_start", "__static_call_text_end" },
};

static struct {
	unsigned long start;
	unsigned long end;
} apart[ARRAY_SIZE(apart_names)];

static bool is_apart(unsigned long addr)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(apart); i++)
		if (addr >= apart[i].start && addr < apart[i].end)
			return true;
	return false;
}

static bool in_kernel_text(unsigned long addr)
{
	return addr >= text_start && addr + JUMP_SIZE <= text_end;
}

static bool in_module_text(const struct group *group, unsigned long addr)
{
	return addr >= group->text && addr < group->text + group->text_size;
}

static void make_branch(u8 *bytes, u8 opcode, unsigned long from,
			unsigned long to)
{
	s32 distance = (s32)(to - (from + JUMP_SIZE));

	bytes[0] = opcode;
	memcpy(bytes + 1, &distance, sizeof(distance));
}

static unsigned long call_target(const struct call *call, bool direct)
{
	return direct ? call->function->copy : call->function->entry;
}

static bool call_is(const struct call *call, bool direct)
{
	u8 bytes[JUMP_SIZE];

	make_branch(bytes, call->opcode, call->site, call_target(call, direct));
	return !memcmp((void *)call->site, bytes, JUMP_SIZE);
}

static void queue_call(struct call *call, bool direct)
{
	u8 bytes[JUMP_SIZE];

	make_branch(bytes, call->opcode, call->site, call_target(call, direct));
	static_call(poke_queue)((void *)call->site, bytes, JUMP_SIZE, NULL);
	call->direct = direct;
}

/* Whether something is attached to a function's tracer site. */
static bool is_traced(const struct function *function)
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
static unsigned long find_changed_bytes(const struct group *group)
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

static void write_entries(struct group *group, bool jumps)
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
static void write_calls(struct group *group, bool undo)
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

struct stack_check {
	const struct group *group;
	bool clean;
};

/*
 * Runs with all CPUs stopped: whoever is on a CPU is one of the threads that
 * stop it. A stack that cannot be relied upon may lead through a copy.
 */
static int check_stacks(void *data)
{
	static unsigned long entries[STACK_DEPTH];
	struct stack_check *check = data;
	struct task_struct *process, *task;
	int i, nr;

	check->clean = false;
	for_each_process_thread(process, task) {
		if (READ_ONCE(task->on_cpu))
			continue;
		nr = static_call(stack_of)(task, entries, STACK_DEPTH);
		if (nr < 0 || nr == STACK_DEPTH)
			return 0;
		for (i = 0; i < nr; i++)
			if (in_module_text(check->group, entries[i]))
				return 0;
	}
	check->clean = true;
	return 0;
}

static bool nobody_inside(struct group *group)
{
	struct stack_check check = { .group = group };

	synchronize_rcu_tasks();
	synchronize_rcu_tasks_rude();
	return !stop_machine(check_stacks, &check, NULL) && check.clean;
}

static void free_group(struct group *group)
{
	kvfree(group->functions);
	kvfree(group->calls);
	kfree(group);
}

/* Lets a module go that nobody is in. */
static void release(struct group *group)
{
	list_del(&group->list);
	module_put(group->module);
	free_group(group);
	module_put(THIS_MODULE);
}

static int start_undo(struct group *group, u64 *bad_address)
{
	mutex_lock(kernel_text_mutex);
	*bad_address = find_changed_bytes(group);
	if (*bad_address) {
		mutex_unlock(kernel_text_mutex);
		return -EBUSY;
	}
	write_calls(group, true);
	write_entries(group, false);
	mutex_unlock(kernel_text_mutex);
	group->state = GROUP_LEAVING;
	return 0;
}

/* Returns -EAGAIN if the module has to stay for now. */
static int undo(struct group *group, u64 *bad_address)
{
	int err, tries;

	*bad_address = 0;
	if (group->state == GROUP_INSTALLED) {
		err = start_undo(group, bad_address);
		if (err)
			return err;
	}
	for (tries = 0; tries < LEAVE_TRIES; tries++) {
		if (nobody_inside(group)) {
			release(group);
			return 0;
		}
		if (fatal_signal_pending(current))
			break;
		msleep(LEAVE_PAUSE_MS);
	}
	return -EAGAIN;
}

static void watch(struct work_struct *work);
static DECLARE_DELAYED_WORK(watch_work, watch);

/* Follows tracers that come and go, and lets modules leave. */
static void watch(struct work_struct *work)
{
	struct group *group, *next;
	unsigned int i;

	mutex_lock(&groups_mutex);
	list_for_each_entry_safe(group, next, &groups, list) {
		bool changed = false;

		if (group->state == GROUP_LEAVING) {
			if (nobody_inside(group))
				release(group);
			continue;
		}
		mutex_lock(kernel_text_mutex);
		for (i = 0; i < group->nr_functions; i++) {
			struct function *function = &group->functions[i];
			bool traced = is_traced(function);

			changed |= traced != function->traced;
			function->traced = traced;
		}
		if (changed && !find_changed_bytes(group))
			write_calls(group, false);
		mutex_unlock(kernel_text_mutex);
	}
	if (!list_empty(&groups))
		schedule_delayed_work(&watch_work, WATCH_INTERVAL);
	mutex_unlock(&groups_mutex);
}

static struct group *find_group(const char *name)
{
	struct group *group;

	list_for_each_entry(group, &groups, list)
		if (!strcmp(group->name, name))
			return group;
	return NULL;
}

/* A livepatch changes what functions do; copies of the old must be gone. */
static int on_module(struct notifier_block *block, unsigned long event,
		     void *data)
{
	struct group *group, *next;
	u64 bad_address;
	int err;

	if (event != MODULE_STATE_COMING || !is_livepatch_module(data))
		return NOTIFY_DONE;
	mutex_lock(&groups_mutex);
	list_for_each_entry_safe(group, next, &groups, list) {
		err = undo(group, &bad_address);
		if (err)
			pr_warn("a livepatch is loaded, a group cannot be undone completely: %d\n",
				err);
		else
			pr_info("a livepatch is loaded: a group was undone\n");
	}
	mutex_unlock(&groups_mutex);
	return NOTIFY_OK;
}

static struct notifier_block module_notifier = { .notifier_call = on_module };

static int order_functions(const void *a, const void *b)
{
	const struct kernlane_function *x = a, *y = b;

	return x->entry < y->entry ? -1 : x->entry > y->entry;
}

static int order_calls(const void *a, const void *b)
{
	const struct call *x = a, *y = b;

	return x->site < y->site ? -1 : x->site > y->site;
}

static int take_function(struct group *group, struct function *function,
			 const struct kernlane_function *from, u64 *bad_address)
{
	unsigned long size, offset;

	*bad_address = from->entry;
	if (from->patch_at != 5 && from->patch_at != 9)
		return -EINVAL;
	if (!in_kernel_text(from->entry) || is_apart(from->entry))
		return -EPERM;
	if (!static_call(symbol_of)(from->entry, &size, &offset) || offset ||
	    size < from->patch_at + JUMP_SIZE)
		return -EINVAL;
	if (!in_module_text(group, from->copy))
		return -EINVAL;
	function->entry = from->entry;
	function->copy = from->copy;
	function->patch = from->entry + from->patch_at;
	function->tracer_site = function->patch - MCOUNT_INSN_SIZE;
	memcpy(function->original, from->expected, JUMP_SIZE);
	make_branch(function->jump, JUMP_OPCODE, function->patch,
		    function->copy);
	*bad_address = 0;
	return 0;
}

static int take_functions(struct group *group, struct kernlane_group *from)
{
	struct kernlane_function *functions;
	unsigned int i;
	int err = 0;

	functions = vmemdup_array_user(u64_to_user_ptr(from->functions),
				       from->nr_functions, sizeof(*functions));
	if (IS_ERR(functions))
		return PTR_ERR(functions);
	for (i = 1; i < from->nr_functions && !err; i++)
		if (order_functions(&functions[i - 1], &functions[i]) >= 0)
			err = -EINVAL;
	group->functions = kvcalloc(from->nr_functions,
				    sizeof(*group->functions), GFP_KERNEL);
	if (!group->functions)
		err = -ENOMEM;
	for (i = 0; i < from->nr_functions && !err; i++)
		err = take_function(group, &group->functions[i], &functions[i],
				    &from->bad_address);
	group->nr_functions = from->nr_functions;
	kvfree(functions);
	return err;
}

static int take_call(struct group *group, struct call *call,
		     const struct kernlane_call *from)
{
	if (from->function >= group->nr_functions)
		return -EINVAL;
	call->site = from->site;
	call->function = &group->functions[from->function];
	call->in_module = in_module_text(group, from->site) &&
			  in_module_text(group, from->site + JUMP_SIZE - 1);
	call->direct = call->in_module;
	if (!call->in_module &&
	    (!in_kernel_text(from->site) || is_apart(from->site)))
		return -EPERM;
	call->opcode = *(u8 *)from->site;
	if (call->opcode != CALL_OPCODE && call->opcode != JUMP_OPCODE)
		return -EBUSY;
	return 0;
}

static int take_calls(struct group *group, struct kernlane_group *from)
{
	struct kernlane_call *calls;
	unsigned int i;
	int err = 0;

	calls = vmemdup_array_user(u64_to_user_ptr(from->calls),
				   from->nr_calls, sizeof(*calls));
	if (IS_ERR(calls))
		return PTR_ERR(calls);
	group->calls = kvcalloc(from->nr_calls, sizeof(*group->calls),
				GFP_KERNEL);
	if (!group->calls)
		err = -ENOMEM;
	for (i = 0; i < from->nr_calls && !err; i++) {
		err = take_call(group, &group->calls[i], &calls[i]);
		if (err)
			from->bad_address = calls[i].site;
	}
	kvfree(calls);
	if (err)
		return err;
	group->nr_calls = from->nr_calls;
	sort(group->calls, group->nr_calls, sizeof(*group->calls), order_calls,
	     NULL);
	for (i = 1; i < group->nr_calls; i++) {
		if (group->calls[i - 1].site + JUMP_SIZE <=
		    group->calls[i].site)
			continue;
		from->bad_address = group->calls[i].site;
		return -EINVAL;
	}
	return 0;
}

/* Holds the module of that name in whose text the first copy lies. */
static int take_module(struct group *group, const struct kernlane_group *from)
{
	struct kernlane_function first;
	struct module *module;

	if (copy_from_user(&first, u64_to_user_ptr(from->functions),
			   sizeof(first)))
		return -EFAULT;
	preempt_disable();
	module = static_call(module_of)(first.copy);
	if (module && (strcmp(module->name, from->module) ||
		       module == THIS_MODULE || !try_module_get(module)))
		module = NULL;
	preempt_enable();
	if (!module)
		return -ENOENT;
	group->module = module;
	group->text = (unsigned long)module->mem[MOD_TEXT].base;
	group->text_size = module->mem[MOD_TEXT].size;
	strscpy(group->name, from->module, sizeof(group->name));
	return 0;
}

static int install(struct group *group, u64 *bad_address)
{
	ktime_t begin = ktime_get(), poke;
	unsigned int i;
	int err = 0;

	/* Before anything is changed, and once more when nothing else can. */
	mutex_lock(kernel_text_mutex);
	*bad_address = find_foreign_bytes(group);
	mutex_unlock(kernel_text_mutex);
	if (*bad_address)
		return -EBUSY;
	for (i = 0; i < group->nr_functions; i++)
		group->functions[i].traced = is_traced(&group->functions[i]);
	err = start_diverting(group);
	if (err)
		return err;
	mutex_lock(kernel_text_mutex);
	*bad_address = find_foreign_bytes(group);
	if (*bad_address) {
		err = -EBUSY;
	} else {
		poke = ktime_get();
		write_entries(group, true);
		write_calls(group, false);
		group->poke_us = ktime_us_delta(ktime_get(), poke);
	}
	mutex_unlock(kernel_text_mutex);
	stop_diverting(group);
	group->total_us = ktime_us_delta(ktime_get(), begin);
	return err;
}

static long do_install(struct kernlane_group __user *user)
{
	struct kernlane_group from;
	struct group *group;
	int err;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	from.bad_address = 0;
	from.module[KERNLANE_NAME - 1] = 0;
	if (!from.nr_functions || from.nr_functions > KERNLANE_MAX_FUNCTIONS ||
	    from.nr_calls > KERNLANE_MAX_CALLS)
		return -EINVAL;
	group = kzalloc(sizeof(*group), GFP_KERNEL);
	if (!group)
		return -ENOMEM;
	mutex_lock(&groups_mutex);
	err = find_group(from.module) ? -EEXIST : take_module(group, &from);
	if (err)
		goto out;
	err = take_functions(group, &from);
	if (!err)
		err = take_calls(group, &from);
	if (!err)
		err = install(group, &from.bad_address);
	if (err) {
		module_put(group->module);
		goto out;
	}
	__module_get(THIS_MODULE);
	group->since = ktime_get_real_seconds();
	group->state = GROUP_INSTALLED;
	list_add_tail(&group->list, &groups);
	schedule_delayed_work(&watch_work, WATCH_INTERVAL);
	mutex_unlock(&groups_mutex);
	return 0;

out:
	mutex_unlock(&groups_mutex);
	free_group(group);
	if (put_user(from.bad_address, &user->bad_address))
		return -EFAULT;
	return err;
}

static long do_undo(struct kernlane_group __user *user)
{
	struct kernlane_group from;
	struct group *group;
	int err = -ENOENT;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	from.module[KERNLANE_NAME - 1] = 0;
	mutex_lock(&groups_mutex);
	group = find_group(from.module);
	if (group)
		err = undo(group, &from.bad_address);
	mutex_unlock(&groups_mutex);
	if (err && put_user(from.bad_address, &user->bad_address))
		return -EFAULT;
	return err;
}

static long do_counters(struct kernlane_counters __user *user)
{
	struct kernlane_counters from;
	struct group *group;
	u64 *sums = NULL;
	unsigned int i;
	long err = 0;
	int cpu;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	from.module[KERNLANE_NAME - 1] = 0;
	mutex_lock(&groups_mutex);
	group = find_group(from.module);
	if (!group)
		err = -ENOENT;
	else if (!from.nr || from.nr > group->module->percpu_size / sizeof(u64))
		err = -EINVAL;
	if (err)
		goto out;
	sums = kvcalloc(from.nr, sizeof(*sums), GFP_KERNEL);
	if (!sums) {
		err = -ENOMEM;
		goto out;
	}
	for_each_possible_cpu(cpu) {
		const u64 *counters = per_cpu_ptr(group->module->percpu, cpu);

		for (i = 0; i < from.nr; i++)
			sums[i] += READ_ONCE(counters[i]);
	}
out:
	mutex_unlock(&groups_mutex);
	if (!err && copy_to_user(u64_to_user_ptr(from.sums), sums,
				 array_size(from.nr, sizeof(*sums))))
		err = -EFAULT;
	kvfree(sums);
	return err;
}

static long kernlane_ioctl(struct file *file, unsigned int command,
			   unsigned long argument)
{
	if (!capable(CAP_SYS_ADMIN) || !capable(CAP_SYS_MODULE))
		return -EPERM;
	switch (command) {
	case KERNLANE_INSTALL:
		return do_install((void __user *)argument);
	case KERNLANE_UNDO:
		return do_undo((void __user *)argument);
	case KERNLANE_COUNTERS:
		return do_counters((void __user *)argument);
	default:
		return -ENOTTY;
	}
}

static void show_group(struct seq_file *seq, const struct group *group)
{
	unsigned int i, direct = 0;

	for (i = 0; i < group->nr_calls; i++)
		direct += group->calls[i].direct;
	seq_printf(seq,
		   "group %s %s since %lld functions %u calls %u direct %u poke_us %lld total_us %lld\n",
		   group->name,
		   group->state == GROUP_INSTALLED ? "installed" : "leaving",
		   group->since, group->nr_functions, group->nr_calls, direct,
		   group->poke_us, group->total_us);
	for (i = 0; i < group->nr_functions; i++) {
		const struct function *function = &group->functions[i];

		seq_printf(seq, "function %lx %lx %s\n", function->entry,
			   function->copy,
			   function->traced ? "traced" : "direct");
	}
}

static int show(struct seq_file *seq, void *unused)
{
	const struct group *group;

	seq_printf(seq, "kernlane %d\n", KERNLANE_VERSION);
	mutex_lock(&groups_mutex);
	list_for_each_entry(group, &groups, list)
		show_group(seq, group);
	mutex_unlock(&groups_mutex);
	return 0;
}

static int kernlane_open(struct inode *inode, struct file *file)
{
	/* Where misc_open() left the device. */
	file->private_data = NULL;
	return single_open(file, show, NULL);
}

static const struct file_operations kernlane_fops = {
	.owner = THIS_MODULE,
	.open = kernlane_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
	.unlocked_ioctl = kernlane_ioctl,
};

static struct miscdevice kernlane_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "kernlane",
	.fops = &kernlane_fops,
	.mode = 0600,
};

/* kallsyms_lookup_name() is not exported; a kprobe knows where it is. */
static unsigned long find_lookup(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	unsigned long addr;

	if (register_kprobe(&probe))
		return 0;
	addr = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	return addr;
}

static unsigned long find_symbol(const char *name)
{
	unsigned long addr = static_call(address_of)(name);

	if (!addr)
		pr_err("this kernel has no %s\n", name);
	return addr;
}

static int find_symbols(void)
{
	unsigned long lookup = find_lookup();
	void *queue, *finish, *stack, *module, *symbol;
	unsigned int i;

	if (!lookup) {
		pr_err("kallsyms_lookup_name() was not found by a kprobe\n");
		return -EOPNOTSUPP;
	}
	static_call_update(address_of, (void *)lookup);
	text_start = find_symbol("_stext");
	text_end = find_symbol("_etext");
	kernel_text_mutex = (void *)find_symbol("text_mutex");
	queue = (void *)find_symbol("text_poke_queue");
	finish = (void *)find_symbol("text_poke_finish");
	stack = (void *)find_symbol("stack_trace_save_tsk_reliable");
	module = (void *)find_symbol("__module_text_address");
	symbol = (void *)find_symbol("kallsyms_lookup_size_offset");
	if (!text_start || !text_end || !kernel_text_mutex || !queue ||
	    !finish || !stack || !module || !symbol)
		return -EOPNOTSUPP;
	for (i = 0; i < ARRAY_SIZE(apart); i++) {
		apart[i].start = find_symbol(apart_names[i][0]);
		apart[i].end = find_symbol(apart_names[i][1]);
		if (!apart[i].start || !apart[i].end)
			return -EOPNOTSUPP;
	}
	static_call_update(poke_queue, queue);
	static_call_update(poke_finish, finish);
	static_call_update(stack_of, stack);
	static_call_update(module_of, module);
	static_call_update(symbol_of, symbol);
	return 0;
}

static int __init kernlane_init(void)
{
	int err = find_symbols();

	if (err)
		return err;
	err = register_module_notifier(&module_notifier);
	if (err)
		return err;
	err = misc_register(&kernlane_device);
	if (err)
		unregister_module_notifier(&module_notifier);
	return err;
}

/* Only without groups: each holds the module. */
static void __exit kernlane_exit(void)
{
	misc_deregister(&kernlane_device);
	unregister_module_notifier(&module_notifier);
	cancel_delayed_work_sync(&watch_work);
}

module_init(kernlane_init);
module_exit(kernlane_exit);

MODULE_DESCRIPTION("Diverts functions of the kernel to copies laid out anew");
MODULE_LICENSE("GPL");
