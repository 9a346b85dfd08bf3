//! Installs an ordered group.
//!
//! Input: a group and an order of its pieces. It emits the module, has it proven, finds the
//! callers, loads the module, and passes everything to `/dev/kernlane`. Where a step fails, the
//! kernel's code has not changed, and a module that was loaded is removed.

use crate::callers::{self, Caller};
use crate::device::{self, Device, RawCall, RawFunction};
use crate::group::Group;
use crate::identity::{GroupId, ModuleNumber};
use crate::memory::Memory;
use crate::turn::Turn;
use anyhow::{Context, Result, bail, ensure};
use check::module::{CopyClaim, InlineClaim, check_module};
use emit::module::{EmittedModule, InPlace, InlinedCall, LoaderFacts, ModulePlan, emit};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::linked::exports::ExportedSymbol;
use image::object::pieces::Piece;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::ffi::CString;
use std::ops::Range;
use std::time::Duration;

pub use emit::module::TextPage;

/// The names of modules of groups, without their number.
const PREFIX: &str = "kernlane_";

/// A group ready to be installed.
pub struct PreparedGroup {
    /// The name and the number of its module.
    pub id: GroupId,
    /// Its module.
    pub module: EmittedModule,
    /// The calls and jumps in the kernel to its functions.
    pub callers: Vec<Caller>,
    functions: Vec<Member>,
    /// The pages that the module's text fills.
    page: TextPage,
}

/// What copies are made for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'p> {
    /// To run in place of their originals. The text fills such pages.
    Run(TextPage),
    /// To count blocks for a while. Per piece: the instruction in front of which its counter
    /// stands.
    Count(&'p [Option<LinkAddr>]),
}

/// An installed group: its address, and the processor time of its installation.
pub struct Installation {
    /// The address of the copies' `.text`.
    pub text: u64,
    /// The size of the pages in which the copies lie, in bytes; `None` if the device did not say.
    pub page: Option<u64>,
    /// Why these are not the pages that the module was made for.
    pub small: Option<String>,
    /// The processor time of the kernel's loader.
    pub loading: Duration,
    /// The processor time of comparing, diverting and writing. Waiting for tasks takes none.
    pub patching: Duration,
}

/// A change of the kernel's code that an installation makes. Addresses are those of the running
/// kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodeWrite {
    /// A jump to a copy.
    Jump {
        /// The address of the jump, behind the tracer's site.
        at: u64,
        /// The replaced function, with its module behind it.
        function: String,
        /// The offset in the module's `.text` at which the copy is entered.
        copy: u32,
    },
    /// A call or jump that goes to a copy from then on.
    Call {
        /// The address of the instruction.
        at: u64,
        /// The function that holds the instruction; `None` if no symbol names one.
        caller: Option<String>,
    },
}

struct Member {
    /// Index into the group's functions.
    function: u32,
    entry: LinkAddr,
    patch_at: u32,
    expected: [u8; 5],
    copy: u32,
    /// Only copies call its copy.
    carried: bool,
}

/// The exported symbol through which the copies refer to the kernel. Every kernel has this one.
const BASE: &str = "_printk";

/// What the kernel's loader expects in a module.
///
/// # Errors
/// The vmlinux lacks `vermagic`, the layout of `struct module`, or an export.
pub fn loading<'a>(kernel: &'a LinkedKernel<'_>) -> Result<LoaderFacts<'a>> {
    Ok(LoaderFacts {
        magic: kernel.version_magic()?,
        structure: kernel.module_structure()?,
        base: kernel.export(BASE)?,
        layout: layout(kernel)?,
    })
}

/// `module_layout`, whose checksum the loader compares first. A kernel without checksums need not
/// export it.
fn layout(kernel: &LinkedKernel<'_>) -> Result<Option<ExportedSymbol>> {
    let has_checksums = kernel.loaded("__kcrctab").is_some_and(|(_, bytes)| !bytes.is_empty());
    has_checksums.then(|| kernel.export("module_layout")).transpose()
}

/// The bytes of no-ops that the entries of copies need in front: 16 where call-depth tracking is
/// switched on, which patches them, and 0 elsewhere.
///
/// # Errors
/// Memory cannot be read.
pub(crate) fn padding(kernel: &LinkedKernel<'_>, memory: &dyn Memory) -> Result<u32> {
    for &site in kernel.tables.calls.iter().take(64) {
        let (file, live) = (kernel.bytes(LinkAddr(site), 5), memory.read(LinkAddr(site), 5)?);
        if file.is_some_and(|file| file[0] == 0xe8 && live[0] == 0xe8 && file != live) {
            return Ok(16);
        }
    }
    Ok(0)
}

