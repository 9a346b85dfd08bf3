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

#include <asm/text-patching.h>

/*
 * Functions of the kernel that are not exported. They are called by patched
 * direct calls, which need no ENDBR at the target.
 */
DECLARE_STATIC_CALL(poke_queue, text_poke_queue);
DECLARE_STATIC_CALL(poke_finish, text_poke_finish);
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

/* Locks of the kernel; kprobe_mutex is taken before text_mutex. */
extern struct mutex *kernlane_kprobe_mutex;
extern struct mutex *kernlane_text_mutex;

/* Call this first; it fails on a kernel that lacks a symbol. */
int kernlane_find_symbols(void);

/* Whether a branch's bytes at @addr lie in the kernel's own text. */
bool kernlane_in_kernel_text(unsigned long addr);

/*
 * Whether a static key or a static call is among the five bytes at @addr: the
 * kernel writes there itself. @bytes are the bytes at @addr.
 */
bool kernlane_is_reserved(unsigned long addr, const u8 *bytes);

/* Whether one of the bytes [@start, @end) is in code that is never changed. */
bool kernlane_is_apart(unsigned long start, unsigned long end);

#endif
