//! Reads the tables of an out-of-order core in a machine file: `[core]` and those below it.
//!
//! Input: the parsed tables. Output: a checked description of the core, or an error that names the
//! rule and the key.

use crate::sourced::{MachineFileReader, Sourced, SourcedFraction, SourcedInteger};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use sim::core::{
    CoreDescription, CoreMemoryDescription, DirectionDescription, FixedData, FrontEndDescription,
    PortBinding, PredictionDescription, RegisterFile, SchedulerDescription, Serialising,
    StringSlots, TaggedTable, TargetLevel, UopCacheDescription, WindowDescription,
};
use sim::{CacheGeometry, Replacement};
use toml::Spanned;
use uops::UopTable;

type SourcedNumbers = Spanned<Sourced<Vec<u64>>>;

/// Widths and queues in slots and entries.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CoreText {
    uops: Spanned<Sourced<String>>,
    dispatch: SourcedInteger,
    retire: SourcedInteger,
    retire_stages: Option<SourcedInteger>,
    string_slots: Option<SourcedInteger>,
    long_string_slots: Option<SourcedInteger>,
    string_line_slots: Option<SourcedInteger>,
    reorder_buffer: SourcedInteger,
    loads: SourcedInteger,
    waiting_loads: Option<SourcedInteger>,
    stores: SourcedInteger,
    integer_results: Option<SourcedInteger>,
    vector_results: Option<SourcedInteger>,
    results: Option<SourcedInteger>,
    bound_ports: Option<Spanned<Sourced<PortBindingText>>>,
    scheduler: Vec<Spanned<SchedulerText>>,
    fetch: FetchText,
    prediction: PredictionText,
    btb: Vec<Spanned<BtbText>>,
    memory: MemoryText,
    fixed_data: FixedDataText,
    serialising: SerialisingText,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchedulerText {
    entries: SourcedInteger,
    ports: Spanned<Sourced<Vec<String>>>,
    stages: Option<SourcedInteger>,
}

/// Depths in cycles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FetchText {
    targets: SourcedInteger,
    targets_in_a_cycle: Option<SourcedInteger>,
    depth: SourcedInteger,
    decode_stages: SourcedInteger,
    decoders: SourcedInteger,
    bytes: SourcedInteger,
    queue: SourcedInteger,
    l1i_misses: SourcedInteger,
    l1i_fill: Option<SourcedInteger>,
    request_in_turn: Option<Spanned<Sourced<bool>>>,
    itlb_interval: Option<SourcedInteger>,
    uop_cache_entries: Option<SourcedInteger>,
    uop_cache_ways: Option<SourcedInteger>,
    uop_cache_slots: Option<SourcedInteger>,
    uop_cache_width: Option<SourcedInteger>,
    uop_cache_by_start: Option<Spanned<Sourced<bool>>>,
    uop_cache_pair_interval: Option<SourcedInteger>,
    uop_cache_single_lines: Option<SourcedInteger>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PortBindingText {
    Fewest,
    Pair,
}

/// Histories in taken branches, penalties in cycles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PredictionText {
    base_entries: SourcedInteger,
    direction_entries: SourcedInteger,
    direction_history: SourcedNumbers,
    direction_outcomes: Option<SourcedNumbers>,
    direction_shared: Option<Spanned<Sourced<bool>>>,
    indirect_entries: SourcedInteger,
    indirect_history: SourcedNumbers,
    indirect_outcomes: Option<SourcedNumbers>,
    path_of_sources: Option<Spanned<Sourced<bool>>>,
    return_stack: SourcedInteger,
    mispredict_penalty: SourcedInteger,
    resteer_penalty: SourcedInteger,
    call_bubble: Option<SourcedInteger>,
    indirect_bubble: Option<SourcedInteger>,
    conditionals_by_execution: Option<Spanned<Sourced<bool>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BtbText {
    entries: SourcedInteger,
    ways: SourcedInteger,
    bubble: SourcedInteger,
    by_start: Option<Spanned<Sourced<bool>>>,
    random: Option<Spanned<Sourced<bool>>>,
    returns_with_calls: Option<Spanned<Sourced<bool>>>,
}

