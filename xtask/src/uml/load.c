/*
 * The load of a kernel for User Mode Linux: few system calls with much work behind each. Its
 * system calls go through ptrace(2), which would hide the kernel's own code. Runs as init: load
 * WORD ROUNDS [stay], with WORD mmsg, uring, pktgen or all; or load serve.
 *
 * Compares everything that comes back. Prints "passed: WORD" or "failed: WHAT", and powers off.
 * With "stay" it prints "staying" when all passed, and sleeps until the kernel is ended from
 * outside.
 *
 * With "serve" it prints "ready". Then it runs a load for each line "WORD ROUNDS" of its input, and
 * prints a line: slice, 1, the ticks of the time stamp counter, those of a chain before and behind,
 * and 0 (`slice_cycles` in processor.rs).
 *
 * With "record" it runs every load twice, each time as in a slice of bench-uml, the second time
 * between the marks 4 and 5, and all of that between the marks 1 and 2.
 */
#include "bare.h"
#include "timing.h"

enum {
	NR_READ = 0, NR_WRITE = 1, NR_OPEN = 2, NR_CLOSE = 3, NR_MMAP = 9, NR_IOCTL = 16,
	NR_PAUSE = 34, NR_SOCKET = 41, NR_BIND = 49, NR_CONNECT = 42, NR_GETSOCKNAME = 51,
	NR_SETSOCKOPT = 54, NR_MOUNT = 165, NR_REBOOT = 169, NR_RECVMMSG = 299, NR_SENDMMSG = 307,
	NR_MEMFD_CREATE = 319, NR_IO_URING_SETUP = 425, NR_IO_URING_ENTER = 426
};

static long length(const char *text)
{
	long n = 0;

	while (text[n])
		n++;
	return n;
}

static void print(const char *text)
{
	call(NR_WRITE, 1, (long)text, length(text), 0, 0, 0);
}

static void power_off(void)
{
	call(NR_REBOOT, 0xfee1dead, 672274793, 0x4321fedc, 0, 0, 0);
	call(NR_EXIT, 1, 0, 0, 0, 0, 0);
}

static void fail(const char *what)
{
	print("failed: ");
	print(what);
	print("\n");
	power_off();
	for (;;)
		;
}

