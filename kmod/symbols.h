/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef KERNLANE_SYMBOLS_H
#define KERNLANE_SYMBOLS_H

#include <linux/kallsyms.h>
#include <linux/memory.h>
#include <linux/module.h>
#include <linux/stacktrace.h>
#include <linux/static_call.h>

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

extern struct mutex *kernlane_text_mutex;

/* Before anything else of this file; fails on a kernel that lacks something. */
int kernlane_find_symbols(void);

/* Whether a branch's bytes at @addr lie in the kernel's own text. */
bool kernlane_in_kernel_text(unsigned long addr);

/* Whether @addr is in code that is never touched. */
bool kernlane_is_apart(unsigned long addr);

#endif
