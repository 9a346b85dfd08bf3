/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef KERNLANE_SYMBOLS_H
#define KERNLANE_SYMBOLS_H

#include <linux/ftrace.h>
#include <linux/jump_label.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/memory.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/stacktrace.h>
#include <linux/static_call.h>
#include <linux/wait.h>

#include <asm/insn.h>
#include "features.h"

/*
 * Functions of the kernel that are not exported. They are called by patched
 * direct calls, which need no ENDBR at the target.
 */
DECLARE_STATIC_CALL(poke_queue, KERNLANE_POKE_QUEUE);
DECLARE_STATIC_CALL(poke_finish, KERNLANE_POKE_FINISH);
DECLARE_STATIC_CALL(stack_of, stack_trace_save_tsk_reliable);
DECLARE_STATIC_CALL(module_of, __module_text_address);
DECLARE_STATIC_CALL(symbol_of, kallsyms_lookup_size_offset);
DECLARE_STATIC_CALL(kprobe_at, get_kprobe);
DECLARE_STATIC_CALL(settle_kprobes, wait_for_kprobe_optimizer);
DECLARE_STATIC_CALL(tracer_site_at, ftrace_location);
DECLARE_STATIC_CALL(with_task, task_call_func);
DECLARE_STATIC_CALL(idle_task_of, idle_task);
DECLARE_STATIC_CALL(is_static_key, jump_label_text_reserved);
DECLARE_STATIC_CALL(is_static_call, static_call_text_reserved);
DECLARE_STATIC_CALL(address_of, kallsyms_lookup_name);
DECLARE_STATIC_CALL(within_blacklist, within_kprobe_blacklist);
DECLARE_STATIC_CALL(decode, insn_decode);

/* Locks of the kernel, in the order in which they are taken. */
extern struct mutex *kernlane_kprobe_mutex;
extern struct mutex *kernlane_ftrace_mutex;
extern struct mutex *kernlane_text_mutex;
/* No other lock of these is taken under it. */
extern struct mutex *kernlane_module_mutex;
extern struct mutex *kernlane_jump_label_mutex;

extern struct hlist_head *kernlane_kprobes;

/*
 * Call this first; it fails on a kernel that lacks a symbol. Afterwards, also
 * on failure, call kernlane_forget_reserved() at the end.
 */
int kernlane_find_symbols(void);

/* probes.c: whether the kernel's table of kprobes has one at that address. */
bool kernlane_is_in_table(const struct kprobe *probe);

/* Whether a branch's bytes at @addr lie in the kernel's own text. */
bool kernlane_in_kernel_text(unsigned long addr);

/* Tables of static keys and static calls. */
struct kernlane_tables {
	const struct jump_entry *keys, *keys_end;
	const struct static_call_site *calls, *calls_end;
};

/* reserved.c */
struct sites;
/* Takes those of the text from @start to @end. */
int kernlane_sort_sites(struct sites *sites,
			const struct kernlane_tables *tables,
			unsigned long start, unsigned long end);
int kernlane_sort_reserved(const struct kernlane_tables *tables,
			   unsigned long start, unsigned long end);
void kernlane_forget_reserved(void);

/*
 * Whether a static key or a static call is among the five bytes at @addr: the
 * kernel writes there itself. @sites: those of that text, NULL for the kernel's.
 */
bool kernlane_is_reserved(const struct sites *sites, unsigned long addr);

/* Whether one of the bytes [@start, @end) is in code that is never changed. */
bool kernlane_is_apart(unsigned long start, unsigned long end);

#endif
