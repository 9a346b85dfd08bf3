// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Diverts functions of the running kernel to copies of them in a module, and
 * back again.
 *
 * A copy is entered by a jump that is written just behind the function
 * tracer's site of the original, so that tracers, kprobes and BPF programs
 * attached to the function keep working, and by calls in the kernel that are
 * aimed at it. While a tracer is attached to a function, the calls go to the
 * original's entry again. A livepatch is let in only when all groups have been
 * undone: it must win.
 *
 * The order of steps keeps every moment consistent:
 *
 * install: compare all bytes; divert all entries by ftrace; wait until no task
 *	can be inside the five bytes; write the jumps, then the calls; end the
 *	diversion.
 * undo: compare all bytes; restore the calls, then the entries; wait until no
 *	task is in a copy. As long as one may be, the module is held.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>

#include "group.h"
#include "symbols.h"

static int install(struct kernlane_group *from)
{
	struct group *group;
	int err;

	if (kernlane_find_group(from->module))
		return -EEXIST;
	/* It would run beside copies of what it changes. */
	if (kernlane_livepatch_is_coming())
		return -EBUSY;
	group = kernlane_take_group(from);
	if (IS_ERR(group))
		return PTR_ERR(group);
	err = kernlane_write_group(group, &from->bad_address);
	if (err) {
		kernlane_free_group(group);
		return err;
	}
	/* As long as there is a group. */
	__module_get(THIS_MODULE);
	group->since = ktime_get_real_seconds();
	group->state = GROUP_INSTALLED;
	list_add_tail(&group->list, &kernlane_groups);
	kernlane_start_watching();
	return 0;
}

/* A name is never cut short: the rest might be that of another group. */
static bool is_name(const char *name)
{
	return name[0] && strnlen(name, KERNLANE_NAME) < KERNLANE_NAME;
}

static long do_install(struct kernlane_group __user *user)
{
	struct kernlane_group from;
	int err;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	if (!is_name(from.module))
		return -EINVAL;
	from.bad_address = 0;
	if (mutex_lock_killable(&kernlane_groups_mutex))
		return -EINTR;
	err = install(&from);
	mutex_unlock(&kernlane_groups_mutex);
	if (err && put_user(from.bad_address, &user->bad_address))
		return -EFAULT;
	return err;
}

static long do_undo(struct kernlane_group __user *user)
{
	struct kernlane_group from;
	int err;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	if (!is_name(from.module))
		return -EINVAL;
	from.bad_address = 0;
	err = kernlane_undo(from.module, &from.bad_address);
	if (err && put_user(from.bad_address, &user->bad_address))
		return -EFAULT;
	return err;
}

static long do_counters(struct kernlane_counters __user *user)
{
	struct kernlane_counters from;
	struct group *group;
	u64 *sums = NULL;
	unsigned int i;
	long err = 0;
	int cpu;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	from.module[KERNLANE_NAME - 1] = 0;
	mutex_lock(&kernlane_groups_mutex);
	group = kernlane_find_group(from.module);
	if (!group)
		err = -ENOENT;
	else if (!from.nr || from.nr > group->module->percpu_size / sizeof(u64))
		err = -EINVAL;
	if (err)
		goto out;
	sums = kvcalloc(from.nr, sizeof(*sums), GFP_KERNEL);
	if (!sums) {
		err = -ENOMEM;
		goto out;
	}
	for_each_possible_cpu(cpu) {
		const u64 *counters = per_cpu_ptr(group->module->percpu, cpu);

		for (i = 0; i < from.nr; i++)
			sums[i] += READ_ONCE(counters[i]);
	}
out:
	mutex_unlock(&kernlane_groups_mutex);
	if (!err && copy_to_user(u64_to_user_ptr(from.sums), sums,
				 array_size(from.nr, sizeof(*sums))))
		err = -EFAULT;
	kvfree(sums);
	return err;
}

static long kernlane_ioctl(struct file *file, unsigned int command,
			   unsigned long argument)
{
	if (!capable(CAP_SYS_ADMIN) || !capable(CAP_SYS_MODULE))
		return -EPERM;
	switch (command) {
	case KERNLANE_INSTALL:
		return do_install((void __user *)argument);
	case KERNLANE_UNDO:
		return do_undo((void __user *)argument);
	case KERNLANE_COUNTERS:
		return do_counters((void __user *)argument);
	case KERNLANE_TIME:
		return kernlane_measure_times((void __user *)argument);
	default:
		return -ENOTTY;
	}
}

static void show_group(struct seq_file *seq, const struct group *group)
{
	unsigned int i, direct = 0;

	for (i = 0; i < group->nr_calls; i++)
		direct += group->calls[i].direct;
	seq_printf(seq,
		   "group %s %s since %lld functions %u calls %u direct %u poke_us %lld total_us %lld\n",
		   group->name,
		   group->state == GROUP_INSTALLED ? "installed" : "leaving",
		   group->since, group->nr_functions, group->nr_calls, direct,
		   group->poke_us, group->total_us);
	for (i = 0; i < group->nr_functions; i++) {
		const struct function *function = &group->functions[i];

		seq_printf(seq, "function %lx %lx %s\n", function->entry,
			   function->copy,
			   function->traced ? "traced" : "direct");
	}
}

static int show(struct seq_file *seq, void *unused)
{
	const struct group *group;

	if (mutex_lock_killable(&kernlane_groups_mutex))
		return -EINTR;
	seq_printf(seq, "kernlane %d\n", KERNLANE_VERSION);
	list_for_each_entry(group, &kernlane_groups, list)
		show_group(seq, group);
	mutex_unlock(&kernlane_groups_mutex);
	return 0;
}

static int kernlane_open(struct inode *inode, struct file *file)
{
	/* Where misc_open() left the device. */
	file->private_data = NULL;
	return single_open(file, show, NULL);
}

static const struct file_operations kernlane_fops = {
	.owner = THIS_MODULE,
	.open = kernlane_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
	.unlocked_ioctl = kernlane_ioctl,
};

static struct miscdevice kernlane_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "kernlane",
	.fops = &kernlane_fops,
	.mode = 0600,
};

static int __init kernlane_init(void)
{
	int err = kernlane_find_symbols();

	if (err)
		return err;
	err = kernlane_undo_init();
	if (err)
		return err;
	err = misc_register(&kernlane_device);
	if (err)
		kernlane_undo_exit();
	return err;
}

/* Only without groups: each holds the module. */
static void __exit kernlane_exit(void)
{
	misc_deregister(&kernlane_device);
	kernlane_undo_exit();
}

module_init(kernlane_init);
module_exit(kernlane_exit);

MODULE_DESCRIPTION("Diverts functions of the kernel to copies laid out anew");
MODULE_LICENSE("GPL");
