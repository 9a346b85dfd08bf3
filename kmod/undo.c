// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Takes groups back: at once when asked to or when a livepatch comes, and lets
 * a module go when no task can be inside of it. Follows tracers meanwhile.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/livepatch.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/stop_machine.h>

#include "group.h"
#include "symbols.h"

/* How often traced functions and leaving modules are looked at. */
#define WATCH_INTERVAL	(HZ / 5)

/* How long an undo waits for tasks to leave the copies. */
#define LEAVE_TRIES	50
#define LEAVE_PAUSE_MS	100

#define STACK_DEPTH	128

/* How many stacks are walked while all CPUs are stopped, each time. */
#define STACKS_AT_ONCE	16

/* The tasks there were at some moment, held. */
struct tasks {
	struct task_struct **tasks;
	unsigned int nr;
};

struct stack_check {
	const struct group *group;
	struct task_struct **tasks;
	unsigned int nr;
	bool clean;
};

static void put_tasks(struct tasks *tasks)
{
	while (tasks->nr)
		put_task_struct(tasks->tasks[--tasks->nr]);
	kvfree(tasks->tasks);
}

static int get_tasks(struct tasks *tasks)
{
	struct task_struct *process, *task;
	unsigned int room = 0;

	rcu_read_lock();
	for_each_process_thread(process, task)
		room++;
	rcu_read_unlock();
	/* Some may come meanwhile; with many more another try is due. */
	room += room / 8 + STACKS_AT_ONCE;
	tasks->nr = 0;
	tasks->tasks = kvmalloc_array(room, sizeof(*tasks->tasks), GFP_KERNEL);
	if (!tasks->tasks)
		return -ENOMEM;
	rcu_read_lock();
	for_each_process_thread(process, task) {
		if (tasks->nr == room) {
			rcu_read_unlock();
			put_tasks(tasks);
			return -EAGAIN;
		}
		tasks->tasks[tasks->nr++] = get_task_struct(task);
	}
	rcu_read_unlock();
	return 0;
}

/*
 * Runs with all CPUs stopped: whoever is on a CPU is one of the threads that
 * stop it. A stack that cannot be relied upon may lead through a copy.
 */
static int check_stacks(void *data)
{
	static unsigned long entries[STACK_DEPTH];
	struct stack_check *check = data;
	unsigned int n;
	int i, nr;

	check->clean = false;
	for (n = 0; n < check->nr; n++) {
		struct task_struct *task = check->tasks[n];

		if (READ_ONCE(task->on_cpu))
			continue;
		nr = static_call(stack_of)(task, entries, STACK_DEPTH);
		if (nr < 0 || nr == STACK_DEPTH)
			return 0;
		for (i = 0; i < nr; i++)
			if (in_module_text(check->group, entries[i]))
				return 0;
	}
	check->clean = true;
	return 0;
}

/*
 * Nothing leads into the copies any more: who is outside of them stays there,
 * and new tasks begin there. So the tasks are looked at a few at a time, and
 * how long the CPUs stop does not depend on how many there are.
 */
static bool nobody_inside(struct group *group)
{
	struct stack_check check = { .group = group, .clean = true };
	struct tasks tasks;
	unsigned int n;

	synchronize_rcu_tasks();
	synchronize_rcu_tasks_rude();
	if (get_tasks(&tasks))
		return false;
	for (n = 0; n < tasks.nr && check.clean; n += check.nr) {
		check.tasks = tasks.tasks + n;
		check.nr = min_t(unsigned int, tasks.nr - n, STACKS_AT_ONCE);
		if (stop_machine(check_stacks, &check, NULL))
			check.clean = false;
	}
	put_tasks(&tasks);
	return check.clean;
}

/* Lets a module go that nobody is in. */
static void release(struct group *group)
{
	list_del(&group->list);
	kernlane_free_group(group);
	module_put(THIS_MODULE);
}

static int start_undo(struct group *group, u64 *bad_address)
{
	mutex_lock(kernlane_text_mutex);
	*bad_address = kernlane_find_changed(group);
	if (*bad_address) {
		mutex_unlock(kernlane_text_mutex);
		return -EBUSY;
	}
	kernlane_write_calls(group, true);
	kernlane_write_entries(group, false);
	mutex_unlock(kernlane_text_mutex);
	group->state = GROUP_LEAVING;
	return 0;
}

/* Returns -EAGAIN if the module has to stay for now. */
int kernlane_undo(struct group *group, u64 *bad_address)
{
	int err, tries;

	*bad_address = 0;
	if (group->state == GROUP_INSTALLED) {
		err = start_undo(group, bad_address);
		if (err)
			return err;
	}
	for (tries = 0; tries < LEAVE_TRIES; tries++) {
		if (nobody_inside(group)) {
			release(group);
			return 0;
		}
		if (fatal_signal_pending(current))
			break;
		msleep(LEAVE_PAUSE_MS);
	}
	return -EAGAIN;
}

static void watch(struct work_struct *work);
static DECLARE_DELAYED_WORK(watch_work, watch);

/* Follows tracers that come and go, and lets modules leave. */
static void watch(struct work_struct *work)
{
	struct group *group, *next;
	unsigned int i;

	mutex_lock(&kernlane_groups_mutex);
	list_for_each_entry_safe(group, next, &kernlane_groups, list) {
		bool changed = false;

		if (group->state == GROUP_LEAVING) {
			if (nobody_inside(group))
				release(group);
			continue;
		}
		mutex_lock(kernlane_text_mutex);
		for (i = 0; i < group->nr_functions; i++) {
			struct function *function = &group->functions[i];
			bool traced = kernlane_is_traced(function);

			changed |= traced != function->traced;
			function->traced = traced;
		}
		if (changed && !kernlane_find_changed(group))
			kernlane_write_calls(group, false);
		mutex_unlock(kernlane_text_mutex);
	}
	if (!list_empty(&kernlane_groups))
		schedule_delayed_work(&watch_work, WATCH_INTERVAL);
	mutex_unlock(&kernlane_groups_mutex);
}

/* A livepatch changes what functions do; copies of the old must be gone. */
static int on_module(struct notifier_block *block, unsigned long event,
		     void *data)
{
	struct group *group, *next;
	u64 bad_address;
	int err;

	if (event != MODULE_STATE_COMING || !is_livepatch_module(data))
		return NOTIFY_DONE;
	mutex_lock(&kernlane_groups_mutex);
	list_for_each_entry_safe(group, next, &kernlane_groups, list) {
		err = kernlane_undo(group, &bad_address);
		if (err)
			pr_warn("a livepatch is loaded, a group cannot be undone completely: %d\n",
				err);
		else
			pr_info("a livepatch is loaded: a group was undone\n");
	}
	mutex_unlock(&kernlane_groups_mutex);
	return NOTIFY_OK;
}

static struct notifier_block module_notifier = { .notifier_call = on_module };

void kernlane_start_watching(void)
{
	schedule_delayed_work(&watch_work, WATCH_INTERVAL);
}

int kernlane_undo_init(void)
{
	return register_module_notifier(&module_notifier);
}

/* Only without groups. */
void kernlane_undo_exit(void)
{
	unregister_module_notifier(&module_notifier);
	cancel_delayed_work_sync(&watch_work);
}
