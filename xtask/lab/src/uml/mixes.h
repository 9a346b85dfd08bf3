/*
 * The kernel's work of the suite's mixes (crates/suite/src/list/mixes.rs), by io_uring: hundreds
 * of requests a system call. Programs that start programs are not here: fork and exec are a system
 * call each, and the host does most of their work.
 *
 * Files lie in tmpfs. Descriptors that a batch opens are slots of the ring's table.
 */
#ifndef MIXES_H
#define MIXES_H

#include "ring.h"

enum { HERE = -100 /* AT_FDCWD */, ENOENT = 2 };

/* struct statx, of which only the size is read */
struct attributes {
	ulong before[5], size, behind[26];
};

static void scratch_begin(void)
{
	static int mounted;

	ring_begin();
	if (mounted++)
		return;
	require(call(NR_MOUNT, (long)"tmpfs", (long)"/tmp", (long)"tmpfs", 0, 0, 0) == 0,
		"mounting tmpfs");
}

/* The byte of a file at a place. */
static byte pattern(ulong at)
{
	return at * 31 + (at >> 8) * 7 + 1;
}

/* Makes a file of this number of bytes. */
static void make_file(const char *path, ulong size)
{
	static byte bytes[32768];
	long fd = call(NR_OPEN, (long)path, O_WRONLY | O_CREAT | O_TRUNC, 0644, 0, 0, 0);

	require(fd >= 0, path);
	for (ulong at = 0; at < size; at++)
		bytes[at] = pattern(at);
	require(call(NR_WRITE, fd, (long)bytes, size, 0, 0, 0) == size, path);
	call(NR_CLOSE, fd, 0, 0, 0, 0, 0);
}

static struct submission *open_in_slot(const char *path, int flags, int slot, int expected)
{
	struct submission *s = request(OP_OPENAT, HERE, path, 0644, expected);

	s->operation_flags = flags;
	s->file_index = slot + 1;
	return s;
}

static struct submission *close_slot(int slot)
{
	struct submission *s = request(OP_CLOSE, 0, 0, 0, 0);

	s->file_index = slot + 1;
	return s;
}

static struct submission *attributes_of(const char *path, struct attributes *found, int expected)
{
	struct submission *s = request(OP_STATX, HERE, path, 0x7ff /* STATX_BASIC_STATS */, expected);

	s->offset = (ulong)found;
	return s;
}

/* Reads or writes at the beginning of the file in a slot. */
static struct submission *transfer(int code, int slot, const void *bytes, unsigned int size)
{
	struct submission *s = request(code, slot, bytes, size, size);

	s->flags = FIXED;
	return s;
}

/*
 * files: mix/compile and mix/shell. Each of 4 sources looks for 12 headers in two other directories
 * first, reads them, writes an object and gives it its name; each of 4 command lines looks for a
 * program in two directories, writes a file, reads it and removes it.
 */
enum {
	SOURCES = 4, HEADERS = 12, HEADER = 6000, OBJECT = 16384, LINES = 4, OUTPUT = 3000,
	FIRST_OBJECT = SOURCES * HEADERS, FIRST_LINE = FIRST_OBJECT + SOURCES
};

static char header_paths[3][HEADERS][32], object_paths[2][SOURCES][32], output_paths[LINES][32];
static byte headers[SOURCES][HEADERS][HEADER], object[OBJECT], outputs[LINES][OUTPUT];
static struct attributes header_attributes[SOURCES][HEADERS];

static void name(char *path, const char *word, ulong number)
{
	const char *from = sentence(word, number);

	while ((*path++ = *from++))
		;
}

static void files_begin(void)
{
	static const char *const directories[3] = { "/tmp/local", "/tmp/other", "/tmp/include" };
	static const char *const beginnings[3] = { "/tmp/local/h", "/tmp/other/h", "/tmp/include/h" };

	scratch_begin();
	for (int n = 0; n < 3; n++) {
		require(call(NR_MKDIR, (long)directories[n], 0755, 0, 0, 0, 0) == 0, directories[n]);
		for (int h = 0; h < HEADERS; h++)
			name(header_paths[n][h], beginnings[n], h);
	}
	for (int h = 0; h < HEADERS; h++)
		make_file(header_paths[2][h], HEADER);
	for (int s = 0; s < SOURCES; s++) {
		name(object_paths[0][s], "/tmp/temporary", s);
		name(object_paths[1][s], "/tmp/object", s);
	}
	for (int l = 0; l < LINES; l++)
		name(output_paths[l], "/tmp/output", l);
	for (ulong at = 0; at < OBJECT; at++)
		object[at] = pattern(at);
}