/// Emits the module, proves it, and finds the callers of the group's functions. `order`: a
/// permutation of the group's pieces.
///
/// # Errors
/// No function of the group can be replaced, or a function cannot be copied; the proof fails; a
/// function outside of the group jumps into the bytes that are replaced.
pub fn prepare(
    group: &Group<'_, '_>,
    memory: &dyn Memory,
    order: &[u32],
    purpose: Purpose<'_>,
    name: &str,
) -> Result<PreparedGroup> {
    let original = &group.original;
    let kernel = original.kernel;
    ensure!(!group.members.is_empty(), "no function is left that can be replaced");
    let number = ModuleNumber::draw()?;
    let padding = padding(kernel, memory)?;
    let (page, counters) = match purpose {
        Purpose::Run(page) => (page, &[][..]),
        Purpose::Count(counters) => (TextPage::Small, counters),
    };
    let plan = ModulePlan { name, number: number.0, order, counters, padding, page };
    let loading = loading(kernel)?;
    let module = emit(original, &plan, &loading)?;
    prove(group, &module)?;
    let found = callers::find(kernel, &calling_code(group, memory)?, &group.entries());
    if let Some(&member) = found.entered.first() {
        bail!(
            "{}: another function jumps into its first bytes; leave it out",
            group.name(group.members[member].0)
        );
    }
    let id = GroupId { module: name.into(), number };
    Ok(PreparedGroup { page, ..PreparedGroup::new(id, group, module, found.callers) })
}

/// Offset and bytes in memory of the code whose calls may be aimed at copies: the kernel's own, and
/// that of the modules that members are from. Those modules stay as long as the group; others may
/// go, and their calls come through the entries.
pub(crate) fn calling_code(
    group: &Group<'_, '_>,
    memory: &dyn Memory,
) -> Result<Vec<(u32, Vec<u8>)>> {
    let kernel = group.original.kernel;
    let of = |at: u64| kernel.module_at(LinkAddr(at));
    let owners: Vec<_> = group.entries().iter().map(|m| of(kernel.link_address(m.0).0)).collect();
    let calling = kernel.areas().filter(|area| {
        let owner = of(area.start);
        owner.is_none() || owners.contains(&owner)
    });
    let read = |area: Range<u64>| {
        let bytes = memory.read(LinkAddr(area.start), (area.end - area.start) as usize)?;
        Ok(((area.start - kernel.text.start) as u32, bytes))
    };
    calling.map(read).collect()
}

/// Reads the module anew and compares it with the original, instruction by instruction and entry by
/// entry.
///
/// # Errors
/// The module is not a copy of the group. The message holds the first difference.
pub fn prove(group: &Group<'_, '_>, module: &EmittedModule) -> Result<()> {
    let original = &group.original;
    let (claims, inlined) = (claims(group, module), inline_claims(group));
    let counters = check_module(original.kernel, original.slide, &module.bytes, &claims, &inlined)
        .context("the module is not a copy of the functions; nothing was changed")?;
    ensure!(
        counters == module.counted.len(),
        "the module has {counters} counters instead of {}; nothing was changed",
        module.counted.len()
    );
    Ok(())
}

/// The emitter's claims: where it put the copy of each block.
pub fn claims(group: &Group<'_, '_>, module: &EmittedModule) -> Vec<CopyClaim> {
    let original = &group.original;
    let claim = |(n, piece): (usize, &Piece), new, new_size| CopyClaim {
        context: original.inlining.context(n),
        old: original.kernel.link_address(piece.at),
        old_size: piece.size,
        skip: if piece.entry { original.skip[piece.function as usize] } else { 0 },
        new,
        new_size,
    };
    let pieces = original.pieces.iter().enumerate().zip(&module.pieces);
    pieces.map(|(piece, &(new, size))| claim(piece, new, size)).collect()
}

/// The claims which calls are inlined or promoted.
pub fn inline_claims(group: &Group<'_, '_>) -> Vec<InlineClaim> {
    let original = &group.original;
    let claim = |call: &InlinedCall| {
        let (callee, skip) = match call.code {
            InPlace::Call(target) => (target, None),
            InPlace::Code(n) => {
                let entry = original.functions[n as usize].at;
                (original.kernel.link_address(entry), Some(original.skip[n as usize]))
            }
        };
        let site = original.kernel.link_address(call.at);
        InlineClaim { context: call.context, site, callee, skip }
    };
    original.inlining.calls().iter().map(claim).collect()
}

