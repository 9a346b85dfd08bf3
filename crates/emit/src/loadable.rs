//! Rewrites kernel modules.
//!
//! Input: the bytes of a module (`.ko`), and an order of its pieces. Output: the bytes of the same
//! module with its `.text` in that order, and the map. A module is a relocatable object like
//! `vmlinux.o`, so [`crate::object`] rewrites it. The new module has a build id of its own, so that
//! recordings tell the two apart. A signature is cut off: it is one of the old bytes.

use crate::object::{
    DebugInformation, PartNames, RewritePlan, RewriteSummary, cuts_of, order_of, rewrite,
};
use anyhow::{Context, Result, ensure};
use image::BuildId;
use image::address::LinkAddr;
use image::map::PlacementMap;
use image::module::{self, ModuleIdentity};
use image::object::elf::Elf;
use image::object::{KernelObject, ObjectHints};
use image::order::Layout;
use image::ordinary;
use image::place::CallPadding;
use sha2::{Digest, Sha256};

/// What stands at the end of a signed module (`MODULE_SIG_STRING`,
/// include/linux/module_signature.h).
const SIGNED: &[u8] = b"~Module signature appended~\n";
/// Bytes of `struct module_signature`. Its last four are the size of the signature.
const SIGNATURE_FIELDS: usize = 12;

/// The bytes of a module without its signature, and whether it had one.
///
/// # Errors
/// The end of the file says that there is a signature, and there is none.
pub fn unsigned(data: &[u8]) -> Result<(&[u8], bool)> {
    let Some(rest) = data.strip_suffix(SIGNED) else { return Ok((data, false)) };
    let fields = rest.last_chunk::<SIGNATURE_FIELDS>().context("its signature is cut short")?;
    let size = u32::from_be_bytes([fields[8], fields[9], fields[10], fields[11]]) as usize;
    let end = rest.len().checked_sub(SIGNATURE_FIELDS).and_then(|end| end.checked_sub(size));
    Ok((&rest[..end.context("its signature is cut short")?], true))
}

/// A module that can be rewritten.
pub struct ModuleObject<'a> {
    /// The object.
    pub object: KernelObject<'a>,
    /// Which module it is.
    pub identity: ModuleIdentity,
    /// The link address of its `.text`.
    base: LinkAddr,
}

/// A module that was rewritten.
pub struct RewrittenModule {
    /// The bytes of the new module.
    pub bytes: Vec<u8>,
    /// Where the code went. The map names the old module by its build id.
    pub map: PlacementMap,
    /// The new module.
    pub identity: ModuleIdentity,
    /// What the rewrite did.
    pub summary: RewriteSummary,
    /// What happened to debugging information.
    pub debug: DebugInformation,
}

