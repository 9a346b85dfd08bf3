//! The points of thunks: the code through which a kernel's mitigations lead returns and indirect
//! branches, copied as user code from Linux 6.12, arch/x86/lib/retpoline.S, and the plain branches
//! beside it.
//!
//! Output: points. One operation is a call and its return. The kernel's safe return lies at an
//! address that the entry of the kernel untrains. Here it lies anywhere.

use super::point::{Memory, Point, repeated};

/// The name of all these points before the slash.
pub(super) const CURVE: &str = "thunk";

/// Calls of an iteration, each from another place.
const CALLS: u64 = 8;
const ITERATIONS: u64 = 2500;
/// How deep calls go until call-depth tracking fills the return stack.
const DEEP: u64 = 24;

/// A way to call and return.
struct Way {
    name: &'static str,
    /// Calls the function, whose address is in `%r11`.
    call: &'static str,
    /// Ends the function.
    ends: &'static str,
    /// The thunks.
    thunks: &'static str,
}

const PLAIN_CALL: &str = "call {f}";
/// A thunk begins in the upper half of a line.
macro_rules! upper_half {
    ($label:literal, $branch:literal) => {
        concat!(".balign 64, 0xcc\n.skip 32, 0xcc\n", $label, ":\n", $branch, "\nint3")
    };
}

/// The safe return, by an instruction that drops the address of the inner call.
macro_rules! safe_return {
    ($drops:literal) => {
        concat!(".balign 64\n{t}safe:\n", $drops, "\nret\nint3\n{t}return:\ncall {t}safe\nud2")
    };
}

const WAYS: [Way; 8] = [
    Way { name: "return", call: PLAIN_CALL, ends: "ret", thunks: "" },
    // srso_alias_return_thunk and srso_alias_safe_ret.
    Way {
        name: "safe-return",
        call: PLAIN_CALL,
        ends: "jmp {t}return",
        thunks: safe_return!("lea 8(%rsp), %rsp"),
    },
    // As in Linux before commit ba5ca5e5e6a1: it changes the flags.
    Way {
        name: "safe-return-add",
        call: PLAIN_CALL,
        ends: "jmp {t}return",
        thunks: safe_return!("add $8, %rsp"),
    },
    // Four jumps more on the way.
    Way {
        name: "safe-return-jumps",
        call: PLAIN_CALL,
        ends: ".rept 4\njmp 4f\n.balign 16\n4:\n.endr\njmp {t}return",
        thunks: safe_return!("lea 8(%rsp), %rsp"),
    },
    // its_return_thunk.
    Way {
        name: "aligned-return",
        call: PLAIN_CALL,
        ends: "jmp {t}return",
        thunks: upper_half!("{t}return", "ret"),
    },
    Way { name: "indirect-call", call: "call *%r11", ends: "ret", thunks: "" },
    // __x86_indirect_thunk_r11.
    Way {
        name: "retpoline",
        call: "call {t}r11",
        ends: "ret",
        thunks: ".balign 32\n{t}r11:\ncall 2f\nint3\n2:\nmov %r11, (%rsp)\nret\nint3",
    },
    // __x86_indirect_its_thunk_r11.
    Way {
        name: "aligned-call",
        call: "call {t}r11",
        ends: "ret",
        thunks: upper_half!("{t}r11", "jmp *%r11"),
    },
];

impl Way {
    fn point(&self) -> Point {
        let thunk = format!(".Lthunk_{}_", self.name.replace('-', "_"));
        let function = format!("{thunk}function");
        let text = |text: &str| text.replace("{f}", &function).replace("{t}", &thunk);
        Point {
            before: format!("xor %eax, %eax\nlea {function}(%rip), %r11"),
            body: repeated(CALLS, &text(self.call)),
            after: format!(
                "ret\n.balign 64\n{function}:\ninc %rax\n{}\n{}",
                text(self.ends),
                text(self.thunks)
            ),
            ..calls(self.name, CALLS)
        }
    }
}

/// A point without code that makes `each` calls in an iteration.
fn calls(name: &str, each: u64) -> Point {
    Point {
        name: format!("{CURVE}/{name}"),
        size: None,
        operations: each * ITERATIONS,
        iterations: ITERATIONS,
        memory: Memory::None,
        expected: each * ITERATIONS,
        before: String::new(),
        body: String::new(),
        after: String::new(),
    }
}

/// Calls `deep`, each counted as call-depth tracking counts them (`INCREMENT_CALL_DEPTH`,
/// `call_depth_return_thunk`, `CREDIT_CALL_DEPTH`). After 13 returns without a call, the thunk
/// fills the return stack.
fn call_depth(name: &str, deep: u64) -> Point {
    let label = |what: &str| format!(".Lthunk_{}_{what}", name.replace('-', "_"));
    let returns = format!("jmp {}", label("return"));
    let further = format!("inc %rax\nsarq $5, (%rsi)\ncall 3f\n{returns}\n.balign 16\n3:");
    Point {
        memory: Memory::Scratch,
        // As the entry of the kernel has it: RESET_CALL_DEPTH.
        before: "xor %eax, %eax\nbts $63, %rax\nmov %rax, (%rsi)\nxor %eax, %eax".to_owned(),
        body: format!("sarq $5, (%rsi)\ncall {}", label("function")),
        after: format!(
            "ret\n.balign 64\n{}:\n{}\ninc %rax\n{returns}\n\
             .balign 64\n{}:\nshlq $5, (%rsi)\njz 1f\nret\nint3\n\
             1:\n.rept 16\ncall 2f\nint3\n2:\n.endr\nadd $128, %rsp\nmovq $-1, (%rsi)\nret\nint3",
            label("function"),
            repeated(deep - 1, &further),
            label("return"),
        ),
        ..calls(name, deep)
    }
}

/// All points of thunks.
pub(super) fn points() -> impl Iterator<Item = Point> {
    let depths = [("call-depth", 1), ("call-depth-filled", DEEP)];
    let depths = depths.into_iter().map(|(name, deep)| call_depth(name, deep));
    WAYS.iter().map(Way::point).chain(depths)
}
