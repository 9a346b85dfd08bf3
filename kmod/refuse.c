// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Refuses functions that must not be replaced, whatever a request says. This
 * file has the same lists of names as the program (POKING and others in
 * crates/live/src/eligible.rs), and kprobes' list of what must not be probed. A
 * function with a branch into its own jump is refused as well. Code that the
 * kernel keeps in separate sections is in symbols.c.
 */
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/string.h>

#include <asm/insn.h>

#include "group.h"
#include "symbols.h"

/*
 * Writing to code, or waiting for it, goes through them
 * (arch/x86/kernel/alternative.c, kernel/smp.c, kernel/stop_machine.c). These are
 * the beginnings of names.
 */
static const char *const poking[] = {
	"text_poke",	  "__text_poke",    "smp_text_poke",
	"poke_int3",	  "do_sync_core",   "sync_core",
	"on_each_cpu",	  "smp_call_function", "__smp_call",
	"stop_machine",	  "multi_cpu_stop", "cpu_stop",
	"ftrace_",
};

/* Every sleeping task has one on its stack. */
static const char *const on_every_stack[] = {
	"x64_sys_call",	  "ia32_sys_call",     "do_syscall_64",
	"kthread",	  "worker_thread",     "smpboot_thread_fn",
	"ret_from_fork",  "do_idle",	       "cpu_startup_entry",
};

/*
 * The task that loads a livepatch has them on its stack while all groups are
 * undone (kernel/module/main.c, kernel/notifier.c). It cannot wait for itself.
 */
static const char *const loading[] = {
	"__x64_sys_init_module",
	"__x64_sys_finit_module",
	"__ia32_sys_init_module",
	"__ia32_sys_finit_module",
	"__se_sys_init_module",
	"__se_sys_finit_module",
	"__do_sys_init_module",
	"__do_sys_finit_module",
	"idempotent_init_module",
	"init_module_from_file",
	"load_module",
	"prepare_coming_module",
	"blocking_notifier_call_chain_robust",
	"notifier_call_chain_robust",
	"notifier_call_chain",
};

/* A CPU that is switched off waits in one. Its stack cannot be checked. */
static const char of_dead_cpus[] = "play_dead";

static bool is_one_of(const char *name, const char *const *names,
		      unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}

/* Whether a function of that name is never replaced. Cuts @name short. */
static bool is_listed(char *name)
{
	char *behind = name;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(poking); i++)
		if (strstarts(name, poking[i]))
			return true;
	if (strstr(name, of_dead_cpus))
		return true;
	/* Compilers put ".isra.0" and the like behind a name. */
	strsep(&behind, ".");
	return is_one_of(name, on_every_stack, ARRAY_SIZE(on_every_stack)) ||
	       is_one_of(name, loading, ARRAY_SIZE(loading));
}

/* Exceptions that kprobes raise go through these functions. */
static bool is_unprobed(unsigned long entry)
{
	bool unprobed;

	mutex_lock(kernlane_kprobe_mutex);
	unprobed = static_call(within_blacklist)(entry);
	mutex_unlock(kernlane_kprobe_mutex);
	return unprobed;
}

/* Whether a relative branch or a call's return leads to one of these bytes. */
static bool leads_into(const struct insn *insn, unsigned long at,
		       unsigned long start, unsigned long end)
{
	unsigned long next = at + insn->length, target;
	u8 op = insn->opcode.bytes[0], second = insn->opcode.bytes[1];
	bool call = op == 0xe8 ||
		    (op == 0xff && X86_MODRM_REG(insn->modrm.value) == 2);

	if (call && next >= start && next < end)
		return true;
	if (op != 0xe8 && op != 0xe9 && op != 0xeb && (op & 0xf0) != 0x70 &&
	    (op & 0xfc) != 0xe0 && !(op == 0x0f && (second & 0xf0) == 0x80))
		return false;
	target = next + (long)insn->immediate.value;
	return target >= start && target < end;
}

/*
 * Whether code in [@from, @to) leads to one of the bytes [@start, @end). Call it
 * under kernlane_text_mutex: half-written instructions do not decode.
 */
static bool any_leads_into(unsigned long from, unsigned long to,
			   unsigned long start, unsigned long end)
{
	while (from < to) {
		struct insn insn;

		if (static_call(decode)(&insn, (void *)from, MAX_INSN_SIZE,
					INSN_MODE_KERN) < 0)
			return true;
		if (leads_into(&insn, from, start, end))
			return true;
		from += insn.length;
	}
	return false;
}

/* Used under kernlane_groups_mutex only. */
static char name[KSYM_SYMBOL_LEN];

/* The name of the function at @entry, without that of its module behind it. */
static void print_name(unsigned long entry)
{
	char *behind = name;

	sprint_symbol_no_offset(name, entry);
	strsep(&behind, " ");
}

/*
 * Whether control enters the jump behind its first byte: from the function, or
 * from the part of it that the compiler put elsewhere.
 */
bool kernlane_is_entered(const struct group *group,
			 const struct function *function)
{
	const struct module *owner = kernlane_owner_at(group, function->entry);
	unsigned long start = function->patch + 1;
	unsigned long end = function->patch + JUMP_SIZE;
	unsigned long cold, size, offset;
	bool entered;

	print_name(function->entry);
	strlcat(name, ".cold", sizeof(name));
	if (owner) {
		static char in_module[sizeof(name) + MODULE_NAME_LEN];

		snprintf(in_module, sizeof(in_module), "%s:%s", owner->name, name);
		cold = static_call(address_of)(in_module);
	} else {
		cold = static_call(address_of)(name);
	}
	if (!cold || !kernlane_in_text(group, cold) ||
	    !static_call(symbol_of)(cold, &size, &offset) || offset)
		size = 0;
	mutex_lock(kernlane_text_mutex);
	entered = any_leads_into(function->entry, function->end, start, end) ||
		  any_leads_into(cold, cold + size, start, end);
	mutex_unlock(kernlane_text_mutex);
	return entered;
}

/* Whether the function at @entry is never replaced: by its name, or kprobes' list. */
bool kernlane_is_refused(unsigned long entry)
{
	print_name(entry);
	return is_listed(name) || is_unprobed(entry);
}