static void read_header(int source, int header)
{
	int slot = source * HEADERS + header;

	open_in_slot(header_paths[0][header], O_RDONLY, slot, -ENOENT);
	open_in_slot(header_paths[1][header], O_RDONLY, slot, -ENOENT);
	attributes_of(header_paths[2][header], &header_attributes[source][header], 0);
	open_in_slot(header_paths[2][header], O_RDONLY, slot, 0)->flags = LINK;
	transfer(OP_READ, slot, headers[source][header], HEADER)->flags |= LINK;
	close_slot(slot);
	headers[source][header][HEADER - 1] = 0;
	header_attributes[source][header].size = 0;
}

static void write_object(int source)
{
	struct submission *s;
	int slot = FIRST_OBJECT + source;

	open_in_slot(object_paths[0][source], O_WRONLY | O_CREAT | O_TRUNC, slot, 0)->flags = LINK;
	transfer(OP_WRITE, slot, object, OBJECT)->flags |= LINK;
	close_slot(slot)->flags = LINK;
	s = request(OP_RENAMEAT, HERE, object_paths[0][source], (unsigned int)HERE, 0);
	s->offset = (ulong)object_paths[1][source];
}

static void command_line(int line)
{
	static struct attributes none;
	int slot = FIRST_LINE + line;

	attributes_of("/usr/local/kernlane/copy", &none, -ENOENT);
	attributes_of("/usr/kernlane/copy", &none, -ENOENT);
	open_in_slot(output_paths[line], O_RDWR | O_CREAT | O_TRUNC, slot, 0)->flags = LINK;
	transfer(OP_WRITE, slot, object, OUTPUT)->flags |= LINK;
	transfer(OP_READ, slot, outputs[line], OUTPUT)->flags |= LINK;
	close_slot(slot)->flags = LINK;
	request(OP_UNLINKAT, HERE, output_paths[line], 0, 0);
	outputs[line][OUTPUT - 1] = 0;
}

static void files(long rounds)
{
	for (long round = 0; round < rounds; round++) {
		for (int s = 0; s < SOURCES; s++) {
			for (int h = 0; h < HEADERS; h++)
				read_header(s, h);
			write_object(s);
		}
		for (int l = 0; l < LINES; l++)
			command_line(l);
		submit();
		for (int s = 0; s < SOURCES; s++)
			for (int h = 0; h < HEADERS; h++)
				require(headers[s][h][HEADER - 1] == pattern(HEADER - 1) &&
					header_attributes[s][h].size == HEADER, "a header");
		for (int l = 0; l < LINES; l++)
			require(outputs[l][OUTPUT - 1] == pattern(OUTPUT - 1), "a line's output");
	}
}

/*
 * database: mix/database. Each of 32 clients sends a row's number by its local socket; its server
 * reads two pages of an index and the row, writes the row, with the number of its changes, and a
 * log, waits until the log is safe, and answers with that number.
 */
enum { CLIENTS = 32, ROWS = 512, ROW = 8192, INDEX = ROWS / 8 + ROWS / 64, RECORD = 200 };

static int clients[CLIENTS][2];
static long table, journal;
static ulong changes[ROWS], journal_end;
static ulong pages[CLIENTS][3][ROW / 8], changed_pages[CLIENTS][ROW / 8];
static ulong asked[CLIENTS], heard[CLIENTS], told[CLIENTS], answered[CLIENTS];

static void database_begin(void)
{
	static ulong page[ROW / 8];

	scratch_begin();
	for (int c = 0; c < CLIENTS; c++)
		require(call(NR_SOCKETPAIR, 1, 1, 0, (long)clients[c], 0, 0) == 0, "socketpair");
	table = call(NR_OPEN, (long)"/tmp/table", O_RDWR | O_CREAT | O_TRUNC, 0644, 0, 0, 0);
	journal = call(NR_OPEN, (long)"/tmp/journal", O_RDWR | O_CREAT | O_TRUNC, 0644, 0, 0, 0);
	require(table >= 0 && journal >= 0, "a database");
	/* Each page begins with its changes and its number. */
	for (page[1] = 0; page[1] < ROWS + INDEX; page[1]++)
		require(call(NR_WRITE, table, (long)page, ROW, 0, 0, 0) == ROW, "a page");
}

