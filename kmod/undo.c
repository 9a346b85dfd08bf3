// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Undoes groups on request and when a livepatch is loaded. Releases the module
 * of an undone group when no task can be in its copies. Also follows tracers
 * that come and go at installed groups.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/livepatch.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "group.h"
#include "symbols.h"

/* The interval between two checks for tracers. */
#define WATCH_INTERVAL	(HZ / 5)

/* The first and the longest pause between two checks of tasks. */
#define FIRST_PAUSE	(HZ / 5)
#define LONGEST_PAUSE	(10 * HZ)

/* How long an undo waits for tasks to leave, and its pauses between checks. */
#define LEAVE_TIME	(5 * HZ)
#define LEAVE_PAUSE_MS	50
#define LONGEST_LEAVE_PAUSE_MS	800

/* A livepatch that is being loaded. Meanwhile no group is installed. */
struct livepatch {
	struct list_head list;
	const struct module *module;
};

/* Guarded by kernlane_groups_mutex. */
static LIST_HEAD(livepatches);

bool kernlane_livepatch_is_coming(void)
{
	return !list_empty(&livepatches);
}

/* Releases a group whose copies no task can be in. */
static void release(struct group *group)
{
	list_del(&group->list);
	kernlane_free_group(group);
	module_put(THIS_MODULE);
}

/* The kernel's text is restored; a task may still be in a copy. */
void kernlane_start_leaving(struct group *group)
{
	group->state = GROUP_LEAVING;
	group->pause = FIRST_PAUSE;
	group->next_look = jiffies + group->pause;
}

/* Returns -EAGAIN if the module has to stay for now. */
static int undo_once(struct group *group, u64 *bad_address)
{
	*bad_address = 0;
	if (group->state == GROUP_INSTALLED) {
		int err = kernlane_restore_group(group, bad_address);

		if (err)
			return err;
		kernlane_start_leaving(group);
	}
	if (!kernlane_nobody_inside(group))
		return -EAGAIN;
	release(group);
	return 0;
}

/* The pause before the next try, twice as long each time. */
static unsigned int longer(unsigned int pause_ms)
{
	return min_t(unsigned int, 2 * pause_ms, LONGEST_LEAVE_PAUSE_MS);
}

/*
 * Undoes the group of that name and number, and waits for a while, or until a
 * signal comes, for tasks to leave it. Returns -EAGAIN if the module has to stay
 * for now, at once if the caller itself came through a copy: of ioctl(), for
 * example. The next call goes through the original.
 */
int kernlane_undo(const struct kernlane_group *of, u64 *bad_address)
{
	unsigned long end = jiffies + LEAVE_TIME;
	unsigned int pause = LEAVE_PAUSE_MS;
	u64 id = 0;

	for (;; pause = longer(pause)) {
		struct group *group;
		bool by_itself = false;
		int err;

		if (mutex_lock_killable(&kernlane_groups_mutex))
			return id ? -EAGAIN : -EINTR;
		group = kernlane_find_group(of->module, of->number);
		if (!group || (id && group->id != id)) {
			err = id ? 0 : -ENOENT;
		} else {
			id = group->id;
			err = undo_once(group, bad_address);
			by_itself = err == -EAGAIN &&
				    kernlane_caller_is_inside(group);
		}
		mutex_unlock(&kernlane_groups_mutex);
		if (err != -EAGAIN || by_itself || time_after(jiffies, end) ||
		    msleep_interruptible(pause))
			return err;
	}
}

static void watch(struct work_struct *work);
static DECLARE_DELAYED_WORK(watch_work, watch);

/* Checks a leaving group if that is due. Returns the time to the next check. */
static unsigned long watch_leaving(struct group *group)
{
	if (time_before(jiffies, group->next_look))
		return group->next_look - jiffies;
	if (kernlane_nobody_inside(group)) {
		release(group);
		return LONGEST_PAUSE;
	}
	group->pause = min_t(unsigned long, 2 * group->pause, LONGEST_PAUSE);
	group->next_look = jiffies + group->pause;
	return group->pause;
}

/* Follows tracers that come and go, and releases groups that have left. */
static void watch(struct work_struct *work)
{
	unsigned long pause = LONGEST_PAUSE;
	struct group *group, *next;

	mutex_lock(&kernlane_groups_mutex);
	list_for_each_entry_safe(group, next, &kernlane_groups, list) {
		if (group->state == GROUP_LEAVING) {
			pause = min(pause, watch_leaving(group));
		} else {
			kernlane_follow_tracers(group);
			pause = WATCH_INTERVAL;
		}
	}
	if (!list_empty(&kernlane_groups))
		schedule_delayed_work(&watch_work, pause);
	mutex_unlock(&kernlane_groups_mutex);
}

