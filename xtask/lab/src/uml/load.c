/*
 * The load of a kernel for User Mode Linux: few system calls with much work behind each. Its
 * system calls go through ptrace(2), which would hide the kernel's own code. Runs as init: load
 * WORDS ROUNDS [stay], with WORDS all, or names of loads with commas between them; load slices
 * NUMBER [stay], which runs NUMBER slices of each load; or load serve.
 *
 * Compares everything that comes back. Prints "passed: WORD" or "failed: WHAT", and powers off.
 * With "stay" it prints "staying" when all passed, and sleeps until the kernel is ended from
 * outside.
 *
 * With "serve" it prints "ready". Then it runs a load for each line "WORD ROUNDS" of its input, and
 * prints a line: slice, 1, the ticks of the time stamp counter, those of a chain before and behind,
 * 0, and those of no-ops before and behind (`slice` in timed.rs).
 *
 * With "suite" it mounts what the suite's benchmarks need, and becomes the suite's program, which
 * runs their slices (crates/suite/src/served.rs).
 *
 * With "record" it runs slices of every load, as bench-uml does, and those that count each
 * between the marks 4 and 5. All of that lies between the marks 1 and 2.
 */
#include "mixes.h"
#include "timing.h"

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

/* io_uring: reads of a file in tmpfs and no-ops by turns, BATCHED a system call. */
enum { BATCHED = 256, CHUNK = 64 };

static ulong chunks[BATCHED][CHUNK / 8];
static long chunks_file;

static void uring_begin(void)
{
	ring_begin();
	chunks_file = call(NR_MEMFD_CREATE, (long)"chunks", 0, 0, 0, 0, 0);
	require(chunks_file >= 0, "memfd_create");
	for (ulong i = 0; i < BATCHED; i++) {
		for (int n = 0; n < CHUNK / 8; n++)
			chunks[0][n] = i * CHUNK + n;
		require(call(NR_WRITE, chunks_file, (long)chunks[0], CHUNK, 0, 0, 0) == CHUNK,
			"writing to a memfd");
	}
}

static void uring(long rounds)
{
	for (long round = 0; round < rounds; round++) {
		for (unsigned int i = 0; i < BATCHED; i += 2) {
			request(OP_NOP, -1, 0, 0, 0);
			request(OP_READ, chunks_file, chunks[i + 1], CHUNK, CHUNK)->offset =
				(i + 1) * CHUNK;
			chunks[i + 1][0] = ~0ul;
		}
		submit();
		for (unsigned int i = 1; i < BATCHED; i += 2)
			require(chunks[i][0] == i * CHUNK, "what was read");
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
	long slice; /* rounds: LOADS in bench_uml/mod.rs; 0: it sleeps, and is not a slice */
} loads[] = {
	{ "mmsg", mmsg_begin, mmsg, 5 },
	{ "uring", uring_begin, uring, 48 },
	{ "files", files_begin, files, 2 },
	{ "database", database_begin, database, 10 },
	{ "web", web_begin, web, 3 },
	{ "pktgen", pktgen_begin, pktgen, 0 },
};

enum { LOADS = sizeof(loads) / sizeof(loads[0]) };

/* Whether a list with commas has the word. */
static int listed(const char *list, const char *word)
{
	while (*list) {
		const char *from = word;

		while (*from && *list == *from)
			list++, from++;
		if (!*from && (!*list || *list == ','))
			return 1;
		while (*list && *list++ != ',')
			;
	}
	return 0;
}

/* Runs loads: a number of rounds, or of slices, of each. */
static void run(const char *wanted, long rounds)
{
	int slices = same(wanted, "slices"), all = slices || same(wanted, "all");

	for (int i = 0; i < LOADS; i++) {
		if (!all && !listed(wanted, loads[i].name))
			continue;
		loads[i].begin();
		loads[i].run(slices && loads[i].slice ? rounds * loads[i].slice : rounds);
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
	ulong before = chain(), crowded = no_ops(), begun = ticks(), took, later, behind;
	int at = 0;

	load(rounds);
	took = ticks() - begun;
	later = no_ops();
	behind = chain();
	const ulong numbers[] = { took, before, behind, 0, crowded, later };

	for (int i = 0; i < 6; i++)
		for (const char *from = sentence(" ", numbers[i]); *from; from++)
			line[at++] = *from;
	line[at] = 0;
	print("slice 1");
	print(line);
	print("\n");
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

/* The slices that are recorded of each load: those that warm, and those that count (TIMED in
 * simulated.rs). */
#define WARM 2
#define TIMED 3

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
		for (int n = 0; n < WARM; n++)
			loads[i].run(loads[i].slice);
		for (int n = 0; n < TIMED; n++) {
			MARK(4);
			loads[i].run(loads[i].slice);
			MARK(5);
		}
	}
	MARK(2);
	print("passed: record\n");
	power_off();
}

/* Becomes the program of the suite. `arguments`: those of load. */
static void suite(char **arguments)
{
	static const char *const environment[] = { "PATH=/", "TMPDIR=/tmp", 0 };
	static const char *const file_systems[][2] = {
		{ "proc", "/proc" }, { "sysfs", "/sys" }, { "devtmpfs", "/dev" }, { "tmpfs", "/tmp" },
	};

	for (ulong n = 0; n < sizeof(file_systems) / sizeof(file_systems[0]); n++) {
		const char *const *pair = file_systems[n];

		require(call(NR_MOUNT, (long)pair[0], (long)pair[1], (long)pair[0], 0, 0, 0) == 0, pair[1]);
	}
	call(NR_MKDIR, (long)"/dev/pts", 0755, 0, 0, 0, 0);
	require(call(NR_MOUNT, (long)"devpts", (long)"/dev/pts", (long)"devpts", 0, 0, 0) == 0,
		"/dev/pts");
	raise_loopback(call(NR_SOCKET, 2, 2, 0, 0, 0, 0));
	arguments[0] = "/kernlane-bench";
	arguments[1] = "--served";
	/* The kernel adds words of its own command line. */
	arguments[2] = 0;
	call(NR_EXECVE, (long)arguments[0], (long)arguments, (long)environment, 0, 0, 0);
	fail("/kernlane-bench cannot be started");
}

#define SCHED_BATCH 3

/* A worker that completes a request does not stop for a process that calls this. Otherwise it stops
 * for each request in some starts, and for one in a hundred in others. */
static void batch(void)
{
	const int priority = 0;

	require(call(NR_SCHED_SETSCHEDULER, 0, SCHED_BATCH, (long)&priority, 0, 0, 0) == 0,
		"SCHED_BATCH");
}

void start(ulong *stack)
{
	char **arguments = (char **)(stack + 1);

	if (stack[0] >= 2 && same(arguments[1], "suite"))
		suite(arguments);
	batch();
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
