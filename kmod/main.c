// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Diverts functions of the running kernel to copies of them in a module, and
 * back again.
 *
 * Tasks enter a copy in two ways. The first is a jump in the original, written
 * just behind the function tracer's site, so that tracers, kprobes and BPF
 * programs attached to the function keep working. The second is calls in the
 * kernel that go to the copy. While a tracer is attached to a function, these
 * calls go to the original's entry again. A livepatch is loaded only after all
 * groups have been undone, since it must replace the copies too.
 *
 * A copy may have another function's code in place of a call. When a tracer is
 * attached to that function, such copies give way: they are not entered any more.
 *
 * The order of steps keeps every moment consistent:
 *
 * install: compare all bytes; divert all entries by ftrace; wait until no task
 *	can be inside the five bytes; write the jumps, then the calls; end the
 *	diversion.
 * undo: compare all bytes; restore the calls, then the entries; wait until no
 *	task is in a copy. Until then the module stays.
 *
 * Bytes are compared and written a batch at a time, so that others who write to
 * the kernel's text need not wait long.
 */
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>

#include "group.h"
#include "symbols.h"

/* How often a removal by force looks whether the module is still held. */
#define HELD_PAUSE_MS	50

/*
 * On an error with @entered set, the group is in the list: a task may be in a
 * copy. It is leaving, or installed if the kernel's text could not be restored.
 */
static int install(struct request *request, struct opened *opened,
		   bool *entered)
{
	struct kernlane_group *from = &request->group;
	struct group *group;
	int err;

	if (kernlane_find_group(from->module, from->number))
		return -EEXIST;
	/* The livepatch would not reach the copies. */
	if (kernlane_livepatch_is_coming())
		return -EBUSY;
	group = kernlane_take_group(request, opened);
	if (IS_ERR(group))
		return PTR_ERR(group);
	err = kernlane_write_group(group, &from->bad_address);
	if (err && !group->entered) {
		kernlane_free_group(group);
		return err;
	}
	/* Each group in the list has a reference. */
	__module_get(THIS_MODULE);
	group->since = ktime_get_real_seconds();
	if (err && !kernlane_is_written(group))
		kernlane_start_leaving(group);
	else
		group->state = GROUP_INSTALLED;
	list_add_tail(&group->list, &kernlane_groups);
	kernlane_start_watching();
	*entered = err;
	return err;
}

static long do_install(struct opened *opened,
		       struct kernlane_group __user *user)
{
	struct request request;
	bool entered = false;
	u64 bad_address;
	int err, undone;

	err = kernlane_read_request(&request, user);
	if (err)
		return err;
	if (mutex_lock_killable(&kernlane_groups_mutex)) {
		kernlane_free_request(&request);
		return -EINTR;
	}
	err = install(&request, opened, &entered);
	mutex_unlock(&kernlane_groups_mutex);
	kernlane_free_request(&request);
	/* The caller may remove the group's module once it is released. */
	if (entered) {
		undone = kernlane_undo(&request.group, &bad_address);
		if (undone == -EBUSY || undone == -EADDRINUSE) {
			/* A kprobe, say, came to a jump meanwhile. */
			request.group.bad_address = bad_address;
			err = -EUCLEAN;
		}
	}
	if (err && put_user(request.group.bad_address, &user->bad_address))
		return -EFAULT;
	return err;
}

static long do_undo(struct kernlane_group __user *user)
{
	struct kernlane_group from;
	int err;

	if (copy_from_user(&from, user, sizeof(from)))
		return -EFAULT;
	if (!kernlane_is_name(from.module))
		return -EINVAL;
	from.bad_address = 0;
	err = kernlane_undo(&from, &from.bad_address);
	if (err && put_user(from.bad_address, &user->bad_address))
		return -EFAULT;
	return err;
}

static struct opened *opened_of(const struct file *file)
{
	return ((struct seq_file *)file->private_data)->private;
}

