/*
 * Sends /dev/kernlane requests that no honest program sends, and prints the kernel's memory
 * afterwards. Needs no library.
 *
 * NAME is that of a module, or NAME/NUMBER with the 32 digits of its number; else the number is 0.
 *
 * requests install NAME FUNCTIONS CALLS WORD…: an INSTALL request. The words are hexadecimal, as
 * they stand in memory: three for each function, two for each call. FUNCTIONS and CALLS are the
 * numbers in the request, which need not fit the words. Behind the lower 32 bits of CALLS are those
 * of the request's reserved word. A name of 56 characters has no zero at its end.
 * requests undo NAME: an UNDO request.
 * requests stall NAME: an INSTALL request with functions that nobody supplies (userfaultfd).
 * requests counters NAME NR RESERVED SUMS: a COUNTERS request.
 * requests time NR MILLISECONDS TIMES ENTRY…: a TIME request. SUMS and TIMES are addresses to write
 * to, or 0 for memory of this program. Both requests print the result and 0.
 * requests hold NAME TEXT: a HOLD request, twice; prints the result of the second and 0.
 * requests keep NAME TEXT: a HOLD request, until a signal comes.
 * The others print the result and the address at fault: "-16 ffffffff81000000".
 *
 * requests packed ENTRY PATCH-AT: the third word of a function, with the bytes that it has now.
 *
 * requests text START END: a checksum of the kernel's memory from START to END, by /proc/kcore.
 */
#include "bare.h"

#define NR_READ 0
#define NR_WRITE 1
#define NR_OPEN 2
#define NR_MMAP 9
#define NR_IOCTL 16
#define NR_PREAD64 17
#define NR_PAUSE 34
#define NR_USERFAULTFD 323

#define NAME 56
#define NUMBER 16
#define WORDS 4096
#define INSTALL 0xc070b701
#define UNDO 0xc070b702
#define COUNTERS 0x4058b703
#define TIME 0xc020b704
#define HOLD 0x4040b706

/* include/uapi/linux/userfaultfd.h */
#define UFFDIO_API 0xc018aa3f
#define UFFDIO_REGISTER 0xc020aa00
#define UFFD_API 0xaa
#define MODE_MISSING 1
#define PAGE 4096

struct group {
	char module[NAME];
	byte number[NUMBER];
	unsigned long functions;
	unsigned long calls;
	unsigned int nr_functions;
	unsigned int nr_calls;
	unsigned long reserved;
	unsigned long bad_address;
};

struct counters {
	char module[NAME];
	byte number[NUMBER];
	unsigned long sums;
	unsigned int nr;
	unsigned int reserved;
};

struct timing {
	unsigned long entries;
	unsigned long times;
	unsigned int nr;
	unsigned int milliseconds;
	unsigned long missed;
};

struct hold {
	char module[NAME];
	unsigned long text;
};

static unsigned long words[WORDS];
static char buffer[1 << 16];

static void say(const char *text)
{
	long size = 0;

	while (text[size])
		size++;
	call(NR_WRITE, 1, (long)text, size, 0, 0, 0);
}

static void fail(const char *why)
{
	say(why);
	say("\n");
	call(NR_EXIT, 125, 0, 0, 0, 0, 0);
}

static void print_hex(unsigned long value)
{
	char digits[20];
	int at = sizeof(digits);

	digits[--at] = 0;
	do
		digits[--at] = "0123456789abcdef"[value % 16];
	while (value /= 16);
	say(digits + at);
}

static void print(long value)
{
	char digits[24];
	int at = sizeof(digits);

	if (value < 0) {
		say("-");
		value = -value;
	}
	digits[--at] = 0;
	do
		digits[--at] = '0' + value % 10;
	while (value /= 10);
	say(digits + at);
}

static unsigned long hex(const char *text)
{
	unsigned long value = 0;

	for (; *text; text++) {
		unsigned int digit = *text <= '9' ? *text - '0' : *text - 'a' + 10;

		if (digit > 15)
			fail("not a hexadecimal number");
		value = value << 4 | digit;
	}
	return value;
}

static long open(const char *path)
{
	long file = call(NR_OPEN, (long)path, 0, 0, 0, 0, 0);

	if (file < 0)
		fail(path);
	return file;
}

/* NAME or NAME/NUMBER. */
static void name_module(char *module, byte *number, const char *text)
{
	int n;

	for (n = 0; n < NAME && *text && *text != '/'; n++)
		module[n] = *text++;
	if (*text != '/')
		return;
	for (n = 0; n < NUMBER; n++, text += 2) {
		char digits[3] = { text[1], text[2], 0 };

		number[n] = hex(digits);
	}
}

static void ask(unsigned long command, char **arguments, long count)
{
	static struct group group;
	long result;
	int n;

	name_module(group.module, group.number, arguments[0]);
	if (command == INSTALL) {
		unsigned long functions = hex(arguments[1]);

		for (n = 0; n < count - 3 && n < WORDS; n++)
			words[n] = hex(arguments[3 + n]);
		group.functions = (unsigned long)words;
		group.calls = (unsigned long)(words + 3 * functions);
		if (functions > WORDS / 3)
			group.calls = group.functions;
		group.nr_functions = functions;
		group.nr_calls = hex(arguments[2]);
		group.reserved = hex(arguments[2]) >> 32;
	}
	result = call(NR_IOCTL, open("/dev/kernlane"), command, (long)&group, 0, 0, 0);
	print(result);
	say(" ");
	print_hex(group.bad_address);
	say("\n");
}

static void say_result(long result)
{
	print(result);
	say(" 0\n");
}

