// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Modules whose functions have copies: the copies' owners.
 *
 * Copies use their owner's code and data, and the kernel keeps pointers from the
 * owner's static keys and static calls to the copies' sites. So an owner stays
 * until the module of copies is freed: that module is entered as its user when
 * the kernel loads it, as if it used a symbol of the owner. `lsmod` shows it.
 *
 * Before that, the file by which a program works on a module holds it. So the
 * module that the program has read is the one that is replaced.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>
#include <linux/livepatch.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "group.h"
#include "symbols.h"

/* A module that a file holds. */
struct hold {
	struct list_head list;
	struct module *module;
	struct module_use kept;
};

struct opened *kernlane_make_opened(void)
{
	struct opened *opened = kzalloc(sizeof(*opened), GFP_KERNEL);

	if (opened) {
		mutex_init(&opened->mutex);
		INIT_LIST_HEAD(&opened->holds);
	}
	return opened;
}

void kernlane_free_opened(struct opened *opened)
{
	struct hold *hold, *next;

	list_for_each_entry_safe(hold, next, &opened->holds, list) {
		module_put(hold->module);
		kernlane_let_go(&hold->kept);
		kfree(hold);
	}
	kfree(opened);
}

static bool has_in_text(const struct module *module, unsigned long addr,
			unsigned long size)
{
	struct kernlane_memory text = kernlane_memory_of(module, KERNLANE_TEXT);

	return addr >= text.base && size <= text.size &&
	       addr - text.base <= text.size - size;
}

/* The module with that text, with a reference to it; NULL if there is none. */
static struct module *get_module_at(unsigned long addr)
{
	struct module *module;

	preempt_disable();
	module = static_call(module_of)(addr);
	if (module &&
	    (!has_in_text(module, addr, 1) || !try_module_get(module)))
		module = NULL;
	preempt_enable();
	return module;
}

/* Whether functions of a module are never replaced. */
static bool is_refused(const struct module *module)
{
	return module == THIS_MODULE || is_livepatch_module((void *)module) ||
	       kernlane_find_pairs(module);
}

static bool holds(const struct opened *opened, const struct module *module)
{
	const struct hold *hold;

	list_for_each_entry(hold, &opened->holds, list)
		if (hold->module == module)
			return true;
	return false;
}

/* Takes over the reference to the module, also on failure. */
static int add_hold(struct opened *opened, struct module *module)
{
	struct hold *hold;
	int err = 0;

	if (is_refused(module)) {
		module_put(module);
		return -EPERM;
	}
	hold = kzalloc(sizeof(*hold), GFP_KERNEL);
	if (!hold) {
		module_put(module);
		return -ENOMEM;
	}
	hold->module = module;
	mutex_lock(&opened->mutex);
	if (holds(opened, module))
		err = -EEXIST;
	else if (!kernlane_keep(&hold->kept, module))
		err = -ENOENT;
	else
		list_add(&hold->list, &opened->holds);
	mutex_unlock(&opened->mutex);
	if (err) {
		module_put(module);
		kfree(hold);
	}
	return err == -EEXIST ? 0 : err;
}

int kernlane_hold(struct opened *opened,
		  const struct kernlane_hold __user *user)
{
	struct kernlane_hold from;
	struct module *module;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	if (!kernlane_is_name(from.module))
		return -EINVAL;
	module = get_module_at(from.text);
	if (!module)
		return -ENOENT;
	if (strcmp(module->name, from.module)) {
		module_put(module);
		return -ENOENT;
	}
	return add_hold(opened, module);
}

bool kernlane_holds_text(struct opened *opened, unsigned long addr)
{
	const struct hold *hold;
	bool found = false;

	mutex_lock(&opened->mutex);
	list_for_each_entry(hold, &opened->holds, list)
		found |= has_in_text(hold->module, addr, JUMP_SIZE);
	mutex_unlock(&opened->mutex);
	return found;
}

/* Whether a module is among the owners of a module of copies. */
static bool is_owner(const struct module *copies, const struct module *module)
{
	const struct module_use *use;
	bool found = false;

	mutex_lock(kernlane_module_mutex);
	list_for_each_entry(use, &copies->target_list, target_list)
		found |= use->target == module;
	mutex_unlock(kernlane_module_mutex);
	return found;
}

/* Whether a file holds a module: a program has read it, and works on it. */
static bool is_held(const struct module *module)
{
	const struct module_use *use;
	bool found = false;

	mutex_lock(kernlane_module_mutex);
	list_for_each_entry(use, &module->source_list, source_list)
		found |= use->source == THIS_MODULE;
	mutex_unlock(kernlane_module_mutex);
	return found;
}

/*
 * Enters a module of copies as a user of an owner. The kernel takes it out again
 * when it frees the module, or fails to load it (module_unload_free() in
 * kernel/module/main.c): it puts the reference, and frees @use.
 */