/*
 * Undoes all groups. Returns -EAGAIN if a task may be in a copy, and another
 * error if a group cannot be undone.
 */
static int undo_all(const char *livepatch)
{
	struct group *group, *next;
	u64 bad_address;
	int worst = 0;

	list_for_each_entry_safe(group, next, &kernlane_groups, list) {
		bool installed = group->state == GROUP_INSTALLED;
		int err = undo_once(group, &bad_address);

		if (err && err != -EAGAIN) {
			pr_warn("the livepatch %s is refused: at %pS another tool (a kprobe, say) "
				"keeps %s from being undone; remove it, and load the livepatch "
				"again\n",
				livepatch, (void *)bad_address, group->name);
			worst = err;
		} else {
			if (installed)
				pr_info("the livepatch %s comes: a group was undone\n",
					livepatch);
			worst = worst ?: err;
		}
	}
	return worst;
}

static void forget_livepatch(const struct module *module)
{
	struct livepatch *livepatch, *next;

	list_for_each_entry_safe(livepatch, next, &livepatches, list) {
		if (livepatch->module != module)
			continue;
		list_del(&livepatch->list);
		kfree(livepatch);
	}
}

/* Whether waiting here for tasks to leave would be waiting for itself. */
static bool caller_is_inside(void)
{
	const struct group *group;

	list_for_each_entry(group, &kernlane_groups, list)
		if (kernlane_caller_is_inside(group))
			return true;
	return false;
}

/*
 * A livepatch changes what functions do, so copies of the old functions must be
 * gone. Tasks must have left them too: the livepatch would not find such tasks.
 * What loads a livepatch is never replaced (refuse.c): the caller is outside.
 */
static int let_livepatch_in(const struct module *module)
{
	struct livepatch *livepatch = kzalloc(sizeof(*livepatch), GFP_KERNEL);
	unsigned long end = jiffies + LEAVE_TIME;
	unsigned int pause = LEAVE_PAUSE_MS;
	int err;

	if (!livepatch)
		return -ENOMEM;
	livepatch->module = module;
	mutex_lock(&kernlane_groups_mutex);
	list_add(&livepatch->list, &livepatches);
	while ((err = undo_all(module->name)) == -EAGAIN &&
	       !caller_is_inside() && time_before(jiffies, end)) {
		mutex_unlock(&kernlane_groups_mutex);
		msleep(pause);
		pause = longer(pause);
		mutex_lock(&kernlane_groups_mutex);
	}
	if (err == -EAGAIN)
		pr_warn("the livepatch %s is refused: every byte is restored, but a task may "
			"be in a copy; load the livepatch again when `kernlane live status` "
			"shows no group\n",
			module->name);
	if (err)
		forget_livepatch(module);
	mutex_unlock(&kernlane_groups_mutex);
	return err ? -EBUSY : 0;
}

/* A module with a group is never removed (keep.c): nothing to do for that event. */
static int on_module(struct notifier_block *block, unsigned long event,
		     void *data)
{
	if (event == MODULE_STATE_COMING) {
		int err = kernlane_keep_owners(data);

		if (err)
			return notifier_from_errno(err);
	}
	if (!is_livepatch_module(data))
		return NOTIFY_DONE;
	if (event == MODULE_STATE_COMING)
		return notifier_from_errno(let_livepatch_in(data));
	mutex_lock(&kernlane_groups_mutex);
	forget_livepatch(data);
	mutex_unlock(&kernlane_groups_mutex);
	return NOTIFY_OK;
}

/*
 * Before static keys and static calls (kernel/jump_label.c: priority 1), which
 * follow pointers of a module of copies into its owners.
 */
static struct notifier_block module_notifier = {
	.notifier_call = on_module,
	.priority = 2,
};

void kernlane_start_watching(void)
{
	mod_delayed_work(kernlane_wq, &watch_work, WATCH_INTERVAL);
}

int kernlane_undo_init(void)
{
	return register_module_notifier(&module_notifier);
}

/* Runs without groups only. */
void kernlane_undo_exit(void)
{
	struct livepatch *livepatch, *next;

	unregister_module_notifier(&module_notifier);
	cancel_delayed_work_sync(&watch_work);
	list_for_each_entry_safe(livepatch, next, &livepatches, list)
		kfree(livepatch);
}
