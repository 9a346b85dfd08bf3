// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Puts the text of modules of copies into large pages.
 *
 * The kernel's image lies in pages of 2 MB, and its modules in pages of 4 KB. So
 * copies would need many more entries of the TLB than their originals. While a
 * program loads a module of copies, execmem_alloc() is diverted for its task:
 * memory for text comes from the same range, but in large pages, or in small ones
 * if no large page is free. The kernel fills, protects and frees it as any other.
 *
 * A size that is a multiple of a large page tells the module of copies apart, and
 * lets the kernel change the protection of whole pages: it splits none.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ftrace.h>
#include <linux/mutex.h>
#include <linux/sched/task.h>
#include <linux/vmalloc.h>

#include <asm/pgtable.h>

#include "group.h"
#include "symbols.h"

unsigned long kernlane_page_size(unsigned long addr)
{
	unsigned int level;

	if (!lookup_address(addr, &level))
		return 0;
	return page_level_size(level);
}

/*
 * With KASAN, the shadow of a module's memory is allocated beside it, by a function
 * that modules cannot call.
 */
#if defined(KERNLANE_HAS_EXECMEM) && !defined(KERNLANE_HAS_TEXT_CACHE) && \
	!defined(CONFIG_KASAN)
#include <linux/execmem.h>

/* The address of __vmalloc_node_range_noprof(), which is not exported. */
DEFINE_STATIC_CALL_NULL(allocate, __vmalloc_node_range_noprof);

/* Guards what follows. */
static DEFINE_MUTEX(placing_mutex);
/* The file by which placing was asked for, or NULL. */
static const struct file *placing_by;
/* Its task, with a reference: no other task gets its address meanwhile. */
static struct task_struct *loader;

/* Runs in place of execmem_alloc(). */
static void *alloc_large(enum execmem_type type, size_t size)
{
	return static_call(allocate)(size, KERNLANE_LARGE_PAGE, MODULES_VADDR,
				     MODULES_END, GFP_KERNEL, PAGE_KERNEL,
				     VM_FLUSH_RESET_PERMS | VM_ALLOW_HUGE_VMAP,
				     NUMA_NO_NODE, __builtin_return_address(0));
}

static void notrace divert_loader(unsigned long ip, unsigned long parent_ip,
				  struct ftrace_ops *ops,
				  struct ftrace_regs *fregs)
{
	if (current == READ_ONCE(loader) &&
	    ftrace_regs_get_argument(fregs, 0) == EXECMEM_MODULE_TEXT &&
	    ftrace_regs_get_argument(fregs, 1) % KERNLANE_LARGE_PAGE == 0)
		kernlane_set_ip(fregs, (unsigned long)alloc_large);
}

static struct ftrace_ops ops;
/* The tracer may use @ops for ever. */
static bool stuck;

static int start_placing(void)
{
	unsigned long at = static_call(address_of)("execmem_alloc");
	void *allocator = (void *)static_call(address_of)(
		"__vmalloc_node_range_noprof");
	int err;

	if (!at || !allocator)
		return -EOPNOTSUPP;
	if (stuck)
		return -EBUSY;
	static_call_update(allocate, allocator);
	/* ftrace_free_filter() leaves pointers to what it freed. */
	memset(&ops, 0, sizeof(ops));
	ops.func = divert_loader;
	ops.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT;
	err = ftrace_set_filter_ip(&ops, at, 0, 0);
	if (!err)
		err = register_ftrace_function(&ops);
	if (err)
		ftrace_free_filter(&ops);
	return err;
}

/* The task that calls it is the only one whose modules are placed. */
int kernlane_start_placing(const struct file *by)
{
	int err = -EBUSY;

	if (mutex_lock_killable(&placing_mutex))
		return -EINTR;
	if (!placing_by) {
		err = start_placing();
		if (!err) {
			placing_by = by;
			WRITE_ONCE(loader, get_task_struct(current));
		}
	}
	mutex_unlock(&placing_mutex);
	return err;
}

/* Does nothing if another file asked for it, or none. */
void kernlane_stop_placing(const struct file *by)
{
	struct task_struct *task;

	mutex_lock(&placing_mutex);
	if (placing_by == by) {
		task = loader;
		WRITE_ONCE(loader, NULL);
		/* Waits for tasks that are in this code. */
		stuck = WARN_ON_ONCE(unregister_ftrace_function(&ops));
		if (stuck)
			__module_get(THIS_MODULE);
		else
			ftrace_free_filter(&ops);
		put_task_struct(task);
		placing_by = NULL;
	}
	mutex_unlock(&placing_mutex);
}
/* The largest pages in which modules can be placed. */
unsigned long kernlane_most_page(void)
{
	return KERNLANE_LARGE_PAGE;
}
#else
unsigned long kernlane_most_page(void)
{
	return PAGE_SIZE;
}

int kernlane_start_placing(const struct file *by)
{
	return -EOPNOTSUPP;
}

void kernlane_stop_placing(const struct file *by)
{
}
#endif