/// Latencies in cycles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryText {
    l1d_latency: SourcedInteger,
    vector_latency: Option<SourcedInteger>,
    scaled_latency: Option<SourcedInteger>,
    address_latency: Option<SourcedInteger>,
    forward_latency: SourcedInteger,
    renamed_addresses: Option<Spanned<Sourced<bool>>>,
    predicted_loads: Option<SourcedInteger>,
    blocked_penalty: Option<SourcedInteger>,
    alias_penalty: Option<SourcedInteger>,
    stores_to_a_line: Option<SourcedInteger>,
    stores_in_a_cycle: Option<SourcedInteger>,
    atomic_latency: SourcedInteger,
    l1d_misses: SourcedInteger,
    l1d_fill: Option<SourcedInteger>,
    l2_misses: SourcedInteger,
    second_tlb_entries: SourcedInteger,
    second_tlb_ways: SourcedInteger,
    second_tlb_hashed: Option<Spanned<Sourced<bool>>>,
    second_tlb_latency: SourcedInteger,
    page_walk: SourcedInteger,
    page_walkers: SourcedInteger,
    next_line: Spanned<Sourced<bool>>,
    stride_entries: SourcedInteger,
    streams: SourcedInteger,
    stream_distance: SourcedInteger,
    scattered_pages: Option<Spanned<Sourced<bool>>>,
}

/// Shares of all loads.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FixedDataText {
    l2: SourcedFraction,
    l3: SourcedFraction,
    memory: SourcedFraction,
}

/// Costs in cycles.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SerialisingText {
    system_call: SourcedInteger,
    system_return: SourcedInteger,
    interrupt_return: SourcedInteger,
    interrupt: SourcedInteger,
    swap_base: SourcedInteger,
    interrupts_off: SourcedInteger,
    interrupts_on: SourcedInteger,
    invalidate_page: SourcedInteger,
    write_model_register: SourcedInteger,
    read_model_register: SourcedInteger,
    write_address_space: SourcedInteger,
    identify: SourcedInteger,
    fence: SourcedInteger,
    pause: SourcedInteger,
    port_access: SourcedInteger,
    other: SourcedInteger,
}

impl SerialisingText {
    fn of(&self, class: Serialising) -> &SourcedInteger {
        match class {
            Serialising::SystemCall => &self.system_call,
            Serialising::SystemReturn => &self.system_return,
            Serialising::InterruptReturn => &self.interrupt_return,
            Serialising::Interrupt => &self.interrupt,
            Serialising::SwapBase => &self.swap_base,
            Serialising::InterruptsOff => &self.interrupts_off,
            Serialising::InterruptsOn => &self.interrupts_on,
            Serialising::InvalidatePage => &self.invalidate_page,
            Serialising::WriteModelRegister => &self.write_model_register,
            Serialising::ReadModelRegister => &self.read_model_register,
            Serialising::WriteAddressSpace => &self.write_address_space,
            Serialising::Identify => &self.identify,
            Serialising::Fence => &self.fence,
            Serialising::Pause => &self.pause,
            Serialising::PortAccess => &self.port_access,
            Serialising::Other => &self.other,
        }
    }
}