fn member(group: &Group<'_, '_>, module: &EmittedModule, function: u32, patch_at: u32) -> Member {
    let original = &group.original;
    let entry = original.functions[function as usize].at;
    let carried = group.members.binary_search(&(function, patch_at)).is_err();
    let from = entry + patch_at;
    let mut expected = [0; 5];
    // A function without a jump may be too short for one.
    if !carried {
        expected.copy_from_slice(original.bytes(function, from, from + 5));
    }
    Member {
        function,
        entry: original.kernel.link_address(entry),
        patch_at,
        expected,
        copy: module.entries[function as usize],
        carried,
    }
}

impl PreparedGroup {
    /// All members of the group are entered from outside. `module`: the group's copies;
    /// `callers`: the calls and jumps to its members.
    pub(crate) fn new(
        id: GroupId,
        group: &Group<'_, '_>,
        module: EmittedModule,
        callers: Vec<Caller>,
    ) -> PreparedGroup {
        let called = (0u32..).zip(&group.original.skip).filter(|&(_, &skip)| skip > 0);
        let functions = called.map(|(f, &skip)| member(group, &module, f, skip)).collect();
        PreparedGroup { id, module, callers, functions, page: TextPage::Small }
    }

    /// Every change of the kernel's code that installing the group makes: for each function the
    /// jump at its entry, then the calls that go to it.
    pub fn writes(&self, group: &Group<'_, '_>) -> Vec<CodeWrite> {
        let original = &group.original;
        let kernel = original.kernel;
        let running = |at: LinkAddr| at.0.wrapping_add(original.slide);
        let mut writes = Vec::new();
        for (n, &(function, patch_at)) in group.members.iter().enumerate() {
            let entry = kernel.link_address(original.functions[function as usize].at);
            writes.push(CodeWrite::Jump {
                at: running(entry) + u64::from(patch_at),
                function: kernel.title(&original.functions[function as usize]),
                copy: self.module.entries[function as usize],
            });
            let callers = self.callers.iter().filter(|caller| caller.function == n);
            writes.extend(callers.map(|caller| CodeWrite::Call {
                at: running(caller.site),
                caller: kernel.function_at(caller.site).map(|f| kernel.title(&kernel.functions[f])),
            }));
        }
        writes
    }

    /// Keeps the entries and callers of all functions but `roots` as they are: only copies enter
    /// the other copies.
    ///
    /// # Errors
    /// None of the roots can be replaced.
    pub(crate) fn enter_only(&mut self, kernel: &LinkedKernel<'_>, roots: &[usize]) -> Result<()> {
        let entries: Vec<LinkAddr> =
            roots.iter().map(|&root| kernel.link_address(kernel.functions[root].at)).collect();
        for member in self.functions.iter_mut().filter(|it| !entries.contains(&it.entry)) {
            (member.carried, member.expected) = (true, [0; 5]);
        }
        let is_entered = self.functions.iter().any(|member| !member.carried);
        ensure!(is_entered, "no root is left that can be replaced");
        Ok(())
    }

    /// Loads the module and installs the group. `turn` is the turn in which the module's name was
    /// found to be free.
    ///
    /// # Errors
    /// The kernel does not load the module, or `/dev/kernlane` refuses the group. Nothing has
    /// changed.
    pub fn install(
        &self,
        group: &Group<'_, '_>,
        device: &Device,
        turn: &Turn,
    ) -> Result<Installation> {
        let name = &self.id.module;
        let begun = processor_time();
        let placing = match self.page {
            TextPage::Small => None,
            TextPage::Large => Some(device.place_text()),
        };
        load(name, &self.module.bytes)?;
        let small = placing.and_then(Result::err).map(|why| format!("{why:#}"));
        let loading = processor_time() - begun;
        let installed = self.install_loaded(group, device, loading, small);
        if installed.is_err() {
            // Where a task may be in a copy, the kernel does not remove it.
            let _ = unload(name, turn);
        }
        installed
    }

    fn install_loaded(
        &self,
        group: &Group<'_, '_>,
        device: &Device,
        loading: Duration,
        small: Option<String>,
    ) -> Result<Installation> {
        let text = section_of(&self.id.module, ".text")?;
        let (functions, calls) = self.request(group, text);
        let begun = processor_time();
        device.install(&self.id, &functions, &calls)?;
        let patching = processor_time() - begun;
        // The group is installed: from here on nothing may fail.
        let groups = device::status().unwrap_or_default();
        let page = groups.iter().find(|group| group.id == self.id).map(|group| group.page);
        let is_small = page.is_some_and(|page| page < self.page.bytes() as u64);
        let small = small.or_else(|| is_small.then(|| "no page of 2 MB is free".to_owned()));
        Ok(Installation { text, page, small, loading, patching })
    }

