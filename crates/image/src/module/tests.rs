//! Small modules, cut into blocks and added to the image of a kernel.

use super::*;
use crate::examples;
use crate::examples::module;

const KERNEL: LinkAddr = LinkAddr(0xffff_ffff_8100_0000);

#[test]
fn a_module_is_cut_into_blocks_at_addresses_of_its_own() {
    let code = ModuleCode::parse(&module()).unwrap();
    let base = base_of("my_mod").0;
    assert_eq!(code.module.identity.to_string(), "my_mod (cafe)");
    let sections: Vec<_> =
        code.module.sections.iter().map(|s| (s.name.as_str(), s.addr.0 - base, s.size)).collect();
    assert_eq!(sections, [(".text", 0, 0x15), (".init.text", 1 << 26, 1)]);
    let functions: Vec<_> =
        code.functions.iter().map(|f| (f.name.as_str(), f.addr.0 - base)).collect();
    assert_eq!(functions, [("f [my_mod]", 0), ("h [my_mod]", 0x10), ("i [my_mod]", 1 << 26)]);
    let blocks: Vec<_> = code.blocks.iter().map(|b| (b.addr.0 - base, b.size)).collect();
    assert_eq!(blocks, [(0, 5), (5, 5), (10, 1), (0x10, 5), (1 << 26, 1)]);
    assert_eq!(code.blocks[1].end, BlockEnd::Jump(LinkAddr(base + 10)));
    assert_eq!(code.blocks[3].end, BlockEnd::Jump(LinkAddr(base)));
}

#[test]
fn an_image_with_a_module_knows_the_blocks_of_both() {
    let mut image = examples::caller_and_callee(KERNEL);
    let before = image.clone();
    image.attach(vec![ModuleCode::parse(&module()).unwrap()]).unwrap();
    let base = base_of("my_mod");
    let at =
        |addr: LinkAddr| image.block_at(addr).map(|block| image.function_of(block).name.as_str());
    assert_eq!(at(LinkAddr(base.0 + 10)), Some("f [my_mod]"));
    assert_eq!(at(LinkAddr(KERNEL.0 + 4)), Some("f"));
    // The call goes to the kernel's function.
    let call = image.block_at(base).unwrap();
    assert_eq!(image.block(call).end, BlockEnd::Call(Some(LinkAddr(KERNEL.0 + 0x20))));
    assert_eq!(image.module_of(call).map(|module| module.identity.name.as_str()), Some("my_mod"));
    let own = image.block_at(KERNEL).unwrap();
    assert_eq!(image.module_of(own), None);
    assert!(image.functions.windows(2).all(|pair| pair[0].addr < pair[1].addr));
    let movable = |image: &Image| image.functions.iter().filter(|f| f.movable()).count();
    assert_eq!(movable(&image), movable(&before) + 2, "what only initialisation needs stays");
    let again = image.attach(vec![ModuleCode::parse(&module()).unwrap()]).unwrap_err().to_string();
    assert!(again.contains("my_mod and my_mod have the same link addresses"), "{again}");
}

#[test]
fn addresses_of_modules_are_no_addresses_of_code_that_runs() {
    for name in ["veth", "nf_conntrack", "x", ""] {
        let base = base_of(name);
        assert!(is_of_module(base) && base.0.is_multiple_of(1 << 32), "{base}");
        // Bits 63 to 47 of an address that runs are equal.
        assert_ne!(base.0 as i64 >> 47, -1, "{base}");
    }
    assert!(!is_of_module(KERNEL) && !is_of_module(LinkAddr(0x6000_0000)));
    assert_ne!(base_of("veth"), base_of("dummy"));
}

#[test]
fn damaged_modules_give_errors() {
    let whole = module();
    assert!(ModuleCode::parse(&whole).is_ok());
    for size in (0..whole.len()).step_by(7) {
        let _ = ModuleCode::parse(&whole[..size]);
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        let _ = ModuleCode::parse(&damaged);
    }
    let place = whole.windows(5).position(|bytes| bytes == b"name=").unwrap();
    let mut nameless = whole;
    nameless[place] = b'x';
    let error = format!("{:#}", ModuleCode::parse(&nameless).unwrap_err());
    assert!(error.contains(".modinfo: does not say the module's name"), "{error}");
}
