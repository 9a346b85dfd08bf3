//! Makes wrong kernels, to prove that the checker can fail.
//!
//! Input: a good kernel. Output: copies with one mistake each, as a rewriter with a bug would make
//! them, and the kinds of proof that must fail for each. The tests that have a real kernel use this
//! module. It is behind the feature `mutation`, so the product does not have it.

use super::kernel::KernelFile;
use super::{CheckedKernel, KernelBuild, check, kallsyms, tables};
use anyhow::{Context, Result, ensure};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use image::address::LinkAddr;
use image::place::{Ending, PlacedBlock, Placement};
use object::LittleEndian;
use object::read::elf::{FileHeader, Sym};

/// One mistake.
pub struct Mutation {
    /// A description of the mistake.
    pub name: String,
    /// The kinds of difference, as in `Findings`, of which the checker must find at least one.
    pub kinds: Vec<&'static str>,
    change: MutationChange,
}

enum MutationChange {
    /// This byte of the file is changed by exclusive or.
    Byte { offset: usize, bits: u8 },
    /// Two stretches of the file are exchanged.
    Swap { a: usize, b: usize, len: usize },
    /// The last `by` of these bytes of the file go in front of the others.
    Rotate { at: usize, len: usize, by: usize },
    /// This KASLR relocation of a 64-bit word is missing.
    Relocation { index: usize },
    /// The map claims this block.
    Map(PlacedBlock),
    /// The map claims this block, and this byte of the file is changed by exclusive or.
    MapAndByte { block: PlacedBlock, offset: usize, bits: u8 },
}

impl Mutation {
    /// Makes the wrong copy of `build`, a kernel equal to `good`, and compares the copy with
    /// `good`. Returns whether the checker finds a difference of an expected kind.
    ///
    /// # Errors
    /// The kernel cannot be read, or the copy cannot be compared.
    pub fn is_found(&self, build: &KernelBuild, good: &CheckedKernel) -> Result<bool> {
        let mut file = build.vmlinux().to_vec();
        let mut map = Placement::default();
        match self.change {
            MutationChange::Byte { offset, bits } => file[offset] ^= bits,
            MutationChange::Swap { a, b, len } => (0..len).for_each(|i| file.swap(a + i, b + i)),
            MutationChange::Rotate { at, len, by } => file[at..at + len].rotate_right(by),
            MutationChange::Relocation { .. } => {}
            MutationChange::Map(block) => map.blocks.push(block),
            MutationChange::MapAndByte { block, offset, bits } => {
                map.blocks.push(block);
                file[offset] ^= bits;
            }
        }
        let mut wrong = build.side(&file)?;
        if let (MutationChange::Relocation { index }, Some(relocs)) =
            (&self.change, &mut wrong.relocs)
        {
            relocs.abs64.remove(*index);
        }
        let findings = check(good, &wrong, &map)?;
        Ok(findings.differences.iter().any(|d| self.kinds.contains(&d.kind)))
    }
}

/// Whether the checker finds a changed byte of code in a new kernel: a difference in the
/// instruction there. `new`: the kernel of `build`, which is `old` by the map; `bits`: what is
/// changed of the byte at `at`.
///
/// # Errors
/// The kernel has no byte there, or the copy cannot be compared.
pub fn finds_changed_code(
    old: &CheckedKernel,
    (build, new): (&KernelBuild, &CheckedKernel),
    map: &Placement,
    (at, bits): (LinkAddr, u8),
) -> Result<bool> {
    /// The most bytes of an instruction.
    const LONGEST: u64 = 15;
    let mut file = build.vmlinux().to_vec();
    file[MutationMaker::new(build, new).offset(at.0)?] ^= bits;
    let findings = check(old, &build.side(&file)?, map)?;
    let near = |d: &crate::verdict::KernelDifference| {
        d.new.is_some_and(|new| new <= at.0 && at.0 - new < LONGEST)
    };
    Ok(findings.differences.iter().any(near))
}

/// All mistakes for this kernel.
///
/// # Errors
/// The kernel lacks something that a mistake would change.
pub fn all(build: &KernelBuild, good: &CheckedKernel) -> Result<Vec<Mutation>> {
    let maker = MutationMaker::new(build, good);
    let mut mutations = maker.of_code()?;
    mutations.push(maker.of_guards()?);
    for (table, addr) in tables::one_byte_of_each_field(&good.kernel) {
        mutations.push(maker.byte(
            &format!("{table}: field at {addr:x}"),
            &[table, "alternatives in one piece"],
            addr,
            0x10,
        )?);
    }
    mutations.extend(maker.of_unwinder()?);
    mutations.extend(maker.of_data(good)?);
    mutations.extend(maker.of_names()?);
    mutations.extend(maker.of_ordered_tables()?);
    Ok(mutations)
}

