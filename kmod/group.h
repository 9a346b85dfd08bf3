/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A group: functions of the kernel, their copies in a module, and the calls
 * that are aimed at the copies.
 */
#ifndef KERNLANE_GROUP_H
#define KERNLANE_GROUP_H

#include <linux/ftrace.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/types.h>

#include "kernlane.h"

#define JUMP_SIZE	KERNLANE_JUMP
#define CALL_OPCODE	0xe8
#define JUMP_OPCODE	0xe9
/* The padding in front of a function. */
#define MAX_ACCOUNTING	16

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
	/* Bytes in front of the copy that a call in the module goes through. */
	u8 accounting;
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

static inline bool in_module_text(const struct group *group, unsigned long addr)
{
	return addr >= group->text && addr < group->text + group->text_size;
}

/* group.c: what user space gave, checked. */
extern struct list_head kernlane_groups;
extern struct mutex kernlane_groups_mutex;

struct group *kernlane_find_group(const char *name);
struct group *kernlane_take_group(struct kernlane_group *from);
void kernlane_free_group(struct group *group);

/* text.c: what stands in the kernel's text. */
void kernlane_make_branch(u8 *bytes, u8 opcode, unsigned long from,
			  unsigned long to);
bool kernlane_is_traced(const struct function *function);
unsigned long kernlane_find_changed(const struct group *group);
void kernlane_write_entries(struct group *group, bool jumps);
void kernlane_write_calls(struct group *group, bool undo);
int kernlane_write_group(struct group *group, u64 *bad_address);

/* undo.c: how groups go again. */
int kernlane_undo(struct group *group, u64 *bad_address);
void kernlane_start_watching(void);
int kernlane_undo_init(void);
void kernlane_undo_exit(void);

/* time.c: how long functions take. */
long kernlane_measure_times(struct kernlane_timing __user *user);

#endif
