//! Code of a few instructions, followed.

use super::*;

const BASE: u64 = 0x1000;
const WANTED: u64 = 0x9000;
const GIVES: u64 = 0x9100;

/// The states at the calls of [`WANTED`] in this code.
fn states(code: &[u8]) -> Vec<State> {
    let bytes = |at: u64| at.checked_sub(BASE).and_then(|at| code.get(at as usize..));
    let call = |target| match target {
        WANTED => CallKind::Ends,
        GIVES => CallKind::Gives,
        _ => CallKind::Other,
    };
    follow(BASE, &bytes, &call, u64::MAX)
}

/// `call TO`, as the instruction at this offset.
fn call(at: usize, to: u64) -> Vec<u8> {
    let mut bytes = vec![0xe8];
    bytes.extend((to.wrapping_sub(BASE + at as u64 + 5) as u32).to_le_bytes());
    bytes
}

/// Code that ends with a call of [`WANTED`].
fn before_call(code: &[u8]) -> Vec<State> {
    states(&[code, &call(code.len(), WANTED)].concat())
}

fn text(held: &Held) -> String {
    match held {
        Held::Value(value) => value.to_string(),
        Held::Given(at) => format!("given+{at}"),
        Held::Unknown => "?".to_owned(),
    }
}

#[test]
fn loads_and_moves_are_followed() {
    let code = [
        &[0x48, 0x8b, 0x78, 0x08][..],                     // mov 8(%rax),%rdi
        &[0x48, 0x89, 0xde],                               // mov %rbx,%rsi
        &[0x8b, 0x56, 0x10],                               // mov 0x10(%rsi),%edx
        &[0x48, 0x63, 0x4d, 0xf8],                         // movslq -8(%rbp),%rcx
        &[0x65, 0x4c, 0x8b, 0x04, 0x25, 0x40, 0x1a, 0, 0], // mov %gs:0x1a40,%r8
        &[0x45, 0x31, 0xc9],                               // xor %r9d,%r9d
    ]
    .concat();
    let [state] = &before_call(&code)[..] else { panic!() };
    let registers = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];
    let held: Vec<String> = registers.map(|name| text(state.register(name))).into();
    assert_eq!(held, ["rax,+8,u8", "rbx", "rbx,+16,u4", "rbp,-8,s4", "percpu,+6720,u8", "0x0"]);
}

#[test]
fn the_stack_gives_back_what_was_put_there() {
    let code = [
        &[0x53][..],                     // push %rbx
        &[0x48, 0x83, 0xec, 0x10],       // sub $16,%rsp
        &[0x48, 0x89, 0x3c, 0x24],       // mov %rdi,(%rsp)
        &[0x8b, 0x34, 0x24],             // mov (%rsp),%esi
        &[0x48, 0x8b, 0x54, 0x24, 0x10], // mov 16(%rsp),%rdx
        &[0x48, 0x8b, 0x4c, 0x24, 0x20], // mov 32(%rsp),%rcx: the caller's
        &[0x4c, 0x8b, 0x44, 0x24, 0x08], // mov 8(%rsp),%r8: never written
    ]
    .concat();
    let [state] = &before_call(&code)[..] else { panic!() };
    let held: Vec<String> = ["rsi", "rdx", "rcx", "r8"].map(|it| text(state.register(it))).into();
    assert_eq!(held, ["rdi,bits:0:32", "rbx", "rsp,+8,u8", "?"]);
    assert_eq!(text(&state.on_stack(0)), "rdi");
}

