//! Labels of the linker script in the padding of functions.

use super::*;

/// A label of the linker script lies in front of f, where f's call padding begins. In the new
/// kernel f comes later, with two bytes of its padding, and g follows the label.
#[test]
fn a_label_in_call_padding_stays_in_front_of_the_same_code() {
    let with = |name: &'static str, label: u64, front: &[u8], mut kernel: TestKernel| {
        kernel.front = front.to_vec();
        kernel.symbols.push(TestSymbol(name, label, 0));
        for (name, at) in [("skl_call_thunk_template", 8), ("skl_call_thunk_tail", 10)] {
            kernel.symbols.push(TestSymbol(name, DATA + at, 0));
        }
        kernel
    };
    let before = |name: &'static str, front: &[u8]| {
        let mut kernel = with(name, TEXT - 16, front, old());
        kernel.symbols.push(TestSymbol("__pfx_f", TEXT - 16, 16));
        kernel
    };
    let after = |name: &'static str, label: u64, front: &[u8]| {
        let mut kernel = with(name, label, front, new());
        kernel.text[0x0e..0x10].fill(0x90);
        kernel.symbols.push(TestSymbol("__pfx_f", TEXT + 0x0e, 2));
        kernel
    };
    let (no_ops, int3) = ([0x90; 16], [0xcc; 16]);
    let (start, by_frequency) = ("__start_of_code", "__hot_text_start");
    for (name, front) in [(start, &no_ops), (start, &int3), (by_frequency, &no_ops)] {
        let kinds =
            |label| kinds_between(&before(name, &no_ops), &after(name, label, front), &map());
        assert_eq!(kinds(TEXT - 16), [""; 0]);
        assert_eq!(kinds(TEXT), [""; 0], "no code lies in between");
        for label in [TEXT + 2, TEXT + 0x41] {
            assert_eq!(kinds(label), ["code divided by a label"], "in the middle of code");
        }
        let passed = if name == start { &["code divided by a label"][..] } else { &[] };
        assert_eq!(kinds(TEXT + 0x10), passed, "g is in front of the label, f behind it");
    }
    let kinds = |after: &TestKernel| kinds_between(&before(start, &no_ops), after, &map());
    let mut code = no_ops;
    code[15] = 0xc3;
    assert_eq!(kinds(&after(start, TEXT - 16, &code)), ["coverage"], "other code");
    code[15] = 0x90;
    code[0] = 0xb8;
    let (was, is) = (before(start, &code), after(start, TEXT - 16, &no_ops));
    assert!(!kinds_between(&was, &is, &map()).is_empty(), "what is missing was no padding");
    let mut without = after(start, TEXT - 16, &no_ops);
    without.symbols.retain(|symbol| symbol.0 != start);
    assert_eq!(kinds(&without), ["symbols"]);
    let mut short = after(start, TEXT - 16, &no_ops);
    (short.symbols.last_mut().unwrap().1, short.symbols.last_mut().unwrap().2) = (TEXT + 0x0f, 1);
    assert!(!kinds(&short).is_empty(), "less padding than the kernel patches");
}

/// A compiler that keeps its labels puts one into the padding of each function. It divides nothing:
/// in the new kernel g lies in front of it.
#[test]
fn a_compilers_label_in_call_padding_goes_with_its_function() {
    for name in [".Ltmp0", "__pi_.Ltmp0"] {
        compilers_label_in_call_padding(name);
    }
}

fn compilers_label_in_call_padding(label: &'static str) {
    let with = |at: u64, size: u64, mut kernel: TestKernel| {
        kernel.front = vec![0x90; 16];
        let template = [("skl_call_thunk_template", DATA + 8), ("skl_call_thunk_tail", DATA + 10)];
        kernel.symbols.extend(template.map(|(name, at)| TestSymbol(name, at, 0)));
        kernel.symbols.push(TestSymbol("__pfx_f", TEXT.wrapping_add(at), size));
        kernel.symbols.push(TestSymbol(label, TEXT.wrapping_add(at), 0));
        kernel
    };
    let mut after = with(0x0e, 2, new());
    after.text[0x0e..0x10].fill(0x90);
    let before = with(16u64.wrapping_neg(), 16, old());
    assert_eq!(kinds_between(&before, &after, &map()), [""; 0]);
}

