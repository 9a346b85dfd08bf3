/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What differs between the kernels that this module is built for: the one table.
 * Kbuild looks into the kernel's headers for each line (KERNLANE_HAS_*), and no
 * version is compared. Only this file, follow.c and large.c know the differences.
 *
 *  MODULE_MEM	struct module has mem[]; before 6.4, core_layout (ac3b43283923)
 *  MODULE_USE	linux/module.h has struct module_use; later kernels keep it in
 *		kernel/module/internal.h. The program compares it with the
 *		kernel's type descriptions.
 *  SMP_POKE	smp_text_poke_batch_add() and _finish(); before 6.16,
 *		text_poke_queue() and text_poke_finish()
 *  SET_IP	ftrace_regs_set_instruction_pointer(); before 6.2,
 *		ftrace_instruction_pointer_set() (94d095ffa0e1)
 *  ARRAY_USER	vmemdup_array_user(), since 6.7 (313ebe47d755)
 *  RUDE	synchronize_rcu_tasks_rude(): waits for what synchronize_rcu_tasks()
 *		leaves out
 *  PERCPU_WQ	system_percpu_wq; before 6.17, system_wq
 *  PROBE_DATA	fprobes get the return address, and data for each invocation,
 *		since 6.5 (cb16330d1274). Before, or without CONFIG_FPROBE, kretprobes are used.
 *  PROBE_OPS	struct fprobe has its ftrace_ops, and a limit of invocations;
 *		before 6.14 (4346ba160409)
 *  EXECMEM	execmem_alloc() gives modules their memory, since 6.10
 *  TEXT_CACHE	it can take text from a cache of large pages, since 6.13
 *
 * To add a difference: a line here, its probe in Kbuild, and both forms below.
 */
#ifndef KERNLANE_FEATURES_H
#define KERNLANE_FEATURES_H

#include <linux/ftrace.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/rcupdate.h>
#include <linux/string.h>
#include <linux/workqueue.h>

#include <asm/text-patching.h>

/* Without one of these, nothing of this can work: say which is missing. */
#ifndef CONFIG_X86_64
#error "Kernlane needs a kernel for x86-64"
#endif
#ifndef CONFIG_MODULE_UNLOAD
#error "Kernlane needs a kernel that can remove modules (CONFIG_MODULE_UNLOAD)"
#endif
#ifndef CONFIG_KPROBES
#error "Kernlane needs kprobes (CONFIG_KPROBES)"
#endif
#ifndef CONFIG_LIVEPATCH
#error "Kernlane needs the reliable stacks of livepatch (CONFIG_LIVEPATCH)"
#endif
#ifndef CONFIG_DYNAMIC_FTRACE
#error "Kernlane needs the function tracer (CONFIG_DYNAMIC_FTRACE)"
#endif
#ifndef CONFIG_HAVE_STATIC_CALL_INLINE
#error "Kernlane needs static calls that are patched (CONFIG_HAVE_STATIC_CALL_INLINE)"
#endif

enum kernlane_part {
	KERNLANE_TEXT,
	KERNLANE_RODATA,
	KERNLANE_DATA,
};

/* A part of a module's memory. */
struct kernlane_memory {
	unsigned long base;
	unsigned long size;
};

#ifdef KERNLANE_HAS_MODULE_MEM
static inline struct kernlane_memory
kernlane_memory_of(const struct module *module, enum kernlane_part part)
{
	static const enum mod_mem_type types[] = { MOD_TEXT, MOD_RODATA,
						   MOD_DATA };
	const struct module_memory *memory = &module->mem[types[part]];

	return (struct kernlane_memory){ (unsigned long)memory->base,
					 memory->size };
}
#else
static inline struct kernlane_memory
kernlane_memory_of(const struct module *module, enum kernlane_part part)
{
	const struct module_layout *layout = &module->core_layout;
	/* Text, read-only data, data that is read-only after init, data. */
	const unsigned int ends[] = { 0, layout->text_size, layout->ro_size,
				      layout->ro_after_init_size,
				      layout->size };
	static const unsigned int from[] = { 0, 1, 3 };
	unsigned int start = ends[from[part]], end = ends[from[part] + 1];

	return (struct kernlane_memory){ (unsigned long)layout->base + start,
					 end - start };
}
#endif

#ifndef KERNLANE_HAS_MODULE_USE
struct module_use {
	struct list_head source_list;
	struct list_head target_list;
	struct module *source, *target;
};
#endif

#ifdef KERNLANE_HAS_SMP_POKE
#define KERNLANE_POKE_QUEUE	smp_text_poke_batch_add
#define KERNLANE_POKE_FINISH	smp_text_poke_batch_finish
#else
#define KERNLANE_POKE_QUEUE	text_poke_queue
#define KERNLANE_POKE_FINISH	text_poke_finish
#endif

#ifdef KERNLANE_HAS_SET_IP
#define kernlane_set_ip(fregs, ip) ftrace_regs_set_instruction_pointer(fregs, ip)
#else
#define kernlane_set_ip(fregs, ip) ftrace_instruction_pointer_set(fregs, ip)
#endif

#ifndef KERNLANE_HAS_ARRAY_USER
static inline void *vmemdup_array_user(const void __user *from, size_t nr,
				       size_t size)
{
	size_t bytes;

	if (check_mul_overflow(nr, size, &bytes))
		return ERR_PTR(-EOVERFLOW);
	return vmemdup_user(from, bytes);
}
#endif

#ifndef struct_size_t
#define struct_size_t(type, member, count) \
	struct_size((type *)NULL, member, count)
#endif

/* Waits until every task, also an idle one, was outside of what is preempted. */
static inline void kernlane_wait_for_tasks(void)
{
	synchronize_rcu_tasks();
#ifdef KERNLANE_HAS_RUDE
	synchronize_rcu_tasks_rude();
#else
#error "Kernlane needs synchronize_rcu_tasks_rude(): nothing else waits for idle tasks"
#endif
}

#ifdef KERNLANE_HAS_PERCPU_WQ
#define kernlane_wq system_percpu_wq
#else
#define kernlane_wq system_wq
#endif

#endif