static void require(int holds, const char *what)
{
	if (!holds)
		fail(what);
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* UDP over loopback, BATCH datagrams a system call. */
enum { BATCH = 512, PAYLOAD = 64 };

struct message {
	void *name;
	ulong name_length;
	ulong *vector;
	ulong vectors;
	void *control;
	ulong control_length;
	ulong flags;
	unsigned int length, padding;
};

static struct message messages[BATCH];
static ulong vectors[BATCH][2];
static ulong payloads[BATCH][PAYLOAD / 8];

static void raise_loopback(long fd)
{
	static struct { char name[16]; short flags; char rest[22]; } request = { "lo" };

	require(call(NR_IOCTL, fd, 0x8913, (long)&request, 0, 0, 0) == 0, "reading lo's flags");
	request.flags |= 1;
	require(call(NR_IOCTL, fd, 0x8914, (long)&request, 0, 0, 0) == 0, "raising lo");
}

static void aim_messages(void)
{
	for (int i = 0; i < BATCH; i++) {
		vectors[i][0] = (ulong)payloads[i];
		vectors[i][1] = PAYLOAD;
		messages[i].vector = vectors[i];
		messages[i].vectors = 1;
	}
}

static long datagrams_in, datagrams_out;
static ulong datagrams_sent, datagrams_received;

static void mmsg_begin(void)
{
	static struct {
		short family, port;
		unsigned int address;
		ulong zero;
	} to = { 2, 0, 0x0100007f, 0 };
	static int room = 8 << 20, size = sizeof(to);
	long in = call(NR_SOCKET, 2, 2, 0, 0, 0, 0), out = call(NR_SOCKET, 2, 2, 0, 0, 0, 0);

	require(in >= 0 && out >= 0, "socket");
	raise_loopback(in);
	/* SOL_SOCKET, SO_RCVBUFFORCE and SO_SNDBUFFORCE */
	require(call(NR_SETSOCKOPT, in, 1, 33, (long)&room, sizeof(room), 0) == 0, "SO_RCVBUFFORCE");
	require(call(NR_SETSOCKOPT, out, 1, 32, (long)&room, sizeof(room), 0) == 0, "SO_SNDBUFFORCE");
	require(call(NR_BIND, in, (long)&to, sizeof(to), 0, 0, 0) == 0, "bind");
	require(call(NR_GETSOCKNAME, in, (long)&to, (long)&size, 0, 0, 0) == 0, "getsockname");
	require(call(NR_CONNECT, out, (long)&to, sizeof(to), 0, 0, 0) == 0, "connect");
	aim_messages();
	datagrams_in = in;
	datagrams_out = out;
}

static void mmsg(long rounds)
{
	for (long round = 0; round < rounds; round++) {
		for (int i = 0; i < BATCH; i++)
			payloads[i][0] = payloads[i][PAYLOAD / 8 - 1] = datagrams_sent++;
		require(call(NR_SENDMMSG, datagrams_out, (long)messages, BATCH, 0, 0, 0) == BATCH, "sendmmsg");
		for (int i = 0; i < BATCH; i++)
			payloads[i][0] = payloads[i][PAYLOAD / 8 - 1] = ~0ul;
		require(call(NR_RECVMMSG, datagrams_in, (long)messages, BATCH, 0, 0, 0) == BATCH,
			"recvmmsg");
		for (int i = 0; i < BATCH; i++, datagrams_received++) {
			require(messages[i].length == PAYLOAD, "a datagram's length");
			require(payloads[i][0] == datagrams_received &&
				payloads[i][PAYLOAD / 8 - 1] == datagrams_received,
				"a datagram's contents");
		}
	}
}

/* io_uring: reads of a file in tmpfs and no-ops by turns, DEPTH a system call. */
enum { DEPTH = 256, CHUNK = 64 };

struct submission {
	byte code, flags;
	short priority;
	int fd;
	ulong offset, address;
	unsigned int length, operation_flags;
	ulong user_data, rest[3];
};

struct completion {
	ulong user_data;
	int result;
	unsigned int flags;
};

static unsigned int parameters[30];
static ulong chunks[DEPTH][CHUNK / 8];

static byte *ring_at(long fd, ulong offset)
{
	long at = call(NR_MMAP, 0, 65536, 3, 1, fd, offset);

	require(at > 0 || at < -4095, "mapping a ring");
	return (byte *)at;
}

static long file_of_chunks(void)
{
	long fd = call(NR_MEMFD_CREATE, (long)"chunks", 0, 0, 0, 0, 0);

	require(fd >= 0, "memfd_create");
	for (ulong i = 0; i < DEPTH; i++) {
		for (int n = 0; n < CHUNK / 8; n++)
			chunks[0][n] = i * CHUNK + n;
		require(call(NR_WRITE, fd, (long)chunks[0], CHUNK, 0, 0, 0) == CHUNK, "writing to a memfd");
	}
	return fd;
}

static long chunks_file, ring;
static byte *requests, *results;
static struct submission *submissions;

static void uring_begin(void)
{
	long fd = call(NR_IO_URING_SETUP, DEPTH, (long)parameters, 0, 0, 0, 0);
	require(fd >= 0, "io_uring_setup");
	/* struct io_uring_params: sq_off is at word 10, cq_off at word 20 */
	requests = ring_at(fd, 0);
	results = ring_at(fd, 0x8000000);
	submissions = (struct submission *)ring_at(fd, 0x10000000);
	chunks_file = file_of_chunks();
	ring = fd;
}

static void uring(long rounds)
{
	volatile unsigned int *tail = (void *)(requests + parameters[11]);
	unsigned int *array = (void *)(requests + parameters[16]);
	unsigned int mask = *(unsigned int *)(requests + parameters[12]);
	volatile unsigned int *head = (void *)(results + parameters[20]);
	volatile unsigned int *end = (void *)(results + parameters[21]);
	unsigned int cq_mask = *(unsigned int *)(results + parameters[22]);
	struct completion *completions = (void *)(results + parameters[25]);

	for (long round = 0; round < rounds; round++) {
		for (unsigned int i = 0; i < DEPTH; i++) {
			struct submission *s = &submissions[i];
			int reads = i % 2;

			s->code = reads ? 22 /* IORING_OP_READ */ : 0 /* IORING_OP_NOP */;
			s->fd = reads ? chunks_file : -1;
			s->offset = reads ? i * CHUNK : 0;
			s->address = reads ? (ulong)chunks[i] : 0;
			s->length = reads ? CHUNK : 0;
			s->user_data = i;
			chunks[i][0] = ~0ul;
			array[(*tail + i) & mask] = i;
		}
		*tail += DEPTH;
		require(call(NR_IO_URING_ENTER, ring, DEPTH, DEPTH, 1, 0, 0) == DEPTH, "io_uring_enter");
		require(*end - *head == DEPTH, "the number of completions");
		for (; *head != *end; *head += 1) {
			struct completion *c = &completions[*head & cq_mask];
			int reads = c->user_data % 2;

			require(c->result == (reads ? CHUNK : 0), "a completion's result");
			require(!reads || chunks[c->user_data][0] == c->user_data * CHUNK, "what was read");
		}
	}
}

/* pktgen: the kernel's own packet generator, over loopback. */
static void tell(const char *file, const char *text)
{
	long fd = call(NR_OPEN, (long)file, 1, 0, 0, 0, 0);

	require(fd >= 0, file);
	require(call(NR_WRITE, fd, (long)text, length(text), 0, 0, 0) == length(text), text);
	call(NR_CLOSE, fd, 0, 0, 0, 0, 0);
}

/* "WORD NUMBER", in a place that the next call uses again. */
static char *sentence(const char *word, ulong number)
{
	static char text[64];
	char digits[20];
	int n = 0, at = 0;

	for (; word[at]; at++)
		text[at] = word[at];
	do
		digits[n++] = '0' + number % 10;
	while (number /= 10);
	while (n)
		text[at++] = digits[--n];
	text[at] = 0;
	return text;
}

static int contains(const char *text, const char *part)
{
	for (; *text; text++) {
		long n = 0;

		while (part[n] && text[n] == part[n])
			n++;
		if (!part[n])
			return 1;
	}
	return 0;
}

#define DEVICE "/proc/net/pktgen/lo"

static void pktgen_begin(void)
{
	long fd = call(NR_SOCKET, 2, 2, 0, 0, 0, 0);

	raise_loopback(fd);
	call(NR_CLOSE, fd, 0, 0, 0, 0, 0);
	call(NR_MOUNT, (long)"proc", (long)"/proc", (long)"proc", 0, 0, 0);
	tell("/proc/net/pktgen/kpktgend_0", "rem_device_all");
	tell("/proc/net/pktgen/kpktgend_0", "add_device lo");
	tell(DEVICE, "delay 0");
	tell(DEVICE, "pkt_size 60");
	tell(DEVICE, "dst 127.0.0.1");
}

static void pktgen(long rounds)
{
	static char said[4096];
	ulong packets = rounds * BATCH;
	long fd, n;

	tell(DEVICE, sentence("count ", packets));
	tell("/proc/net/pktgen/pgctrl", "start\n");
	fd = call(NR_OPEN, (long)DEVICE, 0, 0, 0, 0, 0);
	require(fd >= 0, "opening pktgen's result");
	n = call(NR_READ, fd, (long)said, sizeof(said) - 1, 0, 0, 0);
	require(n > 0, "reading pktgen's result");
	said[n] = 0;
	call(NR_CLOSE, fd, 0, 0, 0, 0, 0);
	require(contains(said, sentence("pkts-sofar: ", packets)), said);
	require(contains(said, "errors: 0"), said);
}

static const struct {
	const char *name;
	void (*begin)(void);
	void (*run)(long rounds);
	long slice; /* rounds: LOADS in bench_uml/mod.rs; 0: it sleeps, and is no slice */
} loads[] = {
	{ "mmsg", mmsg_begin, mmsg, 4 },
	{ "uring", uring_begin, uring, 16 },
	{ "pktgen", pktgen_begin, pktgen, 0 },
};

enum { LOADS = sizeof(loads) / sizeof(loads[0]) };

static void run(const char *wanted, long rounds)
{
	for (int i = 0; i < LOADS; i++) {
		if (!same(wanted, loads[i].name) && !same(wanted, "all"))
			continue;
		loads[i].begin();
		loads[i].run(rounds);
		print("passed: ");
		print(loads[i].name);
		print("\n");
	}
}

static long number(const char *digit)
{
	long value = 0;

	for (; *digit >= '0' && *digit <= '9'; digit++)
		value = value * 10 + *digit - '0';
	return value;
}

/* A slice of a load. */
static void slice(void (*load)(long), long rounds)
{
	static char line[128];
	ulong before = chain(), begun = ticks(), took, behind;
	int at = 0;

	load(rounds);
	took = ticks() - begun;
	behind = chain();
	const ulong numbers[] = { took, before, behind };

	for (int i = 0; i < 3; i++)
		for (const char *from = sentence(" ", numbers[i]); *from; from++)
			line[at++] = *from;
	line[at] = 0;
	print("slice 1");
	print(line);
	print(" 0\n");
}

static void serve(void)
{
	static char line[64];

	for (int i = 0; i < LOADS; i++)
		loads[i].begin();
	print("ready\n");
	for (;;) {
		long n = call(NR_READ, 0, (long)line, sizeof(line) - 1, 0, 0, 0), end = 0;

		if (n <= 0)
			power_off();
		line[n] = 0;
		while (line[end] && line[end] != ' ')
			end++;
		require(line[end] == ' ', "no line WORD ROUNDS came");
		line[end] = 0;
		for (int i = 0; i < LOADS; i++)
			if (same(line, loads[i].name))
				slice(loads[i].run, number(line + end + 1));
	}
}

static void record(void)
{
	for (int i = 0; i < LOADS; i++) {
		if (loads[i].slice == 0)
			continue;
		loads[i].begin();
		loads[i].run(loads[i].slice);
	}
	MARK(1);
	for (int i = 0; i < LOADS; i++) {
		if (loads[i].slice == 0)
			continue;
		loads[i].run(loads[i].slice);
		MARK(4);
		loads[i].run(loads[i].slice);
		MARK(5);
	}
	MARK(2);
	print("passed: record\n");
	power_off();
}

void start(ulong *stack)
{
	char **arguments = (char **)(stack + 1);

	if (stack[0] >= 2 && same(arguments[1], "serve"))
		serve();
	if (stack[0] >= 2 && same(arguments[1], "record"))
		record();
	require(stack[0] >= 3, "load WORD ROUNDS");
	run(arguments[1], number(arguments[2]));
	if (stack[0] >= 4 && same(arguments[3], "stay")) {
		print("staying\n");
		for (;;)
			call(NR_PAUSE, 0, 0, 0, 0, 0, 0);
	}
	power_off();
}

START(start);
