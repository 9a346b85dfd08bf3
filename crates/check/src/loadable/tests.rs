//! Small modules, right and wrong, given to the checker.

use super::*;
use image::examples::module;

fn holds(new: &[u8]) -> Result<bool> {
    Ok(prove(&module(), new, None, 10)?.holds)
}

#[test]
fn a_module_is_itself() {
    let proof = prove(&module(), &module(), None, 10).unwrap();
    assert!(proof.holds, "{}", proof.text);
    assert!(is_relocatable(&module()));
}

/// Each changed byte of code, of a relocation or of `.modinfo` is a difference, or makes the file
/// unreadable.
#[test]
fn changes_are_noticed() {
    let old = module();
    let place = |bytes: &[u8]| old.windows(bytes.len()).position(|window| window == bytes).unwrap();
    // The jump of `f`, its return, the jump of `h`, and the license.
    let jump = place(&[0xe9, 0, 0, 0, 0, 0xc3]);
    let tail = place(&[0xe9, 0xeb, 0xff, 0xff, 0xff]);
    for at in [jump + 1, jump + 5, tail, tail + 1, place(b"GPL")] {
        let mut new = old.clone();
        new[at] ^= 1;
        assert!(!holds(&new).unwrap_or(false), "byte {at}");
    }
    // The addend of the call's relocation: it would go into the middle of `g`.
    let addend = place(&(-4_i64).to_le_bytes());
    let mut new = old.clone();
    new[addend] ^= 4;
    assert!(!holds(&new).unwrap());
}

/// An example module with a further section that is not loaded.
fn with_section(name: &str, flags: elf::SectionFlags, bytes: &[u8]) -> Vec<u8> {
    let mut file = image::examples::module_object();
    let id = file.add_section(Vec::new(), name.into(), object::SectionKind::Other);
    file.section_mut(id).flags =
        object::SectionFlags::Elf { sh_type: elf::SHT_PROGBITS, sh_flags: flags };
    file.append_section_data(id, bytes, 1);
    file.write().unwrap()
}

#[test]
fn what_informs_the_linker_only_may_be_left_out() {
    for (name, flags, may_go) in [
        (".llvm_addrsig", elf::SHF_EXCLUDE, true),
        (".llvm_bb_addr_map", elf::SectionFlags(0), true),
        (".comment", elf::SectionFlags(0), false),
    ] {
        let old = with_section(name, flags, &[1, 2]);
        let holds = |new: &[u8]| prove(&old, new, None, 10).unwrap().holds;
        assert!(holds(&old), "{name}");
        assert_eq!(holds(&with_section(name, flags, &[])), may_go, "{name}: empty");
        assert_eq!(holds(&module()), may_go, "{name}: missing");
        assert!(!holds(&with_section(name, flags, &[1, 3])), "{name}: changed");
    }
}

#[test]
fn damaged_modules_give_errors_or_differences() {
    let old = module();
    for at in 0..old.len() {
        let mut new = old.clone();
        new[at] ^= 0x55;
        let _ = prove(&new, &old, None, 1);
        let _ = prove(&old, &new, None, 1);
        let _ = prove(&old, &old[..at], None, 1);
    }
}

#[test]
fn a_map_of_another_module_is_refused() {
    let map =
        PlacementMap { build_id: image::BuildId("beef".into()), placement: Placement::default() };
    let error = prove(&module(), &module(), Some(&map), 1).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("build id beef, but the old module has build id cafe"), "{error}");
}

#[test]
fn tables_are_sorted_as_the_loader_sorts_them() {
    // Two exceptions: the second one's instruction lies in front of the first one's.
    let mut table = Vec::new();
    for (at, [instruction, fixup]) in [(0_i32, [100, 200]), (12, [60, 300])] {
        table.extend((instruction - at).to_le_bytes());
        table.extend((fixup - at - 4).to_le_bytes());
        table.extend(at.to_le_bytes());
    }
    sort_entries(&mut table, 0, 12, &[0, 4], &mut []).unwrap();
    let expected: Vec<u8> = [60_i32, 300 - 4, 12, 100 - 12, 200 - 16, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(table, expected);
    assert!(sort_entries(&mut [0; 13], 0, 12, &[0, 4], &mut []).is_err());
}
