/*
 * io_uring: many requests a system call. Each request says which result it must have; any other
 * ends the load.
 */
#ifndef RING_H
#define RING_H

#include "init.h"

enum { DEPTH = 512, SLOTS = 128 };

/* enum io_uring_op, and bits of a request's flags (linux/io_uring.h) */
enum {
	OP_NOP = 0, OP_FSYNC = 3, OP_ACCEPT = 13, OP_CONNECT = 16, OP_OPENAT = 18, OP_CLOSE = 19,
	OP_STATX = 21, OP_READ = 22, OP_WRITE = 23, OP_SEND = 26, OP_RECV = 27, OP_SPLICE = 30,
	OP_RENAMEAT = 35, OP_UNLINKAT = 36, OP_SOCKET = 45, OP_URING_CMD = 46
};
enum { FIXED = 1, LINK = 4 };

/* struct io_uring_sqe; comments name the fields where unions have others */
struct submission {
	byte code, flags;
	short priority;
	int fd;
	ulong offset; /* addr2, off, cmd_op */
	ulong address;
	unsigned int length, operation_flags;
	ulong user_data;
	unsigned int buffer;
	int file_index; /* splice_fd_in, optlen */
	ulong address3; /* optval */
	ulong rest;
};

struct completion {
	ulong user_data;
	int result;
	unsigned int flags;
};

static struct {
	long fd;
	unsigned int parameters[30];
	byte *requests, *results;
	struct submission *submissions;
	unsigned int queued;
	int expected[DEPTH];
} ring;

static byte *ring_at(long fd, ulong offset)
{
	long at = call(NR_MMAP, 0, 65536, 3, 1, fd, offset);

	require(at > 0 || at < -4095, "mapping a ring");
	return (byte *)at;
}

static void ring_begin(void)
{
	/* struct io_uring_rsrc_register: an empty table of files */
	static struct {
		unsigned int count, flags;
		ulong rest[3];
	} table = { SLOTS, 1 /* IORING_RSRC_REGISTER_SPARSE */ };

	if (ring.fd)
		return;
	/* IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN: as servers set it up that wait for
	 * many completions at once */
	ring.parameters[2] = 1 << 12 | 1 << 13;
	ring.fd = call(NR_IO_URING_SETUP, DEPTH, (long)ring.parameters, 0, 0, 0, 0);
	require(ring.fd > 0, "io_uring_setup");
	/* struct io_uring_params: sq_off is at word 10, cq_off at word 20 */
	ring.requests = ring_at(ring.fd, 0);
	ring.results = ring_at(ring.fd, 0x8000000);
	ring.submissions = (struct submission *)ring_at(ring.fd, 0x10000000);
	require(call(NR_IO_URING_REGISTER, ring.fd, 13 /* IORING_REGISTER_FILES2 */, (long)&table,
		     sizeof(table), 0, 0) == 0, "a table of files for io_uring");
}

/* Adds a request. Other fields than these are the caller's, until `submit`. */
static struct submission *request(int code, int fd, const void *address, unsigned int length,
				  int expected)
{
	unsigned int n = ring.queued++;
	struct submission *s = &ring.submissions[n];

	require(n < DEPTH, "too many requests for the ring");
	ring.expected[n] = expected;
	s->code = code;
	s->flags = 0;
	s->priority = 0;
	s->fd = fd;
	s->offset = 0;
	s->address = (ulong)address;
	s->length = length;
	s->operation_flags = 0;
	s->user_data = n;
	s->buffer = 0;
	s->file_index = 0;
	s->address3 = 0;
	s->rest = 0;
	return s;
}

static void wrong_result(const struct completion *c)
{
	print(sentence("request ", c->user_data));
	print(sentence(" of the batch, operation ", ring.submissions[c->user_data].code));
	print(c->result < 0 ? sentence(": error ", -c->result) : sentence(": result ", c->result));
	print("\n");
	fail("a completion's result");
}

/* Submits all requests with one system call, waits for all, and checks each result. */
static void submit(void)
{
	const unsigned int *parameters = ring.parameters;
	volatile unsigned int *tail = (void *)(ring.requests + parameters[11]);
	unsigned int *array = (void *)(ring.requests + parameters[16]);
	unsigned int mask = *(unsigned int *)(ring.requests + parameters[12]);
	volatile unsigned int *head = (void *)(ring.results + parameters[20]);
	volatile unsigned int *end = (void *)(ring.results + parameters[21]);
	unsigned int cq_mask = *(unsigned int *)(ring.results + parameters[22]);
	struct completion *completions = (void *)(ring.results + parameters[25]);
	unsigned int queued = ring.queued;

	for (unsigned int i = 0; i < queued; i++)
		array[(*tail + i) & mask] = i;
	*tail += queued;
	require(call(NR_IO_URING_ENTER, ring.fd, queued, queued, 1, 0, 0) == queued, "io_uring_enter");
	require(*end - *head == queued, "the number of completions");
	for (; *head != *end; *head += 1) {
		const struct completion *c = &completions[*head & cq_mask];

		if (c->result != ring.expected[c->user_data])
			wrong_result(c);
	}
	ring.queued = 0;
}

#endif
