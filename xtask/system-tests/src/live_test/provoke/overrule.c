// SPDX-License-Identifier: GPL-2.0-or-later
/* A livepatch: /proc/cmdline says something else, from a while after it comes. */
#include <linux/delay.h>
#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/seq_file.h>

static int overrule_show(struct seq_file *seq, void *unused)
{
	seq_puts(seq, "overruled\n");
	return 0;
}

static struct klp_func functions[] = {
	{ .old_name = "cmdline_proc_show", .new_func = overrule_show },
	{}
};

static struct klp_object objects[] = { { .funcs = functions }, {} };

static struct klp_patch patch = { .mod = THIS_MODULE, .objs = objects };

static unsigned int delay;
module_param(delay, uint, 0);
MODULE_PARM_DESC(delay, "milliseconds before the patch is switched on");

static int __init overrule_init(void)
{
	msleep(delay);
	return klp_enable_patch(&patch);
}

/* Only when the patch is switched off. */
static void __exit overrule_exit(void)
{
}

module_init(overrule_init);
module_exit(overrule_exit);

MODULE_DESCRIPTION("A livepatch of cmdline_proc_show()");
MODULE_LICENSE("GPL");
MODULE_INFO(livepatch, "Y");