static void read_page(int client, int n, ulong number)
{
	struct submission *s = request(OP_READ, table, pages[client][n], ROW, ROW);

	s->flags = LINK;
	s->offset = number * ROW;
	pages[client][n][1] = ~0ul;
}

static void message(int code, int fd, ulong *number, int flags)
{
	struct submission *s = request(code, fd, number, 8, 8);

	s->operation_flags = 0x100 /* MSG_WAITALL */;
	s->flags = flags;
}

static void transaction(int client, ulong row)
{
	struct submission *s;

	asked[client] = row;
	told[client] = changes[row] + 1;
	heard[client] = answered[client] = ~0ul;
	changed_pages[client][0] = told[client];
	changed_pages[client][1] = row;
	message(OP_SEND, clients[client][0], &asked[client], LINK);
	message(OP_RECV, clients[client][1], &heard[client], LINK);
	read_page(client, 0, ROWS + row / 64);
	read_page(client, 1, ROWS + ROWS / 64 + row / 8);
	read_page(client, 2, row);
	s = request(OP_WRITE, table, changed_pages[client], ROW, ROW);
	s->flags = LINK;
	s->offset = row * ROW;
	s = request(OP_WRITE, journal, changed_pages[client], RECORD, RECORD);
	s->flags = LINK;
	s->offset = journal_end;
	journal_end = (journal_end + RECORD) % (1 << 20);
	request(OP_FSYNC, journal, 0, 0, 0)->flags = LINK;
	message(OP_SEND, clients[client][1], &told[client], LINK);
	message(OP_RECV, clients[client][0], &answered[client], 0);
}

static void database(long rounds)
{
	static ulong row = 1;

	for (long round = 0; round < rounds; round++) {
		for (int c = 0; c < CLIENTS; c++) {
			/* A full cycle through all rows (Hull and Dobell). */
			row = (row * 421 + 1663) % ROWS;
			transaction(c, row);
		}
		submit();
		for (int c = 0; c < CLIENTS; c++) {
			ulong of = asked[c];

			require(heard[c] == of, "a request");
			require(pages[c][0][1] == ROWS + of / 64, "a page of the first index");
			require(pages[c][1][1] == ROWS + ROWS / 64 + of / 8, "a page of the second index");
			require(pages[c][2][0] == changes[of] && pages[c][2][1] == of, "a row");
			require(answered[c] == ++changes[of], "an answer");
		}
	}
}

/*
 * web: mix/web. 32 clients connect by TCP and ask for a page. The server accepts and reads the
 * requests. In a second batch it looks at the page's size, sends a header and the file by splice,
 * and closes; the clients read to the end and check.
 */
enum { PAGES = 4, FIRST_SERVER = CLIENTS, FIRST_FILE = 2 * CLIENTS, ASKED = 8, MOST = 27000 };

static const unsigned int page_sizes[PAGES] = { 600, 2000, 9000, MOST };
static const char answer[] = "HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n";
enum { ANSWER = sizeof(answer) - 1 };

static long listener;
static struct {
	short family;
	unsigned short port;
	unsigned int address;
	ulong zero;
} server_address = { 2, 0, 0x0100007f, 0 };
static char page_paths[PAGES][32];
static int pipes[CLIENTS][2];
static struct attributes page_attributes[CLIENTS];
static char questions[CLIENTS][ASKED], received[CLIENTS][ASKED];
static byte answers[CLIENTS][ANSWER + MOST];

static void web_begin(void)
{
	static int size = sizeof(server_address);

	scratch_begin();
	for (int n = 0; n < PAGES; n++) {
		name(page_paths[n], "/tmp/page", n);
		make_file(page_paths[n], page_sizes[n]);
	}
	for (int c = 0; c < CLIENTS; c++)
		require(call(NR_PIPE, (long)pipes[c], 0, 0, 0, 0, 0) == 0, "pipe");
	listener = call(NR_SOCKET, 2, 1, 0, 0, 0, 0);
	require(listener >= 0, "socket");
	raise_loopback(listener);
	require(call(NR_BIND, listener, (long)&server_address, size, 0, 0, 0) == 0, "bind");
	require(call(NR_LISTEN, listener, 128, 0, 0, 0, 0) == 0, "listen");
	require(call(NR_GETSOCKNAME, listener, (long)&server_address, (long)&size, 0, 0, 0) == 0,
		"getsockname");
}

