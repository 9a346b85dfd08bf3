/* The captured groups and their modules. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fuzz.h"

struct slot slots[MAX_SLOTS];
unsigned int nr_slots;
struct slot *counting_slot;

static void *duplicate(const char *from, size_t size)
{
	void *copy = malloc(size + 1);

	return memcpy(copy, from, size);
}

static bool read_slot(struct slot *slot, const char *directory, unsigned int number)
{
	pthread_rwlockattr_t attributes;
	struct kernlane_group group;
	char path[256], *bytes, *at;

	snprintf(path, sizeof(path), "%s/%u.group", directory, number);
	bytes = read_file(path, NULL);
	if (!bytes)
		return false;
	at = bytes;
	memcpy(&group, at, sizeof(group));
	at += sizeof(group);
	memcpy(slot->name, group.module, sizeof(slot->name));
	memcpy(slot->number, group.number, sizeof(slot->number));
	memcpy(&slot->captured_text, at, sizeof(uint64_t));
	at += sizeof(uint64_t);
	slot->nr_functions = group.nr_functions;
	slot->nr_calls = group.nr_calls;
	slot->functions = duplicate(at, group.nr_functions * sizeof(*slot->functions));
	at += group.nr_functions * sizeof(*slot->functions);
	slot->calls = duplicate(at, group.nr_calls * sizeof(*slot->calls));
	free(bytes);
	snprintf(path, sizeof(path), "%s/%u.ko", directory, number);
	slot->module = read_file(path, &slot->module_size);
	snprintf(path, sizeof(path), "%s/%u.counters", directory, number);
	if (!access(path, F_OK))
		counting_slot = slot;
	pthread_rwlockattr_init(&attributes);
	pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&slot->lock, &attributes);
	return slot->module;
}

void slots_read(const char *directory)
{
	while (nr_slots < MAX_SLOTS && read_slot(&slots[nr_slots], directory, nr_slots))
		nr_slots++;
	if (!counting_slot) {
		failed("no group with counters was captured");
		exit(1);
	}
}

/* Where the loader has put the copies; 0 when the module has been removed meanwhile. */
static void find_text(struct slot *slot)
{
	char path[128], *text;

	snprintf(path, sizeof(path), "/sys/module/%s/sections/.text", slot->name);
	text = read_file(path, NULL);
	slot->text = text ? strtoull(text, NULL, 16) : 0;
	free(text);
}

/*
 * Nobody asks for the group meanwhile, so that some requests are right. Other programs may remove
 * the module all the same. No memory is missing: the kernel's loader warns when it has none
 * for static keys (kernel/jump_label.c).
 */
long slot_load(struct slot *slot)
{
	long err;

	pthread_rwlock_wrlock(&slot->lock);
	err = syscall(SYS_init_module, slot->module, slot->module_size, "") ? -errno : 0;
	if (!err)
		find_text(slot);
	pthread_rwlock_unlock(&slot->lock);
	return err;
}

long slot_unload(struct slot *slot)
{
	long err;

	faults_begin();
	err = syscall(SYS_delete_module, slot->name, O_NONBLOCK) ? -errno : 0;
	faults_end();
	return err;
}

uint64_t slot_now(const struct slot *slot, uint64_t captured)
{
	if (captured - slot->captured_text < LARGEST_MODULE)
		return captured - slot->captured_text + slot->text;
	return captured;
}
