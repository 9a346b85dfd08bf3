// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Keeps its loader in the kernel for a while, without sleeping: a grace period of RCU for tasks
 * that has begun cannot end until that is over. It cannot be loaded.
 */
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/sched.h>

static unsigned int seconds = 1;
module_param(seconds, uint, 0);
MODULE_PARM_DESC(seconds, "how long");

static int __init occupy_init(void)
{
	unsigned long end = jiffies + seconds * HZ;

	while (time_before(jiffies, end)) {
		cond_resched();
		cpu_relax();
	}
	return -EBADE;
}

module_init(occupy_init);

MODULE_DESCRIPTION("Keeps a task in the kernel for a while");
MODULE_LICENSE("GPL");