/// The mistakes in tables behind kallsyms on whose order and distances the kernel relies.
///
/// # Errors
/// The kernel lacks one of these tables.
pub fn of_ordered_tables(build: &KernelBuild, good: &CheckedKernel) -> Result<Vec<Mutation>> {
    MutationMaker::new(build, good).of_ordered_tables()
}

struct MutationMaker<'a, 'd> {
    file: &'d [u8],
    kernel: &'a KernelFile<'d>,
}

const INT3: u8 = 0xcc;
const NOP: u8 = 0x90;

/// Hot, ordinary functions that contain branches, calls, and operands of every kind.
const SUBJECTS: [&str; 2] = ["vfs_read", "tcp_v4_rcv"];

/// The kernel compares the addresses of these tables (kernel/sched/sched.h, `sched_class_above()`).
const ORDERED_TABLES: [&str; 4] =
    ["stop_sched_class", "dl_sched_class", "rt_sched_class", "fair_sched_class"];

impl<'a, 'd> MutationMaker<'a, 'd> {
    fn new(build: &'a KernelBuild, good: &'a CheckedKernel<'d>) -> Self
    where
        'a: 'd,
    {
        MutationMaker { file: build.vmlinux(), kernel: &good.kernel }
    }

    /// The offset in the file of the byte at `addr`.
    fn offset(&self, addr: u64) -> Result<usize> {
        let bytes = self.kernel.bytes(addr, 1).with_context(|| format!("{addr:x} has no bytes"))?;
        Ok(bytes.as_ptr() as usize - self.file.as_ptr() as usize)
    }

    fn byte(&self, name: &str, kinds: &[&'static str], addr: u64, bits: u8) -> Result<Mutation> {
        let offset = self.offset(addr)?;
        Ok(Mutation {
            name: name.to_owned(),
            kinds: kinds.to_vec(),
            change: MutationChange::Byte { offset, bits },
        })
    }

    fn instructions(
        &self,
        function: &str,
    ) -> Result<Vec<(Instruction, iced_x86::ConstantOffsets)>> {
        let symbol = self
            .kernel
            .named(function)
            .next()
            .with_context(|| format!("there is no {function}"))?;
        let code =
            self.kernel.bytes(symbol.addr.0, symbol.size).context("a function without bytes")?;
        let mut decoder = Decoder::with_ip(64, code, symbol.addr.0, DecoderOptions::NONE);
        let mut all = Vec::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            all.push((instruction, decoder.get_constant_offsets(&instruction)));
        }
        Ok(all)
    }

    fn of_code(&self) -> Result<Vec<Mutation>> {
        let mut made = Vec::new();
        for function in SUBJECTS {
            let code = self.instructions(function)?;
            let find = |wanted: &dyn Fn(&Instruction) -> bool| {
                code.iter()
                    .find(|(i, _)| wanted(i))
                    .with_context(|| format!("{function} lacks an instruction to change"))
            };
            // Compilers put prefixes in front of some calls.
            let (call, fields) = find(&|i| i.is_call_near())?;
            made.push(self.byte(
                &format!("{function}: call elsewhere"),
                &["targets of branches"],
                call.ip() + fields.immediate_offset() as u64,
                0x20,
            )?);
            let (jump, _) = find(&|i| i.is_jcc_near())?;
            made.push(self.byte(
                &format!("{function}: jump elsewhere"),
                &["targets of branches"],
                jump.ip() + 2,
                0x20,
            )?);
            made.push(self.byte(
                &format!("{function}: condition inverted"),
                &["instructions"],
                jump.ip() + 1,
                1,
            )?);
            let (read, constants) = find(&|i| i.is_ip_rel_memory_operand())?;
            let place = read.ip() + constants.displacement_offset() as u64;
            made.push(self.byte(
                &format!("{function}: operand elsewhere"),
                &["RIP-relative operands"],
                place,
                0x08,
            )?);
            let (plain, _) = find(&|i| {
                i.op_count() == 2 && i.op1_kind() == iced_x86::OpKind::Register && i.len() == 3
            })?;
            made.push(self.byte(
                &format!("{function}: another register"),
                &["instructions"],
                plain.ip() + 2,
                0x08,
            )?);
        }
        let [a, b] = SUBJECTS.map(|f| self.kernel.symbol(f));
        let (a, b) = (a.context("no subject")?, b.context("no subject")?);
        let swap = MutationChange::Swap { a: self.offset(a)?, b: self.offset(b)?, len: 64 };
        made.push(Mutation {
            name: "two blocks exchanged".to_owned(),
            kinds: vec!["instructions"],
            change: swap,
        });
        let block = |new: u64, ending| PlacedBlock {
            old: LinkAddr(a),
            old_size: 16,
            new: LinkAddr(new),
            new_size: 16,
            appended: 0,
            ending,
        };
        let lies = [
            ("at another function", b, Ending::Same),
            ("with a condition inverted", a, Ending::Inverted),
            ("with a jump dropped", a, Ending::JumpDropped),
        ];
        for (name, new, ending) in lies {
            let kinds = vec!["instructions", "blocks", "coverage"];
            made.push(Mutation {
                name: format!("a map that claims a block {name}"),
                kinds,
                change: MutationChange::Map(block(new, ending)),
            });
        }
        Ok(made)
    }

    /// Replaces the int3 that a function has behind a return or an indirect jump by a no-op. The
    /// map leaves the int3 out as padding.
    fn of_guards(&self) -> Result<Mutation> {
        let sized = self.kernel.symbols.iter().filter(|s| s.function && s.size > 0);
        let mut guarded = sized.filter_map(|symbol| {
            let code = self.kernel.bytes(symbol.addr.0, symbol.size)?;
            let mut decoder = Decoder::with_ip(64, code, symbol.addr.0, DecoderOptions::NONE);
            let stop = decoder.iter().find(|i| {
                matches!(i.flow_control(), FlowControl::Return | FlowControl::IndirectBranch)
            })?;
            let size = stop.next_ip() - symbol.addr.0;
            (code.get(size as usize) == Some(&INT3)).then_some((symbol, size as u32))
        });
        let (symbol, size) = guarded.next().context("no function has an int3 behind a return")?;
        let block = PlacedBlock {
            old: symbol.addr,
            old_size: size,
            new: symbol.addr,
            new_size: size,
            appended: 0,
            ending: Ending::Same,
        };
        Ok(Mutation {
            name: format!("{}: no int3 behind the return", symbol.name),
            kinds: vec!["int3 behind returns"],
            change: MutationChange::MapAndByte {
                block,
                offset: self.offset(symbol.addr.0 + u64::from(size))?,
                bits: INT3 ^ NOP,
            },
        })
    }

    fn of_unwinder(&self) -> Result<Vec<Mutation>> {
        let kinds = ["unwinder states"];
        let at = |name: &str, entry: u64| {
            let section =
                self.kernel.section(name).with_context(|| format!("there is no {name}"))?;
            Ok::<u64, anyhow::Error>(section.addr + section.size / 2 / entry * entry)
        };
        let (state, ip) = (at(".orc_unwind", 6)?, at(".orc_unwind_ip", 4)?);
        let swap = MutationChange::Swap { a: self.offset(ip)?, b: self.offset(ip + 4)?, len: 4 };
        Ok(vec![
            self.byte("unwinder: another stack offset", &kinds, state, 0x08)?,
            self.byte("unwinder: another register", &kinds, state + 4, 0x01)?,
            self.byte("unwinder: an entry elsewhere", &kinds, ip, 0x01)?,
            Mutation {
                name: "unwinder: not sorted".to_owned(),
                kinds: kinds.to_vec(),
                change: swap,
            },
        ])
    }

    fn of_data(&self, good: &CheckedKernel) -> Result<Vec<Mutation>> {
        let relocs = good.relocs.as_ref().context("the tree keeps no vmlinux.relocs")?;
        let in_section = |list: &[u64], name: &str| {
            let inside =
                |&&place: &&u64| self.kernel.section_at(place).is_some_and(|s| s.name == name);
            let found: Vec<u64> = list.iter().filter(inside).copied().collect();
            found.get(found.len() / 2).copied().with_context(|| format!("{name} holds no address"))
        };
        let pointer = in_section(&relocs.abs64, ".data")?;
        let table = in_section(&relocs.abs64, ".rodata")?;
        let operand = in_section(&relocs.abs32, ".text")?;
        let banner = self.kernel.symbol("linux_banner").context("there is no linux_banner")?;
        let exception = self.kernel.section("__ex_table").context("there is no __ex_table")?.addr;
        let swap = MutationChange::Swap {
            a: self.offset(exception)?,
            b: self.offset(exception + 12)?,
            len: 12,
        };
        let index = relocs.abs64.len() / 2;
        Ok(vec![
            self.byte("data: a pointer elsewhere", &["addresses in data"], pointer, 0x10)?,
            self.byte("constant data: a pointer elsewhere", &["addresses in data"], table, 0x10)?,
            self.byte(
                "code: an absolute operand elsewhere",
                &["absolute operands"],
                operand,
                0x10,
            )?,
            self.byte("constant data: another byte", &["bytes of data"], banner, 0x20)?,
            Mutation {
                name: "__ex_table: not sorted".to_owned(),
                kinds: vec!["__ex_table"],
                change: swap,
            },
            Mutation {
                name: "KASLR: a relocation missing".to_owned(),
                kinds: vec!["KASLR relocations"],
                change: MutationChange::Relocation { index },
            },
        ])
    }

    fn of_names(&self) -> Result<Vec<Mutation>> {
        let address =
            |name: &str| self.kernel.symbol(name).with_context(|| format!("there is no {name}"));
        let mut made = vec![
            self.byte(
                "kallsyms: another address",
                &["kallsyms"],
                address("kallsyms_offsets")? + 40_000 * 4,
                0x10,
            )?,
            self.byte(
                "kallsyms: another name",
                &["kallsyms"],
                address("kallsyms_names")? + 200_003,
                0x01,
            )?,
            self.byte(
                "kallsyms: order of names",
                &["kallsyms"],
                address("kallsyms_seqs_of_names")? + 3 * 30_000 + 1,
                0x40,
            )?,
        ];
        made.push(self.symbol_elsewhere(SUBJECTS[0], &["symbols", "instructions"])?);
        Ok(made)
    }

    /// Moves the symbol in the ELF symbol table by 16 bytes.
    fn symbol_elsewhere(&self, name: &str, kinds: &[&'static str]) -> Result<Mutation> {
        let header = object::elf::FileHeader64::<LittleEndian>::parse(self.file)?;
        let sections = header.sections(LittleEndian, self.file)?;
        let symbols = sections.symbols(LittleEndian, self.file, object::elf::SHT_SYMTAB)?;
        let is_named = |s: &&object::elf::Sym64<LittleEndian>| {
            symbols.symbol_name(LittleEndian, *s).is_ok_and(|n| n == name.as_bytes())
        };
        let symbol =
            symbols.iter().find(is_named).with_context(|| format!("there is no {name}"))?;
        ensure!(symbol.st_size(LittleEndian) > 0, "{name} has no size");
        let value = std::ptr::from_ref(symbol) as usize - self.file.as_ptr() as usize + 8;
        Ok(Mutation {
            name: format!("symbols: another address of {name}"),
            kinds: kinds.to_vec(),
            change: MutationChange::Byte { offset: value, bits: 0x10 },
        })
    }

    /// Exchanges scheduling classes, changes their distances, and moves their names.
    fn of_ordered_tables(&self) -> Result<Vec<Mutation>> {
        let mut made = Vec::new();
        let data = ["bytes of data", "addresses in data"];
        for pair in ORDERED_TABLES.windows(2) {
            let [a, b] = [pair[0], pair[1]].map(|name| self.kernel.named(name).next());
            let (a, b) =
                a.zip(b).with_context(|| format!("there is no {} or no {}", pair[0], pair[1]))?;
            ensure!(a.size == b.size && a.size > 0, "{} and {} differ in size", pair[0], pair[1]);
            let (at, len) = (self.offset(a.addr.0)?, a.size as usize);
            let change = MutationChange::Swap { a: at, b: self.offset(b.addr.0)?, len };
            made.push(Mutation {
                name: format!("{} and {} exchanged", pair[0], pair[1]),
                kinds: data.to_vec(),
                change,
            });
            made.push(Mutation {
                name: format!("{} at another distance", pair[0]),
                kinds: data.to_vec(),
                change: MutationChange::Rotate { at, len, by: 8 },
            });
            made.push(
                self.symbol_elsewhere(pair[0], &["symbols", "bytes of data", "addresses in data"])?,
            );
            made.push(self.name_elsewhere(pair[0], a.addr.0)?);
        }
        Ok(made)
    }

    /// Moves the kallsyms entry of `name` by 16 bytes.
    fn name_elsewhere(&self, name: &str, addr: u64) -> Result<Mutation> {
        let tables = kallsyms::read(self.kernel)?.context("there is no kallsyms")?;
        let is_named = |entry: &kallsyms::KallsymsEntry| {
            entry.addr == addr && entry.name.get(1..) == Some(name.as_bytes())
        };
        let index = tables.entries.iter().position(is_named);
        let index = index.with_context(|| format!("kallsyms has no {name}"))?;
        let offsets = self.kernel.symbol("kallsyms_offsets").context("there is no kallsyms")?;
        let offset = offsets + 4 * index as u64;
        self.byte(&format!("kallsyms: another address of {name}"), &["kallsyms"], offset, 0x10)
    }
}
