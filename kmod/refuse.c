// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Functions that are never replaced, by their names. crates/live/src/eligible.rs
 * has the same lists. What the kernel keeps in sections of its own is in
 * symbols.c.
 */
#include <linux/kallsyms.h>
#include <linux/string.h>

#include "group.h"
#include "symbols.h"

/*
 * Writing to code, or waiting for it, goes through them
 * (arch/x86/kernel/alternative.c, kernel/smp.c, kernel/stop_machine.c). Names
 * begin so.
 */
static const char *const poking[] = {
	"text_poke",	     "__text_poke",    "poke_int3",
	"do_sync_core",	     "sync_core",      "on_each_cpu",
	"smp_call_function", "__smp_call",     "stop_machine",
	"multi_cpu_stop",    "cpu_stop",       "ftrace_",
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

/* Whether the function at @entry is never replaced. */
bool kernlane_is_refused(unsigned long entry)
{
	/* Used under kernlane_groups_mutex only. */
	static char name[KSYM_SYMBOL_LEN];
	char *behind = name;
	unsigned int i;

	sprint_symbol_no_offset(name, entry);
	for (i = 0; i < ARRAY_SIZE(poking); i++)
		if (strstarts(name, poking[i]))
			return true;
	if (strstr(name, of_dead_cpus))
		return true;
	/* Compilers put ".isra.0" and the like behind a name. */
	strsep(&behind, ".");
	return is_one_of(name, on_every_stack, ARRAY_SIZE(on_every_stack)) ||
	       is_one_of(name, loading, ARRAY_SIZE(loading)) ||
	       static_call(is_unprobed)(entry);
}
