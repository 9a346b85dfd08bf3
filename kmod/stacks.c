// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Finds the tasks that may be in the copies of a group that was undone.
 *
 * Nothing leads into the copies any more: a task that is outside stays outside,
 * and new tasks begin outside. So every task is checked once, and later only
 * those that may have been inside.
 */
#include <linux/cpu.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/stop_machine.h>

#include "group.h"
#include "symbols.h"

#define STACK_DEPTH	128

/* The most stacks that are walked each time all CPUs are stopped. */
#define STACKS_AT_ONCE	16

enum place {
	OUTSIDE,
	INSIDE,
	/* On a CPU: its stack cannot be walked now. */
	RUNNING,
};

/* Tasks that are checked while all CPUs are stopped. */
struct batch {
	const struct group *group;
	struct task_struct **tasks;
	unsigned int nr;
	enum place places[STACKS_AT_ONCE];
};

void kernlane_forget_tasks(struct tasks *tasks)
{
	while (tasks->nr)
		put_task_struct(tasks->tasks[--tasks->nr]);
	kvfree(tasks->tasks);
	tasks->tasks = NULL;
}

/* Takes a reference to every task, the idle tasks of the CPUs included. */
static int get_tasks(struct tasks *tasks)
{
	struct task_struct *process, *task;
	unsigned int room = 0;
	int cpu;

	rcu_read_lock();
	for_each_process_thread(process, task)
		room++;
	rcu_read_unlock();
	/* Leave room for new tasks. If they do not fit, the caller tries again. */
	room += room / 8 + STACKS_AT_ONCE + nr_cpu_ids;
	tasks->nr = 0;
	tasks->tasks = kvmalloc_array(room, sizeof(*tasks->tasks), GFP_KERNEL);
	if (!tasks->tasks)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		struct task_struct *idle = static_call(idle_task_of)(cpu);

		/* A CPU without an idle task never comes online. */
		if (idle)
			tasks->tasks[tasks->nr++] = get_task_struct(idle);
	}
	rcu_read_lock();
	for_each_process_thread(process, task) {
		if (tasks->nr == room) {
			rcu_read_unlock();
			kernlane_forget_tasks(tasks);
			return -EAGAIN;
		}
		tasks->tasks[tasks->nr++] = get_task_struct(task);
	}
	rcu_read_unlock();
	return 0;
}

/*
 * The caller makes sure that the task does not begin to run meanwhile. A task
 * whose stack is not reliable counts as inside.
 */
static int find_place(struct task_struct *task, void *data)
{
	/* Used under kernlane_groups_mutex only. */
	static unsigned long entries[STACK_DEPTH];
	const struct group *group = data;
	int i, nr;

	/* When its CPU comes online, it begins with an empty stack. */
	if (is_idle_task(task) && !cpu_online(task_cpu(task)))
		return OUTSIDE;
	if (READ_ONCE(task->on_cpu))
		return RUNNING;
	nr = static_call(stack_of)(task, entries, STACK_DEPTH);
	if (nr < 0 || nr == STACK_DEPTH)
		return INSIDE;
	for (i = 0; i < nr; i++)
		if (in_module_text(group, entries[i], 1))
			return INSIDE;
	return OUTSIDE;
}

/* Runs with all CPUs stopped: only the stopping threads are on a CPU. */
static int find_places(void *data)
{
	struct batch *batch = data;
	unsigned int n;

	for (n = 0; n < batch->nr; n++)
		batch->places[n] = find_place(batch->tasks[n],
					      (void *)batch->group);
	return 0;
}

/*
 * Checks tasks that were running, a batch at a time. So the time for which the
 * CPUs stop does not grow with the number of tasks.
 */
static void look_at_running(struct group *group, struct tasks *running)
{
	struct tasks *inside = &group->inside;
	struct batch batch = { .group = group };
	unsigned int n, i;

	for (n = 0; n < running->nr; n += batch.nr) {
		bool stopped;

		batch.tasks = running->tasks + n;
		batch.nr = min_t(unsigned int, running->nr - n, STACKS_AT_ONCE);
		stopped = !stop_machine(find_places, &batch, NULL);
		for (i = 0; i < batch.nr; i++) {
			if (stopped && batch.places[i] == OUTSIDE)
				put_task_struct(batch.tasks[i]);
			else
				inside->tasks[inside->nr++] = batch.tasks[i];
		}
	}
}

/* Checks the tasks that may be inside, and drops those that are outside. */
static void look_at_tasks(struct group *group)
{
	struct tasks *inside = &group->inside;
	struct tasks running = {};
	unsigned int n, nr = inside->nr;

	running.tasks = kvmalloc_array(nr, sizeof(*running.tasks), GFP_KERNEL);
	if (!running.tasks)
		return;
	inside->nr = 0;
	for (n = 0; n < nr; n++) {
		struct task_struct *task = inside->tasks[n];

		switch (static_call(with_task)(task, find_place, group)) {
		case OUTSIDE:
			put_task_struct(task);
			break;
		case RUNNING:
			running.tasks[running.nr++] = task;
			break;
		default:
			inside->tasks[inside->nr++] = task;
		}
		cond_resched_tasks_rcu_qs();
	}
	look_at_running(group, &running);
	kvfree(running.tasks);
}

/*
 * Whether the calling task itself may be in a copy, after a check. Then it must
 * return before it asks again: waiting here would never end.
 */
bool kernlane_caller_is_inside(const struct group *group)
{
	unsigned int n;

	for (n = 0; n < group->inside.nr; n++)
		if (group->inside.tasks[n] == current)
			return true;
	return false;
}

/* Whether no task can be in a copy. If one may be, call this again later. */
bool kernlane_nobody_inside(struct group *group)
{
	if (group->stuck)
		return false;
	if (!group->looked) {
		/* Wait until no task is in a trampoline that leads to a copy. */
		kernlane_wait_for_tasks();
		if (get_tasks(&group->inside))
			return false;
		group->looked = true;
	}
	if (group->inside.nr)
		look_at_tasks(group);
	if (group->inside.nr)
		return false;
	/*
	 * A task that ends leaves the list of tasks while it still runs in
	 * do_exit(), or in a copy of it. Wait for such tasks.
	 */
	synchronize_rcu_tasks();
	return true;
}
