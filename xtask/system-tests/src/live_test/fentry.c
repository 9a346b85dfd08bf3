/*
 * fentry entry|exit FUNCTION: attaches a BPF program that does nothing to a function of the kernel,
 * says so, and stays. Needs no library.
 */
#include "bare.h"
#include "words.h"

#define NR_READ 0
#define NR_WRITE 1
#define NR_OPEN 2
#define NR_PAUSE 34
#define NR_BPF 321

#define BPF_PROG_LOAD 5
#define BPF_RAW_TRACEPOINT_OPEN 17
#define BPF_PROG_TYPE_TRACING 26
#define BPF_TRACE_FENTRY 24
#define BPF_TRACE_FEXIT 25

typedef unsigned int u32;
typedef unsigned long u64;

/* The part of union bpf_attr that loading a program needs. */
struct load {
	u32 prog_type, insn_cnt;
	u64 insns, license;
	u32 log_level, log_size;
	u64 log_buf;
	u32 kern_version, prog_flags;
	char prog_name[16];
	u32 prog_ifindex, expected_attach_type, prog_btf_fd, func_info_rec_size;
	u64 func_info;
	u32 func_info_cnt, line_info_rec_size;
	u64 line_info;
	u32 line_info_cnt, attach_btf_id, attach_prog_fd, core_relo_cnt;
};

struct open {
	u64 name;
	u32 prog_fd, reserved;
	u64 cookie;
};

/* The kernel's types (Documentation/bpf/btf.rst). */
struct btf_header {
	unsigned short magic;
	byte version, flags;
	u32 hdr_len, type_off, type_len, str_off, str_len;
};

struct btf_type {
	u32 name, info, size;
};

#define KIND_FUNC 12

static union {
	struct btf_header header;
	byte bytes[32 << 20];
} btf;

static void say(const char *text)
{
	call(NR_WRITE, 1, (long)text, length(text), 0, 0, 0);
}

static void fail(const char *text)
{
	say(text);
	call(NR_EXIT, 1, 0, 0, 0, 0, 0);
}

/* Bytes behind a type's three words, by its kind. */
static u32 rest(u32 info)
{
	u32 many = info & 0xffff;

	switch (info >> 24 & 0x1f) {
	case 1: case 14: case 17:
		return 4;
	case 3:
		return 12;
	case 4: case 5: case 15: case 19:
		return 12 * many;
	case 6: case 13:
		return 8 * many;
	default:
		return 0;
	}
}

static u32 function_id(const char *name)
{
	long file = call(NR_OPEN, (long)"/sys/kernel/btf/vmlinux", 0, 0, 0, 0, 0);
	ulong size = 0;
	long got;

	while ((got = call(NR_READ, file, (long)btf.bytes + size, sizeof(btf.bytes) - size, 0, 0, 0)) > 0)
		size += got;
	if (got < 0 || btf.header.magic != 0xeb9f)
		fail("the kernel's BTF cannot be read\n");
	byte *at = btf.bytes + btf.header.hdr_len + btf.header.type_off;
	byte *end = at + btf.header.type_len;
	char *names = (char *)btf.bytes + btf.header.hdr_len + btf.header.str_off;

	for (u32 id = 1; at < end; id++) {
		struct btf_type *type = (void *)at;

		if ((type->info >> 24 & 0x1f) == KIND_FUNC && same(names + type->name, name))
			return id;
		at += sizeof(*type) + rest(type->info);
	}
	fail("the kernel's BTF has no such function\n");
	return 0;
}

/* r0 = 0; exit */
static const u64 program[] = { 0xb7, 0x95 };

void run(long *stack)
{
	char **arguments = (char **)(stack + 1);

	if (stack[0] != 3)
		fail("fentry entry|exit FUNCTION\n");
	struct load load = {
		.prog_type = BPF_PROG_TYPE_TRACING,
		.insn_cnt = sizeof(program) / sizeof(program[0]),
		.insns = (u64)program,
		.license = (u64)"GPL",
		.prog_name = "nothing",
		.expected_attach_type = same(arguments[1], "exit") ? BPF_TRACE_FEXIT : BPF_TRACE_FENTRY,
		.attach_btf_id = function_id(arguments[2]),
	};
	long loaded = call(NR_BPF, BPF_PROG_LOAD, (long)&load, sizeof(load), 0, 0, 0);

	if (loaded < 0)
		fail("the kernel does not take the program\n");
	struct open open = { .prog_fd = loaded };

	if (call(NR_BPF, BPF_RAW_TRACEPOINT_OPEN, (long)&open, sizeof(open), 0, 0, 0) < 0)
		fail("the program cannot be attached\n");
	say("attached\n");
	for (;;)
		call(NR_PAUSE, 0, 0, 0, 0, 0, 0);
}

START(run);
