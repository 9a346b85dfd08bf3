// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Symbols that the kernel does not export, found by their names: functions,
 * locks, the bounds of its text, and the bounds of code that is never changed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/stringify.h>

#include "group.h"
#include "symbols.h"

/* The kernel holds it while kprobes come and go. */
struct mutex *kernlane_kprobe_mutex;
/* The kernel holds it while it writes text, and while text must not change. */
struct mutex *kernlane_text_mutex;
/* The kernel holds it while it switches static keys. */
struct mutex *kernlane_jump_label_mutex;
/* The kernel holds it while tracers come and go. */
struct mutex *kernlane_ftrace_mutex;
/* The kernel holds it while modules come and go. */
struct mutex *kernlane_module_mutex;
/* The kernel's table of kprobes, by their addresses; see probes.c. */
struct hlist_head *kernlane_kprobes;

static unsigned long text_start, text_end;

DEFINE_STATIC_CALL_NULL(poke_queue, KERNLANE_POKE_QUEUE);
DEFINE_STATIC_CALL_NULL(poke_finish, KERNLANE_POKE_FINISH);
DEFINE_STATIC_CALL_NULL(stack_of, stack_trace_save_tsk_reliable);
DEFINE_STATIC_CALL_NULL(module_of, __module_text_address);
DEFINE_STATIC_CALL_NULL(symbol_of, kallsyms_lookup_size_offset);
DEFINE_STATIC_CALL_NULL(kprobe_at, get_kprobe);
DEFINE_STATIC_CALL_NULL(settle_kprobes, wait_for_kprobe_optimizer);
DEFINE_STATIC_CALL_NULL(tracer_site_at, ftrace_location);
DEFINE_STATIC_CALL_NULL(with_task, task_call_func);
DEFINE_STATIC_CALL_NULL(idle_task_of, idle_task);
DEFINE_STATIC_CALL_NULL(is_static_key, jump_label_text_reserved);
DEFINE_STATIC_CALL_NULL(is_static_call, static_call_text_reserved);
DEFINE_STATIC_CALL_NULL(address_of, kallsyms_lookup_name);
DEFINE_STATIC_CALL_NULL(within_blacklist, within_kprobe_blacklist);
DEFINE_STATIC_CALL_NULL(decode, insn_decode);

/* Code that is never changed, by the symbols at its start and end. */
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

bool kernlane_is_apart(unsigned long start, unsigned long end)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(apart); i++)
		if (start < apart[i].end && end > apart[i].start)
			return true;
	return false;
}

bool kernlane_in_kernel_text(unsigned long addr)
{
	return addr >= text_start && addr <= text_end - JUMP_SIZE;
}

/* Finds a symbol of the kernel. A module's symbol of that name is refused. */
static unsigned long find_symbol(const char *name)
{
	unsigned long addr = static_call(address_of)(name);

	if (addr && addr < MODULES_VADDR)
		return addr;
	pr_err("this kernel has no %s\n", name);
	return 0;
}

/*
 * kallsyms_lookup_name() is not exported. A kprobe gives its address, and shows
 * that the table of kprobes is understood.
 */
static int find_lookup(void)
{
	struct kprobe probe = {
		.symbol_name = "kallsyms_lookup_name",
		.flags = KPROBE_FLAG_DISABLED,
	};
	int err = 0;

	if (register_kprobe(&probe)) {
		pr_err("kallsyms_lookup_name() was not found by a kprobe\n");
		return -EOPNOTSUPP;
	}
	static_call_update(address_of, (void *)probe.addr);
	kernlane_kprobes = (void *)find_symbol("kprobe_table");
	if (!kernlane_kprobes) {
		err = -EOPNOTSUPP;
	} else if (!kernlane_is_in_table(&probe)) {
		pr_err("kprobe_table is not as in the kernels that Kernlane knows\n");
		err = -EOPNOTSUPP;
	}
	unregister_kprobe(&probe);
	return err;
}

static int find_reserved(void)
{
	struct kernlane_tables tables = {
		.keys = (void *)find_symbol("__start___jump_table"),
		.keys_end = (void *)find_symbol("__stop___jump_table"),
		.calls = (void *)find_symbol("__start_static_call_sites"),
		.calls_end = (void *)find_symbol("__stop_static_call_sites"),
	};

	if (!tables.keys || !tables.keys_end || !tables.calls ||
	    !tables.calls_end)
		return -EOPNOTSUPP;
	return kernlane_sort_reserved(&tables, text_start, text_end);
}

int kernlane_find_symbols(void)
{
	void *queue, *finish, *stack, *module, *symbol, *probe, *settle, *site,
		*with, *idle, *key, *call, *unprobed, *decoder;
	unsigned int i;
	int err;

	err = find_lookup();
	if (err)
		return err;
	text_start = find_symbol("_stext");
	text_end = find_symbol("_etext");
	kernlane_kprobe_mutex = (void *)find_symbol("kprobe_mutex");
	kernlane_text_mutex = (void *)find_symbol("text_mutex");
	kernlane_jump_label_mutex = (void *)find_symbol("jump_label_mutex");
	kernlane_ftrace_mutex = (void *)find_symbol("ftrace_lock");
	kernlane_module_mutex = (void *)find_symbol("module_mutex");
	queue = (void *)find_symbol(__stringify(KERNLANE_POKE_QUEUE));
	finish = (void *)find_symbol(__stringify(KERNLANE_POKE_FINISH));
	stack = (void *)find_symbol("stack_trace_save_tsk_reliable");
	module = (void *)find_symbol("__module_text_address");
	symbol = (void *)find_symbol("kallsyms_lookup_size_offset");
	probe = (void *)find_symbol("get_kprobe");
	settle = (void *)find_symbol("wait_for_kprobe_optimizer");
	site = (void *)find_symbol("ftrace_location");
	with = (void *)find_symbol("task_call_func");
	idle = (void *)find_symbol("idle_task");
	key = (void *)find_symbol("jump_label_text_reserved");
	call = (void *)find_symbol("static_call_text_reserved");
	unprobed = (void *)find_symbol("within_kprobe_blacklist");
	decoder = (void *)find_symbol("insn_decode");
	if (!text_start || !text_end || !kernlane_kprobe_mutex ||
	    !kernlane_text_mutex || !kernlane_jump_label_mutex ||
	    !kernlane_ftrace_mutex || !kernlane_module_mutex || !queue ||
	    !finish || !stack || !module || !symbol || !probe || !settle ||
	    !site || !with || !idle || !key || !call || !unprobed || !decoder)
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
	static_call_update(kprobe_at, probe);
	static_call_update(settle_kprobes, settle);
	static_call_update(tracer_site_at, site);
	static_call_update(with_task, with);
	static_call_update(idle_task_of, idle);
	static_call_update(is_static_key, key);
	static_call_update(is_static_call, call);
	static_call_update(within_blacklist, unprobed);
	static_call_update(decode, decoder);
	return find_reserved();
}