/* Never comes back: the page of the functions is missing, and stays so. */
static void stall(const char *name)
{
	static struct group group = { .nr_functions = 1 };
	unsigned long api[3] = { UFFD_API }, range[4] = { 0, PAGE, MODE_MISSING };
	/* PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS */
	long page = call(NR_MMAP, 0, PAGE, 3, 0x22, -1, 0);
	long faults = call(NR_USERFAULTFD, 0, 0, 0, 0, 0, 0);

	range[0] = page;
	if (call(NR_IOCTL, faults, UFFDIO_API, (long)api, 0, 0, 0) ||
	    call(NR_IOCTL, faults, UFFDIO_REGISTER, (long)range, 0, 0, 0))
		fail("no userfaultfd");
	name_module(group.module, group.number, name);
	group.functions = page;
	say("stalls\n");
	say_result(call(NR_IOCTL, open("/dev/kernlane"), INSTALL, (long)&group, 0, 0, 0));
}

static void count(char **arguments)
{
	static struct counters counters;
	unsigned long sums = hex(arguments[3]);

	name_module(counters.module, counters.number, arguments[0]);
	counters.nr = hex(arguments[1]);
	counters.reserved = hex(arguments[2]);
	counters.sums = sums ? sums : (unsigned long)words;
	say_result(call(NR_IOCTL, open("/dev/kernlane"), COUNTERS, (long)&counters, 0, 0, 0));
}

static void measure(char **arguments, long number)
{
	static struct timing timing;
	unsigned long times = hex(arguments[2]);
	int n;

	for (n = 0; n < number - 3 && n < WORDS; n++)
		words[n] = hex(arguments[3 + n]);
	timing.entries = (unsigned long)words;
	timing.nr = hex(arguments[0]);
	timing.milliseconds = hex(arguments[1]);
	timing.times = times ? times : (unsigned long)buffer;
	say_result(call(NR_IOCTL, open("/dev/kernlane"), TIME, (long)&timing, 0, 0, 0));
}

static void hold(char **arguments, int waits)
{
	static struct hold hold;
	long file = open("/dev/kernlane");

	name_module(hold.module, (byte *)words, arguments[0]);
	hold.text = hex(arguments[1]);
	call(NR_IOCTL, file, HOLD, (long)&hold, 0, 0, 0);
	say_result(call(NR_IOCTL, file, HOLD, (long)&hold, 0, 0, 0));
	if (waits)
		call(NR_PAUSE, 0, 0, 0, 0, 0, 0);
}

/* Where /proc/kcore has an address, by its program headers. */
static unsigned long offset_of(long file, unsigned long address)
{
	unsigned long *header = (unsigned long *)buffer;
	unsigned long phoff;
	unsigned short phnum, n;

	if (call(NR_PREAD64, file, (long)buffer, sizeof(buffer), 0, 0, 0) < 64)
		fail("/proc/kcore is short");
	phoff = header[4];
	phnum = *(unsigned short *)(buffer + 56);
	for (n = 0; n < phnum; n++) {
		unsigned long *program = (unsigned long *)(buffer + phoff + 56 * n);

		/* p_type and p_flags, p_offset, p_vaddr, p_paddr, p_filesz. */
		if ((unsigned int)program[0] == 1 && address >= program[2] && address - program[2] < program[4])
			return program[1] + address - program[2];
	}
	fail("/proc/kcore does not have that address");
	return 0;
}

static void pack(unsigned long entry, unsigned long patch_at)
{
	unsigned long bytes = 0, at = offset_of(open("/proc/kcore"), entry + patch_at);

	if (call(NR_PREAD64, open("/proc/kcore"), (long)&bytes, 5, at, 0, 0) != 5)
		fail("/proc/kcore cannot be read");
	print_hex(bytes << 8 | (patch_at & 255));
	say("\n");
}

static unsigned long decimal(const char *text)
{
	unsigned long value = 0;

	for (; *text >= '0' && *text <= '9'; text++)
		value = 10 * value + *text - '0';
	return value;
}

static void sum(unsigned long start, unsigned long end)
{
	long file = open("/proc/kcore");
	unsigned long at = offset_of(file, start), left = end - start;
	unsigned long hash = 0xcbf29ce484222325;

	while (left) {
		unsigned long size = left < sizeof(buffer) ? left : sizeof(buffer);
		long n, got = call(NR_PREAD64, file, (long)buffer, size, at, 0, 0);

		if (got <= 0)
			fail("/proc/kcore cannot be read");
		for (n = 0; n < got; n++)
			hash = (hash ^ (unsigned char)buffer[n]) * 0x100000001b3;
		at += got;
		left -= got;
	}
	print_hex(hash);
	say("\n");
}

__attribute__((used)) static void run(long *stack)
{
	char **words = (char **)(stack + 1);
	long argc = stack[0];

	if (argc >= 5 && words[1][0] == 'i')
		ask(INSTALL, words + 2, argc - 2);
	else if (argc == 3 && words[1][0] == 'u')
		ask(UNDO, words + 2, argc - 2);
	else if (argc == 3 && words[1][0] == 's')
		stall(words[2]);
	else if (argc == 6 && words[1][0] == 'c')
		count(words + 2);
	else if (argc >= 5 && words[1][0] == 't' && words[1][1] == 'i')
		measure(words + 2, argc - 2);
	else if (argc == 4 && (words[1][0] == 'h' || words[1][0] == 'k'))
		hold(words + 2, words[1][0] == 'k');
	else if (argc == 4 && words[1][0] == 'p')
		pack(hex(words[2]), decimal(words[3]));
	else if (argc == 4 && words[1][0] == 't')
		sum(hex(words[2]), hex(words[3]));
	else
		fail("requests: see the source");
	call(NR_EXIT, 0, 0, 0, 0, 0, 0);
}

START(run);