static int add_owner(struct module *copies, struct module *owner)
{
	struct module_use *use = kzalloc(sizeof(*use), GFP_KERNEL);
	int err = -ENOMEM;

	if (use) {
		use->source = copies;
		use->target = owner;
		mutex_lock(kernlane_module_mutex);
		err = owner->state == MODULE_STATE_LIVE ? 0 : -ENOENT;
		if (!err) {
			list_add(&use->source_list, &owner->source_list);
			list_add(&use->target_list, &copies->target_list);
		}
		mutex_unlock(kernlane_module_mutex);
	}
	if (err) {
		module_put(owner);
		kfree(use);
	}
	return err;
}

/*
 * Call it while the module of copies is being loaded, before others read it. Without
 * a program that holds the owner, these copies may be of a module that was there
 * before.
 */
int kernlane_keep_owners(struct module *copies)
{
	const struct kernlane_pairs *pairs = kernlane_find_pairs(copies);
	const struct module *last = NULL;
	u64 i;

	for (i = 0; pairs && i < pairs->nr_pairs; i++) {
		unsigned long entry = kernlane_entry_of(&pairs->pairs[i]);
		struct module *owner;
		int err = 0;

		if (kernlane_in_kernel_text(entry) ||
		    (last && has_in_text(last, entry, 1)))
			continue;
		owner = get_module_at(entry);
		if (!owner || !is_held(owner)) {
			pr_err("%s is not loaded: it has a copy of code of a module that no program works on\n",
			       copies->name);
			if (owner)
				module_put(owner);
			return -ENOENT;
		}
		last = owner;
		if (is_owner(copies, owner))
			module_put(owner);
		else
			err = add_owner(copies, owner);
		if (err)
			return err;
	}
	return 0;
}

static int take_owner(struct owner *owner, const struct module *module)
{
	struct kernlane_memory text = kernlane_memory_of(module, KERNLANE_TEXT);
	struct kernlane_tables tables = {
		.keys = module->jump_entries,
		.keys_end = module->jump_entries + module->num_jump_entries,
		.calls = module->static_call_sites,
		.calls_end = module->static_call_sites +
			     module->num_static_call_sites,
	};

	owner->module = module;
	owner->text = text.base;
	owner->text_size = text.size;
	return kernlane_sort_sites(&owner->sites, &tables, text.base,
				   text.base + text.size);
}

/* The owners stay as long as the group's module, to which the group has a reference. */
int kernlane_take_owners(struct group *group, struct opened *opened)
{
	const struct module_use *use;
	unsigned int nr = 0, i;
	int err = 0;

	mutex_lock(kernlane_module_mutex);
	list_for_each_entry(use, &group->module->target_list, target_list)
		nr++;
	mutex_unlock(kernlane_module_mutex);
	if (!nr)
		return 0;
	group->owners = kcalloc(nr, sizeof(*group->owners), GFP_KERNEL);
	if (!group->owners)
		return -ENOMEM;
	/* Only loading and freeing a module change what it uses. */
	mutex_lock(kernlane_module_mutex);
	list_for_each_entry(use, &group->module->target_list, target_list)
		group->owners[group->nr_owners++].module = use->target;
	mutex_unlock(kernlane_module_mutex);
	mutex_lock(&opened->mutex);
	for (i = 0; i < nr; i++)
		if (!holds(opened, group->owners[i].module))
			err = -EPERM;
	mutex_unlock(&opened->mutex);
	for (i = 0; i < nr && !err; i++)
		err = take_owner(&group->owners[i], group->owners[i].module);
	return err;
}

void kernlane_free_owners(struct group *group)
{
	unsigned int i;

	for (i = 0; i < group->nr_owners; i++)
		kvfree(group->owners[i].sites.at);
	kfree(group->owners);
}

/* The owner with a branch's bytes at @addr in its text, or NULL. */
static const struct owner *owner_at(const struct group *group,
				    unsigned long addr)
{
	unsigned int i;

	for (i = 0; i < group->nr_owners; i++) {
		const struct owner *owner = &group->owners[i];

		if (addr >= owner->text && owner->text_size >= JUMP_SIZE &&
		    addr - owner->text <= owner->text_size - JUMP_SIZE)
			return owner;
	}
	return NULL;
}

bool kernlane_in_text(const struct group *group, unsigned long addr)
{
	return kernlane_in_kernel_text(addr) || owner_at(group, addr);
}

const struct sites *kernlane_sites_at(const struct group *group,
				      unsigned long addr)
{
	const struct owner *owner = owner_at(group, addr);

	return owner ? &owner->sites : NULL;
}

const struct module *kernlane_owner_at(const struct group *group,
				       unsigned long addr)
{
	const struct owner *owner = owner_at(group, addr);

	return owner ? owner->module : NULL;
}

static bool overlaps(unsigned long start, unsigned long end, const void *from,
		     unsigned long size)
{
	return start < (unsigned long)from + size && end > (unsigned long)from;
}

bool kernlane_is_apart_in(const struct group *group, unsigned long start,
			  unsigned long end)
{
	const struct owner *owner = owner_at(group, start);
	const struct module *module;

	if (!owner)
		return kernlane_is_apart(start, end);
	module = owner->module;
	return overlaps(start, end, module->noinstr_text_start,
			module->noinstr_text_size) ||
	       overlaps(start, end, module->kprobes_text_start,
			module->kprobes_text_size);
}
