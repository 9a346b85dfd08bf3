/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A group: functions of the kernel and of its modules, their copies in a module,
 * and the calls that go to the copies.
 */
#ifndef KERNLANE_GROUP_H
#define KERNLANE_GROUP_H

#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/types.h>

#include "features.h"
#include "kernlane.h"

#define JUMP_SIZE	KERNLANE_JUMP
#define CALL_OPCODE	0xe8
#define JUMP_OPCODE	0xe9
/* The most bytes of accounting code in front of a copy: its padding. */
#define MAX_ACCOUNTING	16

enum group_state {
	/* Not written yet, and in no list. */
	GROUP_NEW,
	GROUP_INSTALLED,
	/* Undone, but a task may still be in a copy. */
	GROUP_LEAVING,
};

struct function {
	unsigned long entry;
	/* The address behind its last byte, by kallsyms. */
	unsigned long end;
	unsigned long copy;
	unsigned long patch;
	unsigned long tracer_site;
	u8 original[JUMP_SIZE];
	u8 jump[JUMP_SIZE];
	/* Only copies call its copy: there is no jump. */
	bool carried;
	/* The jump is there. */
	bool written;
	/* All calls that can be written go to the entry. */
	bool at_entry;
	/* A tracer is attached, or @away: all calls must go to the entry. */
	bool to_entry;
	/*
	 * A tracer has been attached to a function whose code is in its copy. So
	 * it runs its original, also when the tracer has gone.
	 */
	bool away;
};

/* A copy that runs the code of a function without a call of it. */
struct holder {
	const struct function *function;
	struct function *copy;
};

struct call {
	unsigned long site;
	struct function *function;
	u8 opcode;
	/* Bytes of accounting code in front of the copy, the call's target. */
	u8 accounting;
	bool in_module;
	/* The call goes to the copy now. */
	bool direct;
};

/* Places of static keys and static calls in some text, ascending. */
struct sites {
	unsigned long *at;
	unsigned int nr;
};

/* A module that functions of a group are from. */
struct owner {
	const struct module *module;
	unsigned long text;
	unsigned long text_size;
	struct sites sites;
};

/* What an open file of the device holds. */
struct opened {
	/* Guards the list; taken before the kernel's module_mutex. */
	struct mutex mutex;
	struct list_head holds;
};

/* Tasks, with a reference to each. */
struct tasks {
	struct task_struct **tasks;
	unsigned int nr;
};

struct group {
	struct list_head list;
	/* Never used for another group. */
	u64 id;
	struct ftrace_ops ops;
	struct module *module;
	/* Keeps the module from being removed by force. */
	struct module_use kept;
	char name[KERNLANE_NAME];
	u8 number[KERNLANE_NUMBER];
	unsigned long text;
	unsigned long text_size;
	struct function *functions;
	struct call *calls;
	unsigned int nr_functions;
	unsigned int nr_calls;
	struct owner *owners;
	unsigned int nr_owners;
	/* The copies of a function stand together. */
	struct holder *holders;
	unsigned int nr_holders;
	enum group_state state;
	/* A task may have entered a copy. */
	bool entered;
	/* The memory of each cookie of the module; NULL without counters. */
	u64 __percpu **counters;
	unsigned int nr_counters;
	/* Leaving: every task was checked once; those inside may be in a copy. */
	bool looked;
	struct tasks inside;
	/* Leaving: the time of the next check, and the pause after it. */
	unsigned long next_look;
	unsigned long pause;
	/* The function tracer failed and diverts entries for ever. */
	bool stuck;
	time64_t since;
	s64 poke_us;
	s64 total_us;
};

/* Whether @size bytes at @addr lie in the text of the group's module. */
static inline bool in_module_text(const struct group *group, unsigned long addr,
				  unsigned long size)
{
	return addr >= group->text && size <= group->text_size &&
	       addr - group->text <= group->text_size - size;
}

/* request.c: a request of user space, in the kernel's memory. */
struct request {
	struct kernlane_group group;
	struct kernlane_function *functions;
	struct kernlane_call *calls;
};

int kernlane_read_request(struct request *request,
			  const struct kernlane_group __user *user);
void kernlane_free_request(struct request *request);
/* Whether the caller may see and change what the kernel executes. */
bool kernlane_is_allowed(void);

