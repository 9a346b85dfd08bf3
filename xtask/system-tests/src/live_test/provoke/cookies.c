// SPDX-License-Identifier: GPL-2.0-or-later
/* Claims that its code counts, and names a number of counters and room for two cookies. */
#include <linux/module.h>
#include <linux/string.h>

#include "kernlane.h"

static struct {
	__u8 magic[16];
	__u64 nr_counters;
	__u64 offsets[2];
	__u8 end[16];
} data __used __aligned(KERNLANE_COOKIES_ALIGN);

/* Of no number, and of no copies. */
static const struct kernlane_pairs pairs __used __aligned(KERNLANE_PAIRS_ALIGN) = {
	.magic = KERNLANE_PAIRS,
};

static unsigned long nr;
module_param(nr, ulong, 0);
MODULE_PARM_DESC(nr, "how many counters");

/* To be named in a request as a copy. It never runs. */
static int __used cookies_copy(void)
{
	return 0;
}

static int __init cookies_init(void)
{
	memcpy(data.magic, KERNLANE_COOKIES, sizeof(data.magic));
	memcpy(data.end, KERNLANE_COOKIES, sizeof(data.end));
	data.nr_counters = nr;
	return 0;
}

static void __exit cookies_exit(void)
{
}

module_init(cookies_init);
module_exit(cookies_exit);

MODULE_DESCRIPTION("A module of copies with malformed cookies");
MODULE_LICENSE("GPL");
