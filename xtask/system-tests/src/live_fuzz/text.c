/* The kernel's text as /proc/kcore shows it. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

#define MOST_SAID 20
/* Bytes of the longest. */
#define INSTRUCTION 15

static uint64_t start;
static size_t size;
static unsigned char *before;

static void read_text(unsigned char *into)
{
	static Elf64_Phdr headers[512];
	int core = open("/proc/kcore", O_RDONLY | O_CLOEXEC);
	Elf64_Ehdr head;
	size_t done = 0;
	int n;

	if (core < 0 || pread(core, &head, sizeof(head), 0) != sizeof(head) ||
	    head.e_phnum > COUNT(headers) ||
	    pread(core, headers, head.e_phnum * sizeof(*headers), head.e_phoff) < 0) {
		failed("/proc/kcore cannot be read");
		exit(1);
	}
	for (n = 0; n < head.e_phnum; n++)
		if (headers[n].p_type == PT_LOAD && headers[n].p_vaddr <= start &&
		    start - headers[n].p_vaddr < headers[n].p_filesz)
			break;
	while (n < head.e_phnum && done < size) {
		off_t at = headers[n].p_offset + (start - headers[n].p_vaddr) + done;
		ssize_t got = pread(core, into + done, size - done, at);

		if (got <= 0)
			break;
		done += got;
	}
	close(core);
	if (done < size) {
		failed("/proc/kcore ends at %zx of the text's %zx bytes", done, size);
		exit(1);
	}
}

void text_remember(void)
{
	start = symbol("_stext");
	size = symbol("_etext") - start;
	if (!before)
		before = malloc(size + INSTRUCTION);
	read_text(before);
}

size_t text_compare(void)
{
	unsigned char *now = malloc(size + INSTRUCTION);
	size_t at, differing = 0, said = 0, last = -64;

	read_text(now);
	for (at = 0; at < size; at++) {
		if (now[at] == before[at])
			continue;
		differing++;
		/* Bytes of one instruction are one place. */
		if (at - last >= INSTRUCTION && said++ < MOST_SAID)
			printf("differs at %s: %02x %02x %02x %02x %02x, now %02x %02x %02x %02x %02x\n",
			       place(start + at), before[at], before[at + 1], before[at + 2],
			       before[at + 3], before[at + 4], now[at], now[at + 1], now[at + 2],
			       now[at + 3], now[at + 4]);
		last = at;
	}
	free(now);
	return differing;
}
