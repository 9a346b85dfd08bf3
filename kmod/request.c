// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Copies requests from user space, under no lock: a page of user space may be
 * served by FUSE or by userfaultfd, which may never answer.
 */
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "group.h"

bool kernlane_is_allowed(void)
{
	return capable(CAP_SYS_ADMIN) && capable(CAP_SYS_MODULE);
}

/* What kernlane_read_request() has filled in. */
void kernlane_free_request(struct request *request)
{
	kvfree(request->functions);
	kvfree(request->calls);
}

/* On an error there is nothing to free. */
int kernlane_read_request(struct request *request,
			  const struct kernlane_group __user *user)
{
	struct kernlane_group *group = &request->group;

	if (copy_from_user(group, user, sizeof(*group)))
		return -EFAULT;
	if (!kernlane_is_name(group->module) || !group->nr_functions ||
	    group->nr_functions > KERNLANE_MAX_FUNCTIONS ||
	    group->nr_calls > KERNLANE_MAX_CALLS ||
	    group->reserved)
		return -EINVAL;
	group->bad_address = 0;
	request->functions =
		vmemdup_array_user(u64_to_user_ptr(group->functions),
				   group->nr_functions,
				   sizeof(*request->functions));
	if (IS_ERR(request->functions))
		return PTR_ERR(request->functions);
	request->calls = vmemdup_array_user(u64_to_user_ptr(group->calls),
					    group->nr_calls,
					    sizeof(*request->calls));
	if (IS_ERR(request->calls)) {
		kvfree(request->functions);
		return PTR_ERR(request->calls);
	}
	return 0;
}
