// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Makes refcount_warn_saturate() warn, once for each kind of mistake: a real warning of the kernel,
 * in the function itself or in its copy. It cannot be loaded.
 */
#include <linux/err.h>
#include <linux/module.h>
#include <linux/refcount.h>

static int kind;
module_param(kind, int, 0);
MODULE_PARM_DESC(kind, "enum refcount_saturation_type");

static int __init warns_init(void)
{
	refcount_t counted = REFCOUNT_INIT(1);

	refcount_warn_saturate(&counted, kind);
	return -EBADE;
}

module_init(warns_init);

MODULE_DESCRIPTION("Makes the kernel warn");
MODULE_LICENSE("GPL");
