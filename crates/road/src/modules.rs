//! The modules of a kernel's image.
//!
//! Input: an image, its kernel's files, and what was recorded. Output: the image with the modules
//! that were loaded. What is not found is reported, and its code stays without names.

use crate::live_guest;
use anyhow::{Result, anyhow};
use exchange::kinds::FileKind;
use guest::module_files;
use guest::record::RecordingSummary;
use guest::recorded_module::RecordedModule;
use host::note;
use host::recording::Recording;
use image::address::LinkAddr;
use image::module::{ModuleCode, ModuleIdentity};
use image::order::Layout;
use image::{Image, vmlinux};
use layout::Score;
use profile::Profile;
use profile::graph;
use replay::module_places::{ModulePlace, ModulePlaces};
use replay::rows::CopyPlace;
use services::symbols::CodeSymbol;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use trace::RunAddr;

/// The image of a kernel, with the modules that `inputs` name, as [`attach`] adds them.
///
/// # Errors
/// The kernel or a directory cannot be read, or two modules cannot be told apart.
pub fn image_of(kernel: &Path, inputs: &[PathBuf]) -> Result<Image> {
    let mut image = vmlinux::read(&vmlinux::path(kernel))?;
    attach(&mut image, kernel, inputs)?;
    Ok(image)
}