/* pairs.c: what a module of copies says of itself. */
const struct kernlane_pairs *kernlane_find_pairs(const struct module *module);
unsigned long kernlane_entry_of(const struct kernlane_pair *pair);
int kernlane_check_pairs(const struct group *group, u64 *bad_address);
int kernlane_take_holders(struct group *group);

/* group.c: checks requests of user space. */
extern struct list_head kernlane_groups;
extern struct mutex kernlane_groups_mutex;

struct group *kernlane_find_group(const char *name, const u8 *number);
struct group *kernlane_take_group(struct request *request,
				  struct opened *opened);
void kernlane_free_group(struct group *group);

/* A longer name is refused: cut short, it might be that of another group. */
static inline bool kernlane_is_name(const char *name)
{
	return name[0] && strnlen(name, KERNLANE_NAME) < KERNLANE_NAME;
}

/* keep.c: keeps modules from being removed, also by force. */
bool kernlane_keep(struct module_use *use, struct module *module);
void kernlane_let_go(struct module_use *use);
bool kernlane_keep_this(void);
void kernlane_let_this_go(void);

/* modules.c: modules that are held, and those that functions are from. */
struct opened *kernlane_make_opened(void);
void kernlane_free_opened(struct opened *opened);
int kernlane_hold(struct opened *opened,
		  const struct kernlane_hold __user *user);
/* Whether a branch's bytes at @addr lie in the text of a module that is held. */
bool kernlane_holds_text(struct opened *opened, unsigned long addr);
int kernlane_keep_owners(struct module *copies);
int kernlane_take_owners(struct group *group, struct opened *opened);
void kernlane_free_owners(struct group *group);
/* Whether a branch's bytes at @addr lie in the text of the kernel or an owner. */
bool kernlane_in_text(const struct group *group, unsigned long addr);
/* The owner that has these bytes, or its sites; NULL if it is the kernel. */
const struct module *kernlane_owner_at(const struct group *group,
				       unsigned long addr);
const struct sites *kernlane_sites_at(const struct group *group,
				      unsigned long addr);
/* Whether one of the bytes [@start, @end) is in code that is never changed. */
bool kernlane_is_apart_in(const struct group *group, unsigned long start,
			  unsigned long end);

/* counters.c: the counters of copies. */
int kernlane_take_counters(struct group *group);
void kernlane_free_counters(struct group *group);
long kernlane_read_counters(struct kernlane_counters __user *user);

/* probes.c: kprobes, armed or not. */
void kernlane_lock_text(void);
void kernlane_unlock_text(void);
unsigned long kernlane_find_probe(unsigned long start, unsigned long end);
unsigned long kernlane_find_group_probe(const struct group *group);

/* refuse.c: functions that must not be replaced. */
bool kernlane_is_refused(unsigned long entry);
bool kernlane_is_entered(const struct group *group,
			 const struct function *function);

/* text.c: reads and writes the kernel's text. */
void kernlane_make_branch(u8 *bytes, u8 opcode, unsigned long from,
			  unsigned long to);
int kernlane_write_group(struct group *group, u64 *bad_address);
bool kernlane_is_written(const struct group *group);
int kernlane_restore_group(struct group *group, u64 *bad_address);
void kernlane_follow_tracers(struct group *group);

/* stacks.c: finds the tasks that may be in copies. */
bool kernlane_nobody_inside(struct group *group);
bool kernlane_caller_is_inside(const struct group *group);
void kernlane_forget_tasks(struct tasks *tasks);

/* undo.c: undoes groups. */
void kernlane_start_leaving(struct group *group);
int kernlane_undo(const struct kernlane_group *of, u64 *bad_address);
bool kernlane_livepatch_is_coming(void);
void kernlane_start_watching(void);
int kernlane_undo_init(void);
void kernlane_undo_exit(void);

/* large.c: the text of modules of copies in large pages. */
int kernlane_start_placing(const struct file *by);
void kernlane_stop_placing(const struct file *by);
unsigned long kernlane_page_size(unsigned long addr);
unsigned long kernlane_most_page(void);

/* time.c: measures how long functions take. */
long kernlane_measure_times(struct opened *opened,
			    struct kernlane_timing __user *user);

#endif
