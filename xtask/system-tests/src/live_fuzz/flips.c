/*
 * A copy of the vmlinux in which one bit is flipped: of an entry for a function, in one of the
 * tables that the kernel uses. What is made of it must be refused, or do no harm.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

/* The entries of a table begin with the distance from this field to an instruction. */
static const struct table {
	const char *name;
	unsigned int entry;
	/* The table of which the same entry is flipped instead. */
	const char *beside;
	unsigned int beside_entry;
} tables[] = {
	{ "__ex_table", 12 },
	{ "__bug_table", 12 },
	{ "__jump_table", 16 },
	{ ".static_call_sites", 8 },
	{ ".altinstructions", 14 },
	{ ".return_sites", 4 },
	{ ".retpoline_sites", 4 },
	{ ".call_sites", 4 },
	{ ".smp_locks", 4 },
	{ ".orc_unwind_ip", 4 },
	{ ".orc_unwind_ip", 4, ".orc_unwind", 6 },
};

/* The load comes through these, also with bad pointers. */
static const char *const functions[] = { "core_sys_select", "cmdline_proc_show", "vfs_read",
	"tcp_v4_rcv" };

static unsigned char *file;
static size_t size;
static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned int flipped[COUNT(tables)];

void flips_prepare(void)
{
	struct stat about;
	int copy;

	if (system("cp /kl/vmlinux " FLIPPED) || stat(FLIPPED, &about)) {
		failed("a copy of the vmlinux");
		exit(1);
	}
	size = about.st_size;
	copy = open(FLIPPED, O_RDWR | O_CLOEXEC);
	file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
	close(copy);
	if (file == MAP_FAILED) {
		failed("the copy of the vmlinux cannot be mapped");
		exit(1);
	}
}

static const Elf64_Shdr *section(const char *name)
{
	const Elf64_Ehdr *head = (void *)file;
	const Elf64_Shdr *sections = (void *)(file + head->e_shoff);
	const char *names = (char *)file + sections[head->e_shstrndx].sh_offset;
	unsigned int n;

	for (n = 0; n < head->e_shnum; n++)
		if (!strcmp(names + sections[n].sh_name, name))
			return &sections[n];
	return NULL;
}

/* A function's range of addresses in the file. */
static bool range(const char *function, uint64_t *start, uint64_t *end)
{
	const Elf64_Shdr *symbols = section(".symtab"), *names = section(".strtab");
	uint64_t n;

	for (n = 0; symbols && names && n < symbols->sh_size / sizeof(Elf64_Sym); n++) {
		const Elf64_Sym *symbol = (Elf64_Sym *)(file + symbols->sh_offset) + n;

		if (strcmp((char *)file + names->sh_offset + symbol->st_name, function))
			continue;
		*start = symbol->st_value;
		*end = symbol->st_value + symbol->st_size;
		return true;
	}
	return false;
}

/* Any of the entries whose instruction is in the range; -1 if there is none. */
static int64_t any_entry(const struct table *table, uint64_t start, uint64_t end)
{
	const Elf64_Shdr *in = section(table->name);
	int64_t chosen = -1;
	uint32_t found = 0;
	uint64_t at;

	for (at = 0; in && at + table->entry <= in->sh_size; at += table->entry) {
		int32_t distance;
		uint64_t site;

		memcpy(&distance, file + in->sh_offset + at, sizeof(distance));
		site = in->sh_addr + at + distance;
		if (site >= start && site < end && one_in(++found))
			chosen = at / table->entry;
	}
	return chosen;
}

bool flip_take(struct flip *flip, const char **function)
{
	const struct table *table = &tables[below(COUNT(tables))];
	const Elf64_Shdr *in = section(table->beside ?: table->name);
	unsigned int width = table->beside ? table->beside_entry : table->entry;
	uint64_t start, end;
	int64_t entry;

	*function = functions[below(COUNT(functions))];
	if (!in || !range(*function, &start, &end) || pthread_mutex_trylock(&taken))
		return false;
	entry = any_entry(table, start, end);
	if (entry < 0) {
		pthread_mutex_unlock(&taken);
		return false;
	}
	flip->at = in->sh_offset + entry * width + below(width);
	flip->bit = 1 << below(8);
	file[flip->at] ^= flip->bit;
	flipped[table - tables]++;
	note("flipped bit %02x at %llx in %s of %s", flip->bit, (unsigned long long)flip->at,
	     table->beside ?: table->name, *function);
	return true;
}

void flip_give(const struct flip *flip)
{
	file[flip->at] ^= flip->bit;
	pthread_mutex_unlock(&taken);
}

void flips_report(void)
{
	unsigned int n;

	printf("bits flipped      ");
	for (n = 0; n < COUNT(tables); n++)
		printf(" %s %u", tables[n].beside ?: tables[n].name, flipped[n]);
	printf("\n");
}