/* A client asks for a page, and the server accepts a connection and reads its request. */
static void ask_for(int client, int page)
{
	/* struct linger: close resets, so that no port waits for a minute. */
	static const int at_once[2] = { 1, 0 };
	static const char beginning[ASKED] = "GET /?\r\n";
	struct submission *s;

	for (int n = 0; n < ASKED; n++)
		questions[client][n] = beginning[n];
	questions[client][5] = '0' + page;
	received[client][5] = 0;
	s = request(OP_SOCKET, 2, 0, 0, 0);
	s->offset = 1 /* SOCK_STREAM */;
	s->file_index = client + 1;
	s->flags = LINK;
	s = request(OP_URING_CMD, client, (void *)(1ul | 13ul << 32) /* SOL_SOCKET, SO_LINGER */, 0, 0);
	s->offset = 3 /* SOCKET_URING_OP_SETSOCKOPT */;
	s->file_index = sizeof(at_once);
	s->address3 = (ulong)at_once;
	s->flags = FIXED | LINK;
	s = request(OP_CONNECT, client, &server_address, 0, 0);
	s->offset = sizeof(server_address);
	s->flags = FIXED | LINK;
	transfer(OP_SEND, client, questions[client], ASKED);
	s = request(OP_ACCEPT, listener, 0, 0, 0);
	s->file_index = FIRST_SERVER + client + 1;
	s->flags = LINK;
	s = transfer(OP_RECV, FIRST_SERVER + client, received[client], ASKED);
	s->operation_flags = 0x100 /* MSG_WAITALL */;
}

static struct submission *splice(int to, int from, unsigned int size)
{
	struct submission *s = request(OP_SPLICE, to, (void *)~0ul, size, size);

	s->offset = ~0ul;
	s->file_index = from;
	s->flags = LINK;
	return s;
}

/* The server answers the request on a connection. */
static void answer_with(int connection, int page)
{
	int socket = FIRST_SERVER + connection, file = FIRST_FILE + connection;
	unsigned int size = page_sizes[page];

	page_attributes[connection].size = 0;
	attributes_of(page_paths[page], &page_attributes[connection], 0);
	open_in_slot(page_paths[page], O_RDONLY, file, 0)->flags = LINK;
	/* MSG_MORE */
	transfer(OP_SEND, socket, answer, ANSWER)->operation_flags = 0x8000;
	ring.submissions[ring.queued - 1].flags |= LINK;
	/* SPLICE_F_FD_IN_FIXED */
	splice(pipes[connection][1], file, size)->operation_flags = 1u << 31;
	splice(socket, pipes[connection][0], size)->flags |= FIXED;
	close_slot(file)->flags = LINK;
	close_slot(socket);
}

static void read_page_of(int client, int page)
{
	unsigned int size = ANSWER + page_sizes[page];
	struct submission *s = transfer(OP_RECV, client, answers[client], size);

	answers[client][size - 1] = 0;
	s->operation_flags = 0x100 /* MSG_WAITALL */;
	s->flags |= LINK;
	close_slot(client);
}

static void web(long rounds)
{
	for (long round = 0; round < rounds; round++) {
		for (int c = 0; c < CLIENTS; c++)
			ask_for(c, c % PAGES);
		submit();
		for (int c = 0; c < CLIENTS; c++) {
			int page = received[c][5] - '0';

			require(page >= 0 && page < PAGES, "a request for a page");
			answer_with(c, page);
			read_page_of(c, c % PAGES);
		}
		submit();
		for (int c = 0; c < CLIENTS; c++) {
			unsigned int size = page_sizes[c % PAGES];

			require(answers[c][0] == 'H' && answers[c][ANSWER + size - 1] == pattern(size - 1),
				"a page's contents");
			require(page_attributes[c].size == page_sizes[received[c][5] - '0'],
				"a page's size");
		}
	}
}

#endif