    /// What `/dev/kernlane` is asked for: the functions, and the calls of these functions to aim at
    /// their copies. `text`: the address of the copies' `.text`.
    pub(crate) fn request(
        &self,
        group: &Group<'_, '_>,
        text: u64,
    ) -> (Vec<RawFunction>, Vec<RawCall>) {
        let slide = group.original.slide;
        let functions: Vec<RawFunction> = self
            .functions
            .iter()
            .map(|m| RawFunction {
                entry: m.entry.0.wrapping_add(slide),
                copy: text + u64::from(m.copy),
                patch_at: m.patch_at as u8,
                expected: m.expected,
                carried: u8::from(m.carried),
                reserved: 0,
            })
            .collect();
        let members: HashMap<u32, u32> =
            self.functions.iter().map(|m| m.function).zip(0..).collect();
        let is_carried = |member: u32| self.functions[member as usize].carried;
        let outside = self.callers.iter().filter_map(|c| {
            let &member = members.get(&group.members[c.function].0)?;
            (!is_carried(member)).then_some((c.site.0.wrapping_add(slide), member))
        });
        let inside = self.module.calls.iter().filter_map(|&(at, function)| {
            members.get(&function).map(|&member| (text + u64::from(at), member))
        });
        let calls: Vec<RawCall> = outside
            .chain(inside)
            .map(|(site, function)| RawCall { site, function, reserved: 0 })
            .collect();
        (functions, calls)
    }
}

/// The processor time that this thread has used, in the kernel included.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A name for a group's module that no loaded module has. In a turn it stays free.
///
/// # Errors
/// All 9 999 names are taken.
pub fn free_name() -> Result<String> {
    let free = (1..10_000)
        .map(|n| format!("{PREFIX}{n}"))
        .find(|name| !std::path::Path::new(&format!("/sys/module/{name}")).exists());
    free.context("there are too many modules called kernlane_N")
}

/// The loaded modules of groups, by their names.
pub fn loaded() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/module").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> = names.filter(|name| is_group(name)).collect();
    found.sort();
    found
}

/// Whether a module has the name of one with copies.
pub fn is_group(name: &str) -> bool {
    let number = name.strip_prefix(PREFIX);
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn load(name: &str, bytes: &[u8]) -> Result<()> {
    let done = rustix::system::init_module(bytes, c"");
    done.map_err(|error| match error {
        Errno::PERM if modules_are_disabled() => {
            anyhow::anyhow!(
                "the kernel takes no modules until it boots again (sysctl \
                 kernel.modules_disabled is 1)"
            )
        }
        Errno::PERM => anyhow::anyhow!(
            "the kernel takes no modules: this needs root, and a kernel \
             that is not locked down"
        ),
        Errno::KEYREJECTED | Errno::NOKEY => anyhow::anyhow!(
            "the kernel takes signed modules only \
             (secure boot, or module.sig_enforce)"
        ),
        Errno::NOSYS => anyhow::anyhow!("the kernel was built without modules"),
        error => anyhow::anyhow!("{error} (the kernel's log may say more)"),
    })
    .with_context(|| format!("the module {name} cannot be loaded, and nothing was changed"))
}

/// The result of removing a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unloaded {
    /// The module is gone.
    Removed,
    /// In use: a later try may succeed.
    InUse,
    /// Another program has the turn: the module may be one that it is installing.
    Left,
    /// The kernel removes no modules any more (sysctl kernel.modules_disabled). Nothing leads into
    /// the module.
    UntilBoot,
}

/// Removes a module that is not in use, in this program's turn.
///
/// # Errors
/// This is not root.
pub fn unload(name: &str, _turn: &Turn) -> Result<Unloaded> {
    const O_NONBLOCK: i32 = 0o4000;
    match rustix::system::delete_module(&CString::new(name)?, O_NONBLOCK) {
        // Another program may have been faster.
        Ok(()) | Err(Errno::NOENT) => Ok(Unloaded::Removed),
        Err(Errno::AGAIN | Errno::BUSY) => Ok(Unloaded::InUse),
        Err(Errno::PERM) if modules_are_disabled() => Ok(Unloaded::UntilBoot),
        Err(error) => Err(error).with_context(|| format!("removing the module {name}")),
    }
}

/// Whether the kernel takes and removes no modules until it boots again.
pub fn modules_are_disabled() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/modules_disabled")
        .is_ok_and(|text| text.trim() == "1")
}

/// Where the loader put a section of a module.
pub(crate) fn section_of(name: &str, section: &str) -> Result<u64> {
    let path = format!("/sys/module/{name}/sections/{section}");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let hex = text.trim().trim_start_matches("0x");
    u64::from_str_radix(hex, 16).with_context(|| format!("{path}: {text:?}"))
}

#[cfg(test)]
mod tests;