#[test]
fn a_part_of_what_was_stored_is_not_the_whole() {
    let code = [
        &[0x53][..],                     // push %rbx
        &[0x88, 0x14, 0x24],             // mov %dl,(%rsp)
        &[0x48, 0x8b, 0x3c, 0x24],       // mov (%rsp),%rdi
        &[0x0f, 0xb6, 0x34, 0x24],       // movzbl (%rsp),%esi
        &[0x8b, 0x4c, 0x24, 0x04],       // mov 4(%rsp),%ecx
        &[0x4c, 0x89, 0x64, 0x24, 0x08], // mov %r12,8(%rsp): over the caller's
        &[0x44, 0x8b, 0x44, 0x24, 0x0c], // mov 12(%rsp),%r8d
    ]
    .concat();
    let [state] = &before_call(&code)[..] else { panic!() };
    let held: Vec<String> = ["rdi", "rsi", "rcx", "r8"].map(|it| text(state.register(it))).into();
    assert_eq!(held, ["?", "rdx,bits:0:8", "?", "?"]);
}

#[test]
fn what_is_computed_is_unknown() {
    let code = [
        &[0x40, 0x0f, 0x94, 0xc6][..], // sete %sil
        &[0x48, 0x0f, 0xaf, 0xd3],     // imul %rbx,%rdx
        &[0x48, 0x8b, 0x0c, 0xd8],     // mov (%rax,%rbx,8),%rcx
        &[0x0f, 0xb6, 0xff],           // movzbl %bh,%edi
    ]
    .concat();
    let [state] = &before_call(&code)[..] else { panic!() };
    let held: Vec<String> = ["rsi", "rdx", "rcx", "rdi"].map(|it| text(state.register(it))).into();
    assert_eq!(held, ["?", "?", "?", "?"]);
}

#[test]
fn stores_into_given_memory_are_kept_on_each_path() {
    let mut code = call(0, GIVES);
    code.extend([0x85, 0xdb]); // test %ebx,%ebx
    code.extend([0x74, 0x03]); // je over the next
    code.extend([0x89, 0x58, 0x08]); // mov %ebx,8(%rax)
    code.extend([0x4c, 0x89, 0x60, 0x10]); // mov %r12,16(%rax)
    let states = before_call(&code);
    let mut stores: Vec<Vec<String>> = states
        .iter()
        .map(|state| {
            let stored = state.stored.iter();
            stored.map(|it| format!("{}:{}={}", it.at, it.bytes, text(&it.what))).collect()
        })
        .collect();
    stores.sort();
    assert_eq!(stores, [vec!["16:8=r12"], vec!["8:4=rbx,bits:0:32", "16:8=r12"]]);
}

#[test]
fn a_call_changes_what_it_may() {
    let mut code = call(0, 0x5000);
    code.extend([0x48, 0x89, 0xde]); // mov %rbx,%rsi
    let [state] = &before_call(&code)[..] else { panic!() };
    assert_eq!(text(state.register("rsi")), "rbx");
    assert_eq!(text(state.register("rdi")), "?");
}

#[test]
fn loops_and_code_without_the_call_end() {
    assert!(states(&[0xeb, 0xfe]).is_empty()); // jmp to itself
    assert!(states(&[0x90, 0xc3]).is_empty());
    // add $1,%rdi; jmp back: always another state.
    assert!(states(&[0x48, 0x83, 0xc7, 0x01, 0xeb, 0xfa]).is_empty());
    assert!(states(&[0x06]).is_empty()); // no instruction
}

#[test]
fn values_behind_a_call_are_said_by_its_arguments() {
    let value = |text: &str| text.parse::<ProbeValue>().unwrap();
    let mut arguments: Vec<Option<ProbeValue>> = vec![None, Some(value("r13,+8"))];
    arguments.resize(6, None);
    arguments.push(Some(value("rbx")));
    let said = |text: &str| composed(&value(text), &arguments).map(|it| it.to_string());
    assert_eq!(said("rsi,+16,u4").as_deref(), Some("r13,+24,u4"));
    assert_eq!(said("rsp,+8,s4,+1").as_deref(), Some("rbx,sbits:0:32,+1"));
    assert_eq!(said("percpu,+8,u8").as_deref(), Some("percpu,+8,u8"));
    assert_eq!(said("rdi"), None); // the tracer's own
    assert_eq!(said("rdx"), None);
    assert_eq!(said("rbx"), None);
    assert_eq!(said("rsp,+12,u8"), None);
}