static long kernlane_ioctl(struct file *file, unsigned int command,
			   unsigned long argument)
{
	struct opened *opened = opened_of(file);

	if (!kernlane_is_allowed())
		return -EPERM;
	switch (command) {
	case KERNLANE_INSTALL:
		return do_install(opened, (void __user *)argument);
	case KERNLANE_UNDO:
		return do_undo((void __user *)argument);
	case KERNLANE_COUNTERS:
		return kernlane_read_counters((void __user *)argument);
	case KERNLANE_TIME:
		return kernlane_measure_times(opened, (void __user *)argument);
	case KERNLANE_HOLD:
		return kernlane_hold(opened, (void __user *)argument);
	case KERNLANE_LARGE_TEXT:
		if (argument > 1)
			return -EINVAL;
		if (argument)
			return kernlane_start_placing(file);
		kernlane_stop_placing(file);
		return 0;
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
		   "group %s %s since %lld functions %u calls %u direct %u poke_us %lld total_us %lld",
		   group->name,
		   group->state == GROUP_INSTALLED ? "installed" : "leaving",
		   group->since, group->nr_functions, group->nr_calls, direct,
		   group->poke_us, group->total_us);
	seq_printf(seq, " page %lu number %*phN\n",
		   kernlane_page_size(group->text), KERNLANE_NUMBER,
		   group->number);
	for (i = 0; i < group->nr_functions; i++) {
		const struct function *function = &group->functions[i];

		seq_printf(seq, "%s %lx %lx %s\n",
			   function->carried ? "carried" : "function",
			   function->entry, function->copy,
			   function->away     ? "away" :
			   function->at_entry ? "traced" :
						"direct");
	}
}

static int show(struct seq_file *seq, void *unused)
{
	const struct group *group;

	/* A file that was opened by root may have been handed on. */
	if (!kernlane_is_allowed())
		return -EPERM;
	if (mutex_lock_killable(&kernlane_groups_mutex))
		return -EINTR;
	seq_printf(seq, "kernlane %d\n", KERNLANE_VERSION);
	seq_printf(seq, "page %lu\n", kernlane_most_page());
	list_for_each_entry(group, &kernlane_groups, list)
		show_group(seq, group);
	mutex_unlock(&kernlane_groups_mutex);
	return 0;
}

static int kernlane_open(struct inode *inode, struct file *file)
{
	struct opened *opened;
	int err = -ENOMEM;

	/* misc_open() left the device there; single_open() needs it empty. */
	file->private_data = NULL;
	/* A program with more rights may be given what its caller opened. */
	if (!kernlane_is_allowed())
		return -EPERM;
	if (!kernlane_keep_this())
		return -ENODEV;
	opened = kernlane_make_opened();
	if (opened)
		err = single_open(file, show, opened);
	if (err) {
		kfree(opened);
		kernlane_let_this_go();
	}
	return err;
}

static int kernlane_release(struct inode *inode, struct file *file)
{
	kernlane_stop_placing(file);
	kernlane_free_opened(opened_of(file));
	kernlane_let_this_go();
	return single_release(inode, file);
}

static const struct file_operations kernlane_fops = {
	.owner = THIS_MODULE,
	.open = kernlane_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = kernlane_release,
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
		goto fail;
	err = kernlane_undo_init();
	if (err)
		goto fail;
	err = misc_register(&kernlane_device);
	if (!err)
		return 0;
	kernlane_undo_exit();
fail:
	kernlane_forget_reserved();
	return err;
}

/*
 * Each group and each open file keeps the module, also from `rmmod -f`. A task
 * that has just closed a file or released a group may still be in its code.
 */
static void __exit kernlane_exit(void)
{
	misc_deregister(&kernlane_device);
	while (module_refcount(THIS_MODULE) > 0)
		msleep(HELD_PAUSE_MS);
	kernlane_undo_exit();
	kernlane_forget_reserved();
}

module_init(kernlane_init);
module_exit(kernlane_exit);

MODULE_DESCRIPTION("Diverts functions of the kernel to copies laid out anew");
MODULE_LICENSE("GPL");