impl MachineFileReader<'_> {
    /// The core. Its numbers can contradict each other.
    pub(crate) fn core(&self, spanned: &Spanned<CoreText>) -> Result<CoreDescription> {
        let core = spanned.get_ref();
        let name = self.sourced(&core.uops)?;
        let table = UopTable::find(name).with_context(|| self.at(&core.uops))?;
        let mut serialising = [0; Serialising::ALL.len()];
        for class in Serialising::ALL {
            serialising[class.index()] = self.small(core.serialising.of(class))?;
        }
        Ok(CoreDescription {
            uops: table.clone().into(),
            window: WindowDescription {
                dispatch: self.small(&core.dispatch)?,
                retire: self.small(&core.retire)?,
                retire_stages: self.or(&core.retire_stages, 0)?,
                strings: StringSlots {
                    begin: self.or(&core.string_slots, 0)?,
                    long: self.or(&core.long_string_slots, 0)?,
                    line: self.or(&core.string_line_slots, 0)?,
                },
                reorder_buffer: self.small(&core.reorder_buffer)?,
                loads: self.small(&core.loads)?,
                waiting_loads: self.if_given(&core.waiting_loads)?,
                stores: self.small(&core.stores)?,
                results: self.results(core)?,
                bound_ports: self.port_binding(core)?,
                schedulers: self.schedulers(core, &table)?,
            },
            front_end: self.front_end(&core.fetch)?,
            prediction: self.prediction(core)?,
            memory: self.core_memory(&core.memory)?,
            fixed_data: self.fixed_data(&core.fixed_data)?,
            serialising,
        })
    }

    fn results(&self, core: &CoreText) -> Result<[Option<u32>; RegisterFile::ALL.len()]> {
        let mut results = [None; RegisterFile::ALL.len()];
        for (results, file) in results.iter_mut().zip(RegisterFile::ALL) {
            *results = self.if_given(match file {
                RegisterFile::Integer => &core.integer_results,
                RegisterFile::Vector => &core.vector_results,
                RegisterFile::Any => &core.results,
            })?;
        }
        Ok(results)
    }

    fn port_binding(&self, core: &CoreText) -> Result<Option<PortBinding>> {
        let Some(binding) = &core.bound_ports else { return Ok(None) };
        Ok(Some(match self.sourced(binding)? {
            PortBindingText::Fewest => PortBinding::Fewest,
            PortBindingText::Pair => PortBinding::Pair,
        }))
    }

    fn schedulers(&self, core: &CoreText, table: &UopTable) -> Result<Vec<SchedulerDescription>> {
        let (mut schedulers, mut all) = (Vec::new(), 0);
        for spanned in &core.scheduler {
            let scheduler = spanned.get_ref();
            let names = self.sourced(&scheduler.ports)?;
            let Ok(ports) = table.port_set(names.iter().map(String::as_str)) else {
                bail!(
                    "{}: the table of uops has the ports {}",
                    self.at(&scheduler.ports),
                    table.ports().join(", ")
                );
            };
            if all & ports != 0 {
                bail!("{}: a port has two schedulers", self.at(&scheduler.ports));
            }
            all |= ports;
            schedulers.push(SchedulerDescription {
                entries: self.small(&scheduler.entries)?,
                ports,
                stages: self.or(&scheduler.stages, 1)?,
            });
        }
        let without: Vec<&str> = (0..)
            .zip(table.ports())
            .filter(|(port, _)| all >> port & 1 == 0)
            .map(|(_, name)| name.as_str())
            .collect();
        match (core.scheduler.first(), &without[..]) {
            (_, []) => Ok(schedulers),
            (Some(first), _) => {
                bail!("{}: no scheduler has {}", self.at(first), without.join(", "))
            }
            (None, _) => bail!("{}: [core] has no [[core.scheduler]]", self.at(&core.uops)),
        }
    }

    fn front_end(&self, fetch: &FetchText) -> Result<FrontEndDescription> {
        let cache = (
            &fetch.uop_cache_entries,
            &fetch.uop_cache_ways,
            &fetch.uop_cache_slots,
            &fetch.uop_cache_width,
        );
        let more = fetch.uop_cache_by_start.is_some()
            || fetch.uop_cache_pair_interval.is_some()
            || fetch.uop_cache_single_lines.is_some();
        let uop_cache = match cache {
            (None, None, None, None) if !more => None,
            (Some(entries), Some(ways), Some(slots), Some(width)) => Some(UopCacheDescription {
                geometry: self.entries("the uop cache", entries, ways)?,
                slots: self.small(slots)?,
                width: self.small(width)?,
                by_start: self.or_no(&fetch.uop_cache_by_start)?,
                pair_interval: self.if_given(&fetch.uop_cache_pair_interval)?,
                single_lines: self.or(&fetch.uop_cache_single_lines, 0)?,
            }),
            _ => bail!(
                "{}: [core.fetch] must give uop_cache_entries, uop_cache_ways, uop_cache_slots \
                 and uop_cache_width, or none of them",
                self.at(&fetch.targets)
            ),
        };
        Ok(FrontEndDescription {
            fetch_targets: self.small(&fetch.targets)?,
            targets_in_a_cycle: self.or(&fetch.targets_in_a_cycle, 1)?,
            depth: self.small(&fetch.depth)?,
            decode_stages: self.small(&fetch.decode_stages)?,
            decoders: self.small(&fetch.decoders)?,
            fetch_bytes: self.small(&fetch.bytes)?,
            queue: self.small(&fetch.queue)?,
            uop_cache,
            l1i_misses: self.small(&fetch.l1i_misses)?,
            l1i_fill: self.or(&fetch.l1i_fill, 0)?,
            request_in_turn: self.or_no(&fetch.request_in_turn)?,
            itlb_interval: self.if_given(&fetch.itlb_interval)?,
        })
    }

    fn prediction(&self, core: &CoreText) -> Result<PredictionDescription> {
        let prediction = &core.prediction;
        let direction = self.tagged_tables(
            &prediction.direction_entries,
            &prediction.direction_history,
            prediction.direction_outcomes.as_ref(),
        )?;
        let indirect = self.tagged_tables(
            &prediction.indirect_entries,
            &prediction.indirect_history,
            prediction.indirect_outcomes.as_ref(),
        )?;
        let mut targets = Vec::new();
        for spanned in &core.btb {
            let level = spanned.get_ref();
            targets.push(TargetLevel {
                geometry: self.entries("[[core.btb]]", &level.entries, &level.ways)?,
                bubble: self.small(&level.bubble)?,
                by_start: self.or_no(&level.by_start)?,
                random: self.or_no(&level.random)?,
                returns_with_calls: self.or_no(&level.returns_with_calls)?,
            });
        }
        Ok(PredictionDescription {
            direction: DirectionDescription {
                base_entries: self.small(&prediction.base_entries)?,
                tables: direction,
                shared: self.or_no(&prediction.direction_shared)?,
            },
            indirect,
            targets,
            return_stack: self.small(&prediction.return_stack)?,
            mispredict_penalty: self.small(&prediction.mispredict_penalty)?,
            resteer_penalty: self.small(&prediction.resteer_penalty)?,
            call_bubble: self.or(&prediction.call_bubble, 0)?,
            indirect_bubble: self.or(&prediction.indirect_bubble, 0)?,
            path_of_sources: self.or_no(&prediction.path_of_sources)?,
            conditionals_by_execution: self.or_no(&prediction.conditionals_by_execution)?,
        })
    }

    /// Tables of `entries`, each with a history and, if given, with outcomes.
    fn tagged_tables(
        &self,
        entries: &SourcedInteger,
        histories: &SourcedNumbers,
        outcomes: Option<&SourcedNumbers>,
    ) -> Result<Vec<TaggedTable>> {
        let entries = self.small(entries)?;
        let numbers = self.sourced(histories)?;
        let looked_at = match outcomes {
            None => vec![0; numbers.len()],
            Some(outcomes) => {
                let looked_at = self.sourced(outcomes)?.clone();
                ensure!(
                    looked_at.len() == numbers.len(),
                    "{}: there are {} tables, as their histories say, and outcomes of {}",
                    self.at(outcomes),
                    numbers.len(),
                    looked_at.len()
                );
                looked_at
            }
        };
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let table = |(&history, outcomes): (&u64, u64)| TaggedTable {
            entries,
            history: small(history),
            outcomes: small(outcomes),
        };
        Ok(numbers.iter().zip(looked_at).map(table).collect())
    }

    fn core_memory(&self, memory: &MemoryText) -> Result<CoreMemoryDescription> {
        let (entries, ways) = (&memory.second_tlb_entries, &memory.second_tlb_ways);
        let l1d_latency = self.small(&memory.l1d_latency)?;
        Ok(CoreMemoryDescription {
            l1d_latency,
            vector_latency: self.or(&memory.vector_latency, l1d_latency)?,
            scaled_latency: self.or(&memory.scaled_latency, l1d_latency)?,
            address_latency: self.or(&memory.address_latency, 1)?,
            forward_latency: self.small(&memory.forward_latency)?,
            renamed_addresses: self.or_no(&memory.renamed_addresses)?,
            predicted_loads: self.or(&memory.predicted_loads, 0)?,
            blocked_penalty: self.or(&memory.blocked_penalty, 0)?,
            alias_penalty: self.if_given(&memory.alias_penalty)?,
            stores_to_a_line: self.or(&memory.stores_to_a_line, 1)?,
            stores_in_a_cycle: self.or(&memory.stores_in_a_cycle, 1)?,
            atomic_latency: self.small(&memory.atomic_latency)?,
            l1d_misses: self.small(&memory.l1d_misses)?,
            l1d_fill: self.or(&memory.l1d_fill, 0)?,
            l2_misses: self.small(&memory.l2_misses)?,
            second_tlb: self.entries("the second-level TLB", entries, ways)?,
            second_tlb_hashed: self.or_no(&memory.second_tlb_hashed)?,
            second_tlb_latency: self.small(&memory.second_tlb_latency)?,
            page_walk: self.small(&memory.page_walk)?,
            page_walkers: self.small(&memory.page_walkers)?,
            next_line: *self.sourced(&memory.next_line)?,
            stride_entries: self.small(&memory.stride_entries)?,
            streams: self.small(&memory.streams)?,
            stream_distance: self.small(&memory.stream_distance)?,
            scattered_pages: self.or_no(&memory.scattered_pages)?,
        })
    }

    fn fixed_data(&self, fixed: &FixedDataText) -> Result<FixedData> {
        let of_a_million = |share: &SourcedFraction| {
            let value = *self.sourced(share)?;
            if !(0.0..=1.0).contains(&value) {
                bail!("{}: a share must lie between 0 and 1, not {value}", self.at(share));
            }
            Ok((value * 1e6).round() as u32)
        };
        Ok(FixedData {
            l2: of_a_million(&fixed.l2)?,
            l3: of_a_million(&fixed.l3)?,
            memory: of_a_million(&fixed.memory)?,
        })
    }

    /// A table of `entries` in `ways`, with LRU replacement.
    fn entries(
        &self,
        what: &str,
        entries: &SourcedInteger,
        ways: &SourcedInteger,
    ) -> Result<CacheGeometry> {
        CacheGeometry::tlb(*self.sourced(entries)?, *self.sourced(ways)?, Replacement::Lru)
            .with_context(|| format!("{}: {what} cannot be built", self.at(entries)))
    }

    /// A flag that few machines set; false if it is missing.
    fn or_no(&self, has: &Option<Spanned<Sourced<bool>>>) -> Result<bool> {
        has.as_ref().map_or(Ok(false), |has| self.sourced(has).copied())
    }

    /// A number that fits 32 bits, or `missing`.
    fn or(&self, number: &Option<SourcedInteger>, missing: u32) -> Result<u32> {
        number.as_ref().map_or(Ok(missing), |number| self.small(number))
    }

    /// A number that fits 32 bits, if a machine has it.
    fn if_given(&self, number: &Option<SourcedInteger>) -> Result<Option<u32>> {
        number.as_ref().map(|number| self.small(number)).transpose()
    }

    /// A number that fits 32 bits. Larger ones are outside of every range.
    fn small(&self, number: &SourcedInteger) -> Result<u32> {
        Ok(u32::try_from(*self.sourced(number)?).unwrap_or(u32::MAX))
    }
}
