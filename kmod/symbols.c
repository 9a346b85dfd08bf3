// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Symbols that the kernel does not export, found by their names: functions,
 * locks, the bounds of its text, and the bounds of code that is never changed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "group.h"
#include "symbols.h"

/* The kernel holds it while kprobes come and go. */
struct mutex *kernlane_kprobe_mutex;
/* The kernel holds it while it writes text, and while text must not change. */
struct mutex *kernlane_text_mutex;
/* The kernel holds it while it switches static keys. */
static struct mutex *jump_label_mutex_of_kernel;

static unsigned long text_start, text_end;

DEFINE_STATIC_CALL_NULL(poke_queue, text_poke_queue);
DEFINE_STATIC_CALL_NULL(poke_finish, text_poke_finish);
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

/*
 * Whether one of the bytes may begin a static key: a no-op or a jump, of two or
 * five bytes.
 */
static bool may_be_static_key(const u8 *bytes)
{
	unsigned int i;

	for (i = 0; i < JUMP_SIZE; i++)
		if (bytes[i] == 0x0f || bytes[i] == 0x66 || bytes[i] == 0xe9 ||
		    bytes[i] == 0xeb)
			return true;
	return false;
}

/*
 * Both calls read a whole table of the kernel. jump_label_text_reserved()
 * decodes the instruction at each key. It must not meet the int3 of a key that
 * is being switched: arch_jump_entry_size() has a BUG() for that.
 */
bool kernlane_is_reserved(unsigned long addr, const u8 *bytes)
{
	void *start = (void *)addr, *end = (void *)(addr + JUMP_SIZE - 1);
	bool reserved;

	if (static_call(is_static_call)(start, end))
		return true;
	if (!may_be_static_key(bytes))
		return false;
	mutex_lock(jump_label_mutex_of_kernel);
	reserved = static_call(is_static_key)(start, end);
	mutex_unlock(jump_label_mutex_of_kernel);
	return reserved;
}

bool kernlane_in_kernel_text(unsigned long addr)
{
	return addr >= text_start && addr <= text_end - JUMP_SIZE;
}

/* kallsyms_lookup_name() is not exported. A kprobe gives its address. */
static unsigned long find_lookup(void)
{
	struct kprobe probe = {
		.symbol_name = "kallsyms_lookup_name",
		.flags = KPROBE_FLAG_DISABLED,
	};
	unsigned long addr;

	if (register_kprobe(&probe))
		return 0;
	addr = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	return addr;
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

int kernlane_find_symbols(void)
{
	unsigned long lookup = find_lookup();
	void *queue, *finish, *stack, *module, *symbol, *probe, *settle, *site,
		*with, *idle, *key, *call;
	unsigned int i;

	if (!lookup) {
		pr_err("kallsyms_lookup_name() was not found by a kprobe\n");
		return -EOPNOTSUPP;
	}
	static_call_update(address_of, (void *)lookup);
	text_start = find_symbol("_stext");
	text_end = find_symbol("_etext");
	kernlane_kprobe_mutex = (void *)find_symbol("kprobe_mutex");
	kernlane_text_mutex = (void *)find_symbol("text_mutex");
	jump_label_mutex_of_kernel = (void *)find_symbol("jump_label_mutex");
	queue = (void *)find_symbol("text_poke_queue");
	finish = (void *)find_symbol("text_poke_finish");
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
	if (!text_start || !text_end || !kernlane_kprobe_mutex ||
	    !kernlane_text_mutex || !jump_label_mutex_of_kernel || !queue ||
	    !finish || !stack || !module || !symbol || !probe || !settle ||
	    !site || !with || !idle || !key || !call)
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
	return 0;
}