impl<'a> ModuleObject<'a> {
    /// Reads a module without its signature.
    ///
    /// # Errors
    /// The bytes are not a module, or contain something that Kernlane does not understand.
    pub fn read(data: &'a [u8], hints: &ObjectHints) -> Result<ModuleObject<'a>> {
        let object = KernelObject::read(data, hints)?;
        let identity = module::identity(&object.elf)?;
        let sections = module::code_sections(&object.elf, &identity.name)?;
        let text = sections.iter().find(|(id, _)| *id == object.text);
        let base = text.context("it has no code in .text")?.1;
        Ok(ModuleObject { object, identity, base })
    }

    /// The module, and the order of its pieces that a layout for this module gives.
    ///
    /// # Errors
    /// As [`ModuleObject::read`]; or the layout is for another build of the module, or names code
    /// that the module does not have.
    pub fn laid_out(
        data: &'a [u8],
        layout: &Layout,
    ) -> Result<(ModuleObject<'a>, Vec<u32>, usize)> {
        let mut hints = ObjectHints { call_padding: CallPadding::Kept, ..ObjectHints::default() };
        let module = ModuleObject::read(data, &hints)?;
        ensure!(
            module.identity.build_id == layout.build_id.0,
            "the layout is for the build {} of the module, but the file is {}: the module was \
             built again after the recording",
            layout.build_id.0,
            module.identity.build_id
        );
        let size = module.object.elf.section(module.object.text).size;
        layout.ensure_within(std::slice::from_ref(&(module.base.0..module.base.0 + size)))?;
        hints.cuts = cuts_of(layout, module.base, size);
        let module = ModuleObject::read(data, &hints)?;
        let (order, hot) = order_of(layout, &module.object, module.base);
        Ok((module, order, hot))
    }

    /// Rewrites the module. `order`: a permutation of its pieces, of which the first `hot` are hot.
    ///
    /// # Errors
    /// A reference cannot be translated, or the new `.text` is too large.
    pub fn rewrite(&self, order: &[u32], hot: usize) -> Result<RewrittenModule> {
        let plan =
            RewritePlan { order, hot, base: self.base, names: PartNames::Readable, counters: &[] };
        let rewritten = rewrite(&self.object, &plan)?;
        let mut identity = self.identity.clone();
        let mut bytes = rewritten.bytes;
        if order.is_sorted() {
            // Nothing moved: this is the old module, byte for byte.
            bytes = self.object.elf.data.to_vec();
        } else if let Some(id) = new_build_id(&mut bytes, &identity)? {
            identity.build_id = id.0;
        }
        let build_id = BuildId(self.identity.build_id.clone());
        let map = PlacementMap { build_id, placement: rewritten.placement };
        let (summary, debug) = (rewritten.summary, rewritten.debug);
        Ok(RewrittenModule { bytes, map, identity, summary, debug })
    }
}

/// Gives a module the build id that follows from its bytes. `None`: it has none.
fn new_build_id(bytes: &mut [u8], old: &ModuleIdentity) -> Result<Option<BuildId>> {
    let place = {
        let elf = Elf::parse(bytes).context("the new module")?;
        module::build_id_place(&elf).map(|(id, range)| {
            let start = elf.section(id).range.start;
            start + range.start..start + range.end
        })
    };
    let Some(place) = place else { return Ok(None) };
    let hash = Sha256::digest([old.build_id.as_bytes(), &*bytes].concat());
    let id = bytes.get_mut(place).context(".note.gnu.build-id: cut short")?;
    id.iter_mut().zip(hash.iter().cycle()).for_each(|(byte, new)| *byte = *new);
    Ok(Some(BuildId::from_bytes(id)))
}

/// Whether a module has code that a layout can move.
pub fn has_text(data: &[u8]) -> bool {
    let text =
        Elf::parse(data).ok().and_then(|elf| Some(elf.section(elf.by_name(ordinary::TEXT)?).size));
    text.is_some_and(|size| size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::examples;
    use image::order::Run;

    /// `h` in front of `f`.
    fn layout(build_id: &str) -> Layout {
        let base = module::base_of("my_mod").0;
        let run = |at, size| Run { start: LinkAddr(base + at), size, name: String::new() };
        Layout {
            runs: vec![run(0x10, 5), run(0, 11)],
            hot: 2,
            ..Layout::original(BuildId(build_id.into()))
        }
    }

    #[test]
    fn a_module_in_another_order_is_another_build() {
        let data = examples::module();
        let (module, order, hot) = ModuleObject::laid_out(&data, &layout("cafe")).unwrap();
        let rewritten = module.rewrite(&order, hot).unwrap();
        let base = module::base_of("my_mod").0;
        let places: Vec<(u64, u64)> = (rewritten.map.placement.blocks.iter())
            .map(|block| (block.old.0 - base, block.new.0 - base))
            .collect();
        // The jump of `h` to `f`, which follows now, stays: `h` would have no bytes without it.
        assert_eq!(places.iter().find(|place| place.0 == 0x10).map(|place| place.1), Some(0));
        assert!(places.iter().all(|&(old, new)| old == 0x10 || new >= 2), "{places:?}");
        assert_eq!(rewritten.map.build_id.0, "cafe");
        assert_ne!(rewritten.identity.build_id, "cafe");
        let read = Elf::parse(&rewritten.bytes).unwrap();
        assert_eq!(module::identity(&read).unwrap(), rewritten.identity);
        let (again, order, hot) = ModuleObject::laid_out(&data, &layout("cafe")).unwrap();
        assert_eq!(again.rewrite(&order, hot).unwrap().bytes, rewritten.bytes);
    }

    #[test]
    fn a_module_in_its_own_order_stays_byte_for_byte() {
        let data = examples::module();
        let module = ModuleObject::read(&data, &ObjectHints::default()).unwrap();
        let order: Vec<u32> = (0..module.object.pieces.len() as u32).collect();
        let rewritten = module.rewrite(&order, 0).unwrap();
        assert!(rewritten.bytes == data && rewritten.identity.build_id == "cafe");
    }

    #[test]
    fn a_layout_of_another_build_is_refused() {
        let data = examples::module();
        let error = ModuleObject::laid_out(&data, &layout("beef")).err().unwrap().to_string();
        assert!(error.contains("the layout is for the build beef"), "{error}");
        let mut outside = layout("cafe");
        outside.runs[1].size = 0x100;
        let error = ModuleObject::laid_out(&data, &outside).err().unwrap().to_string();
        assert!(error.contains("lies outside"), "{error}");
    }

    #[test]
    fn signatures_are_cut_off() {
        let data = examples::module();
        assert_eq!(unsigned(&data).unwrap(), (&data[..], false));
        let fields = [[0; 8].as_slice(), &3_u32.to_be_bytes()].concat();
        let signed = [&data, b"sig".as_slice(), &fields, SIGNED].concat();
        assert_eq!(unsigned(&signed).unwrap(), (&data[..], true));
        assert!(unsigned(SIGNED).is_err());
        let long = [[0xff; 12].as_slice(), SIGNED].concat();
        assert!(unsigned(&long).is_err());
        assert!(has_text(&data) && !has_text(b""));
    }
}