/// The padding of g keeps its size and is in no block of the map: it passes a label around hot code
/// together with g. Another label it may not pass.
#[test]
fn padding_passes_a_label_with_its_function() {
    for (name, expected) in
        [("__hot_text_start", &[][..]), ("__start_of_code", &["code divided by a label"][..])]
    {
        let mut before = padded();
        before.symbols.push(TestSymbol(name, TEXT + 0x0e, 0));
        let mut after = new();
        after.front = [&[0xcc; 14][..], &[0x90; 2]].concat();
        after.symbols.push(TestSymbol("__pfx_g", TEXT - 2, 2));
        after.unwinder.insert(0, (TEXT - 2, 16));
        after.symbols.push(TestSymbol(name, TEXT + 0x47, 0));
        assert_eq!(kinds_between(&before, &after, &map()), expected, "{name}");
    }
}

/// A label around hot code lies right behind g, in front of an int3 and the padding of h, and in
/// the new kernel in front of no-ops and g.
#[test]
fn a_label_around_hot_code_may_lie_behind_a_function() {
    let with = |name: &'static str, label: u64, mut kernel: TestKernel| {
        kernel.text[0x1a..0x20].fill(0x90);
        kernel.symbols.push(TestSymbol("__pfx_h", TEXT + 0x1a, 6));
        kernel.symbols.push(TestSymbol(name, label, 0));
        kernel
    };
    let kinds = |name, label| {
        let mut after = with(name, label, new());
        after.front = vec![0x90; 16];
        kinds_between(&with(name, TEXT + 0x19, old()), &after, &map())
    };
    assert_eq!(kinds("__hot_text_end", TEXT - 16), [""; 0]);
    assert_eq!(kinds("__hot_text_end", TEXT + 0x09), [""; 0]);
    let inside = kinds("__hot_text_end", TEXT + 0x12);
    assert!(inside.contains(&"code divided by a label"), "{inside:?}");
    assert_eq!(kinds("__start_of_code", TEXT + 0x09), [""; 0]);
}

/// Behind s comes the call padding of f, with a label. The map has f, but not s.
#[test]
fn code_outside_of_the_map_passes_no_label() {
    let with = |label: u64, mut kernel: TestKernel| {
        kernel.front = [&[0xc3][..], &[0xcc; 15], &[0x90; 16]].concat();
        kernel.symbols.push(TestSymbol("s", TEXT - 32, 1));
        kernel.symbols.push(TestSymbol("__hot_text_start", label, 0));
        kernel
    };
    let mut before = with(TEXT - 16, old());
    before.symbols.push(TestSymbol("__pfx_f", TEXT - 16, 16));
    let map = Placement { call_padding: CallPadding::Dropped, ..map() };
    let kinds = |label| kinds_between(&before, &with(label, new()), &map);
    assert_eq!(kinds(TEXT - 16), [""; 0]);
    assert_eq!(kinds(TEXT + 0x10), [""; 0]);
    assert_eq!(kinds(TEXT - 32), ["code divided by a label"]);
}

/// A label in the middle of f goes with its instruction, although names without a size may be the
/// linker script's.
#[test]
fn a_label_inside_of_a_function_names_the_same_instruction() {
    let with = |at: u64, mut kernel: TestKernel| {
        kernel.symbols.push(TestSymbol("inner", TEXT + at, 0));
        kernel
    };
    let kinds = |at| kinds_between(&with(0x0a, old()), &with(at, new()), &map());
    assert_eq!(kinds(0x15), [""; 0]);
    for wrong in [0x12, 0x17, 0x40, 0x20] {
        assert!(kinds(wrong).contains(&"symbols"), "{wrong:x}");
    }
}