/// Adds to `image` the modules that `inputs` name: recordings (directories) and profiles. `kernel`:
/// the kernel's build tree or its vmlinux. A module without a file is reported.
///
/// ```
/// let home = road::examples::home();
/// let vmlinux = home.path().join("vmlinux");
/// let mut image = image::vmlinux::read(&vmlinux)?;
/// road::modules::attach(&mut image, &vmlinux, &[home.path().join("loop.rec")])?;
/// assert!(image.modules.is_empty(), "the recorded kernel loaded no module");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// A directory of the kernel cannot be read, or two modules cannot be told apart.
pub fn attach(image: &mut Image, kernel: &Path, inputs: &[PathBuf]) -> Result<()> {
    let wanted: BTreeSet<ModuleIdentity> = inputs.iter().flat_map(|path| named_by(path)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let files = module_files::of_kernel(kernel)?;
    let mut found = Vec::new();
    for module in wanted {
        match module_files::code_of(&files, &module) {
            Ok(code) => found.push(code),
            Err(error) => note!("the code of the module {module} has no names: {error:#}"),
        }
    }
    image.attach(found)
}

/// As [`attach`], with the kernel's own build of each module, whichever build the inputs name.
///
/// # Errors
/// As [`attach`].
pub fn attach_own_builds(image: &mut Image, kernel: &Path, inputs: &[PathBuf]) -> Result<()> {
    let wanted: BTreeSet<String> =
        inputs.iter().flat_map(|path| named_by(path)).map(|module| module.name).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let files = module_files::of_kernel(kernel)?;
    let mut found = Vec::new();
    for name in wanted {
        let code = match files.get(&name) {
            Some(path) => module_files::read(path).and_then(|data| ModuleCode::parse(&data)),
            None => Err(anyhow!("its file was not found beside the kernel")),
        };
        match code {
            Ok(code) => found.push(code),
            Err(error) => note!("the counts of the module {name} are lost: {error:#}"),
        }
    }
    image.attach(found)
}

/// Where a recording (a directory) has the code of the image's modules. Another build of a module,
/// and a module that the image does not have, have no place.
///
/// ```
/// let home = road::examples::home();
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let places = road::modules::places(&image, &home.path().join("loop.rec"));
/// assert_eq!(places, replay::module_places::ModulePlaces::default());
/// # anyhow::Ok(())
/// ```
pub fn places(image: &Image, recording: &Path) -> ModulePlaces {
    if image.modules.is_empty() {
        return ModulePlaces::default();
    }
    // What cannot be read has no modules: whoever reads the recording reports it.
    let summary = RecordingSummary::read(&Recording::at(recording));
    let recorded = summary.map_or_else(|_| Vec::new(), |summary| summary.modules);
    let mut places = Vec::new();
    for module in &recorded {
        let known = image.modules.iter().find(|known| known.identity == module.identity);
        for section in known.into_iter().flat_map(|known| &known.sections) {
            let ran = module.sections.iter().find(|ran| ran.name == section.name);
            if let Some(ran) = ran.and_then(|ran| ran.addr()) {
                let initial = section.name.starts_with(".init");
                let (linked, size) = (section.addr, section.size);
                places.push(ModulePlace { ran, linked, size, initial });
            }
        }
    }
    ModulePlaces::new(places)
}

/// What a layout brings for the code of one module, by the counts that it was made from.
pub struct ModuleScore {
    /// The module.
    pub module: ModuleIdentity,
    /// The score of its original order.
    pub original: Score,
    /// The score of the layout.
    pub layout: Score,
}

/// The scores of each module of the image that ran, by name.
///
/// # Errors
/// The profile is not of the image.
pub fn scores(image: &Image, profile: &Profile, layout: &Layout) -> Result<Vec<ModuleScore>> {
    let mut scores = Vec::new();
    for module in &image.modules {
        let input = graph::movable_of_module(image, profile, module)?;
        if input.graph.counts.iter().all(|&count| count == 0) {
            continue;
        }
        let of_module = layout.of_module(&module.identity);
        let original = Layout { runs: Vec::new(), hot: 0, ..of_module.clone() };
        let score = |layout| layout::score(&input.graph, &input.order(image, layout));
        scores.push(ModuleScore {
            module: module.identity.clone(),
            original: score(&original),
            layout: score(&of_module),
        });
    }
    scores.sort_by(|a, b| a.module.cmp(&b.module));
    Ok(scores)
}

/// The code of a module of copies; `None` if it is another module.
fn text_of_copies(module: &RecordedModule) -> Option<Range<u64>> {
    let text = module.sections.iter().find(|section| section.name == ".text")?;
    let at = text.addr().filter(|_| live::install::is_group(&module.identity.name))?.0;
    Some(at..at.saturating_add(text.size))
}

fn output_of(recording: &Path) -> String {
    let output = std::fs::read(Recording::at(recording).output()).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}

/// The symbols of a module of copies; none if it is another module.
fn copies_of(module: &RecordedModule, recording: &Path) -> Vec<CodeSymbol> {
    let Some(text) = text_of_copies(module) else { return Vec::new() };
    live_guest::names_of_copies(&output_of(recording), text)
}

/// Where a recording (a directory) has copies of functions, ascending; nothing if none was
/// replaced. `places`: those of its modules.
pub(crate) fn copies(recording: &Path, places: &ModulePlaces) -> Vec<CopyPlace> {
    let summary = RecordingSummary::read(&Recording::at(recording));
    let recorded = summary.map_or_else(|_| Vec::new(), |summary| summary.modules);
    let mut found = Vec::new();
    for text in recorded.iter().filter_map(text_of_copies) {
        let output = output_of(recording);
        let originals = live_guest::originals_of_copies(&output, text.clone());
        for symbol in live_guest::names_of_copies(&output, text) {
            // `f.kernlane.2` is a part of `f.kernlane`, and so is `f.cold.kernlane.1`.
            let name = symbol.name.split(".kernlane").next().unwrap_or_default();
            let name = name.split(".cold").next().unwrap_or_default();
            if let Some(&original) = originals.get(&format!("{name}.kernlane")) {
                let original = places.linked(RunAddr(original));
                found.push(CopyPlace { ran: RunAddr(symbol.addr.0), size: symbol.size, original });
            }
        }
    }
    found.sort_by_key(|copy| copy.ran);
    found
}

/// The functions of the modules of a recording, at the addresses at which they ran. A place where
/// two modules were at different times has no function. `kernel`: the kernel's build tree or its
/// vmlinux.
///
/// # Errors
/// A directory of the kernel cannot be read.
pub(crate) fn symbols(kernel: &Path, recording: &Path) -> Result<Vec<CodeSymbol>> {
    let Ok(summary) = RecordingSummary::read(&Recording::at(recording)) else {
        return Ok(Vec::new());
    };
    if summary.modules.is_empty() {
        return Ok(Vec::new());
    }
    let files = module_files::of_kernel(kernel)?;
    let mut placed: Vec<(Range<u64>, &ModuleIdentity)> = Vec::new();
    let mut found = Vec::new();
    for module in &summary.modules {
        let copies = copies_of(module, recording);
        if !copies.is_empty() {
            let last = copies.last().map_or(0, |last| last.addr.0 + last.size);
            placed.push((copies[0].addr.0..last, &module.identity));
            found.extend(copies.into_iter().map(|symbol| (&module.identity, symbol)));
            continue;
        }
        let code = match module_files::code_of(&files, &module.identity) {
            Ok(code) => code,
            Err(error) => {
                note!("the code of the module {} has no names: {error:#}", module.identity);
                continue;
            }
        };
        for (linked, ran) in code.module.sections.iter().filter_map(|linked| {
            let ran = module.sections.iter().find(|ran| ran.name == linked.name)?;
            Some((linked, ran.addr()?))
        }) {
            let end = ran.0.saturating_add(linked.size);
            placed.push((ran.0..end, &module.identity));
            for (name, addr, size) in code.functions_in(linked) {
                let addr = LinkAddr(ran.0.wrapping_add(addr.0 - linked.addr.0));
                found.push((&module.identity, CodeSymbol { addr, size, name: symbol_name(name) }));
            }
        }
    }
    let is_alone = |(of, symbol): &(&ModuleIdentity, CodeSymbol)| {
        let end = symbol.addr.0.saturating_add(symbol.size);
        placed
            .iter()
            .all(|(range, other)| other == of || end <= range.start || range.end <= symbol.addr.0)
    };
    let mut symbols: Vec<CodeSymbol> =
        found.into_iter().filter(is_alone).map(|(_, symbol)| symbol).collect();
    symbols.sort_by(|a, b| (a.addr, &a.name).cmp(&(b.addr, &b.name)));
    symbols.dedup();
    Ok(symbols)
}

/// The name of a function of a module, `f.isra.0 [veth]`, with what compilers append behind the
/// module: `f [veth].isra.0`. So parts of a function share its name.
fn symbol_name(name: &str) -> String {
    match name.split_once(" [").map(|(function, module)| (function.split_once('.'), module)) {
        Some((Some((function, endings)), module)) => format!("{function} [{module}.{endings}"),
        _ => name.to_owned(),
    }
}

/// The modules that a recording or a profile names. What cannot be read names none: the caller
/// reads it again and reports it.
fn named_by(input: &Path) -> Vec<ModuleIdentity> {
    if input.is_dir() {
        let summary = RecordingSummary::read(&Recording::at(input));
        let modules = summary.map_or_else(|_| Vec::new(), |summary| summary.modules);
        return modules.into_iter().map(|module| module.identity).collect();
    }
    let text = crate::input_file::text_of(input, &[FileKind::Profile]);
    let profile = text.ok().and_then(|text| Profile::from_json(&text).ok());
    profile.map_or_else(Vec::new, |profile| profile.modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_functions_of_modules_share_their_names() {
        for (name, symbol) in [
            ("veth_xmit [veth]", "veth_xmit [veth]"),
            ("f.isra.0 [veth]", "f [veth].isra.0"),
            ("f.cold [a_b]", "f [a_b].cold"),
        ] {
            assert_eq!(symbol_name(name), symbol);
        }
    }
}
