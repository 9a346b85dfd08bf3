// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Keeps modules from being removed, also by force.
 *
 * `rmmod -f` does not ask for references, and a module that is on its way out
 * cannot be stopped any more: whoever would have to wait then may itself be in
 * a copy. But delete_module() (kernel/module/main.c) removes no module that
 * another module uses, by force or not. So a module with copies, and this one
 * while it is needed, are entered as used by this module, under the same lock
 * under which the kernel asks.
 */
#include <linux/module.h>
#include <linux/mutex.h>

#include "group.h"
#include "symbols.h"

/* Guarded by the kernel's module_mutex. */
static struct module_use of_this;
static unsigned int keepers_of_this;

static void start_use(struct module_use *use, struct module *module)
{
	use->source = THIS_MODULE;
	use->target = module;
	list_add(&use->source_list, &module->source_list);
	list_add(&use->target_list, &THIS_MODULE->target_list);
}

static void end_use(struct module_use *use)
{
	list_del(&use->source_list);
	list_del(&use->target_list);
	use->target = NULL;
}

/*
 * Until kernlane_let_go(), the module cannot be removed. The caller has a
 * reference to it. Returns false for one that is not live: it may be on its way
 * out, or be freed because its init fails.
 */
bool kernlane_keep(struct module_use *use, struct module *module)
{
	bool live;

	mutex_lock(kernlane_module_mutex);
	live = module->state == MODULE_STATE_LIVE;
	if (live)
		start_use(use, module);
	mutex_unlock(kernlane_module_mutex);
	return live;
}

/* Call it after the reference was put; the module may be gone afterwards. */
void kernlane_let_go(struct module_use *use)
{
	if (!use->target)
		return;
	mutex_lock(kernlane_module_mutex);
	end_use(use);
	mutex_unlock(kernlane_module_mutex);
}

/* Likewise for this module, as often as it is called. */
bool kernlane_keep_this(void)
{
	bool stays;

	mutex_lock(kernlane_module_mutex);
	stays = THIS_MODULE->state != MODULE_STATE_GOING;
	if (stays && !keepers_of_this++)
		start_use(&of_this, THIS_MODULE);
	mutex_unlock(kernlane_module_mutex);
	return stays;
}

void kernlane_let_this_go(void)
{
	mutex_lock(kernlane_module_mutex);
	if (!--keepers_of_this)
		end_use(&of_this);
	mutex_unlock(kernlane_module_mutex);
}
