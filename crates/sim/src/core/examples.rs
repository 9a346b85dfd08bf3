//! A small core for tests, whose cycles can be counted by hand.

use super::description::*;
use super::maker::{MnemonicId, TranslatedInstruction, UopLatencies, UopMaker};
use super::serialising::Serialising;
use super::uop::Uop;
use crate::Replacement::Lru;
use crate::geometry::CacheGeometry;
use crate::machine::{CacheDescription, ItlbDescription, MachineModel, MemoryDescription};
use crate::time::{Latencies, SimpleModel};
use std::sync::Arc;

/// L1I and L1D of two sets of two ways, an L2 of 64 KB; L2 15, memory 100 cycles. TLBs of 4 pages.
pub(crate) fn machine() -> MachineModel {
    let cache = |size, ways| CacheDescription::new(size, ways, 64, Lru).unwrap();
    let tlb = CacheGeometry::tlb(4, 4, Lru).unwrap();
    let time = SimpleModel::new(0.0, 0.0, 0.0).unwrap();
    MachineModel {
        itlb: Some(ItlbDescription::new(tlb, 2 << 20, 4096).unwrap()),
        memory: Some(
            MemoryDescription::new(
                cache(256, 2),
                Some(cache(65536, 4)),
                None,
                Some(tlb),
                Latencies::new(15.0, 100.0, 100.0, 0.0).unwrap(),
            )
            .unwrap(),
        ),
        core: Some(core()),
        ..MachineModel::l1i_only("example", cache(256, 2).geometry, 64, time)
    }
}

/// The tests give uops, and no instructions to make them of.
#[derive(Debug)]
struct NoInstructions;

impl UopMaker for NoInstructions {
    fn translate(
        &self,
        _: u64,
        code: &[&[u8]],
        _: UopLatencies,
        _: &mut Vec<Uop>,
    ) -> Vec<TranslatedInstruction> {
        assert!(code.is_empty(), "the example has no instructions");
        Vec::new()
    }

    fn mnemonic(&self, _: MnemonicId) -> String {
        String::new()
    }
}

/// Two slots a cycle, a window of 16, and no prefetcher of data. Ports 0 and 1 compute, 2 loads, 3
/// stores.
pub(crate) fn core() -> CoreDescription {
    let level = |entries, bubble| TargetLevel {
        geometry: CacheGeometry::tlb(entries, entries, Lru).unwrap(),
        bubble,
        by_start: false,
        random: false,
        returns_with_calls: false,
    };
    CoreDescription {
        uops: Arc::new(NoInstructions).into(),
        window: WindowDescription {
            dispatch: 2,
            retire: 2,
            retire_stages: 0,
            strings: StringSlots::default(),
            reorder_buffer: 16,
            loads: 8,
            waiting_loads: None,
            stores: 8,
            results: [None; 3],
            bound_ports: None,
            schedulers: vec![SchedulerDescription { entries: 8, ports: 0b1111, stages: 1 }],
        },
        front_end: FrontEndDescription {
            fetch_targets: 4,
            targets_in_a_cycle: 1,
            depth: 6,
            decode_stages: 3,
            decoders: 2,
            fetch_bytes: 16,
            queue: 8,
            uop_cache: None,
            l1i_misses: 2,
            l1i_fill: 0,
            request_in_turn: false,
            itlb_interval: None,
        },
        prediction: PredictionDescription {
            direction: DirectionDescription { base_entries: 64, tables: Vec::new(), shared: false },
            indirect: Vec::new(),
            targets: vec![level(4, 0), level(16, 2)],
            return_stack: 4,
            mispredict_penalty: 12,
            resteer_penalty: 7,
            call_bubble: 0,
            indirect_bubble: 0,
            path_of_sources: false,
            conditionals_by_execution: false,
        },
        memory: memory(),
        fixed_data: FixedData::default(),
        serialising: [50; Serialising::ALL.len()],
    }
}

pub(crate) fn memory() -> CoreMemoryDescription {
    CoreMemoryDescription {
        l1d_latency: 5,
        vector_latency: 5,
        scaled_latency: 5,
        address_latency: 1,
        forward_latency: 4,
        renamed_addresses: false,
        predicted_loads: 0,
        blocked_penalty: 0,
        alias_penalty: None,
        stores_to_a_line: 1,
        stores_in_a_cycle: 1,
        atomic_latency: 18,
        l1d_misses: 2,
        l1d_fill: 0,
        l2_misses: 4,
        second_tlb: CacheGeometry::tlb(16, 16, Lru).unwrap(),
        second_tlb_hashed: false,
        second_tlb_latency: 7,
        page_walk: 20,
        page_walkers: 1,
        next_line: false,
        stride_entries: 0,
        streams: 0,
        stream_distance: 0,
        scattered_pages: false,
    }
}
