// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Reads from a file that is open for writing only, of which the kernel warns.
 * It cannot be loaded: the error of the read is its own.
 */
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/module.h>

static int __init provoke_init(void)
{
	struct file *file = filp_open("/tmp/copy", O_WRONLY, 0);
	loff_t at = 0;
	char byte;
	int err;

	if (IS_ERR(file))
		return PTR_ERR(file);
	err = kernel_read(file, &byte, 1, &at);
	filp_close(file, NULL);
	return err < 0 ? err : -EBADE;
}

module_init(provoke_init);

MODULE_DESCRIPTION("Provokes a warning of the kernel");
MODULE_LICENSE("GPL");
