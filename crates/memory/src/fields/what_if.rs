//! The misses of a recording when the members of a structure stand in another order.
//!
//! Input: a recording, a machine and an order. Output: misses of both orders, from one walk. Each
//! object stays where it is; only the places within it change. TLBs do not change.

use super::collect::{FieldMisses, Wanted};
use super::order::FieldOrder;
use super::resolve::{Asked, Resolved, Resolver};
use super::table::FieldMissCounts;
use crate::misses::hierarchy_walk::HierarchyWalk;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::{DataAccess, DataWish};
use execution::walk::{Observer, Piece, PieceData, Wants};
use serde::Serialize;
use sim::{MachineModel, PhysAddr};
use trace::{Accesses, RecordingHeader, Translation};

/// The kernel's misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OrderMisses {
    /// On objects of the structure.
    pub structure: FieldMissCounts,
    /// On all data.
    pub all: FieldMissCounts,
}

/// A field with another place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MovedField {
    /// Its name.
    pub name: String,
    /// Its offset in the source.
    pub from: u64,
    /// Its new offset.
    pub to: u64,
    /// Its bytes.
    pub size: u64,
}

/// What another order of the members changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OrderChange {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The simulated machine.
    pub machine: String,
    /// The structure.
    pub structure: String,
    /// Members and fields that have other places, by their new offset.
    pub moved: Vec<MovedField>,
    /// Misses with the order of the source.
    pub before: OrderMisses,
    /// Misses with the other order.
    pub after: OrderMisses,
}

/// Simulates an order, as an observer of a recording.
pub(super) struct OrderWalk<'a> {
    resolver: Resolver<'a>,
    wanted: Wanted<'a>,
    order: &'a FieldOrder,
    kernel: Vec<bool>,
    edited: Vec<DataAccess>,
    caches: HierarchyWalk<FieldMisses<'a>>,
}

impl<'a> OrderWalk<'a> {
    /// `counted`: what counts the misses.
    ///
    /// # Errors
    /// The machine has no data cache.
    pub(super) fn new(
        resolver: Resolver<'a>,
        wanted: Wanted<'a>,
        order: &'a FieldOrder,
        machine: &MachineModel,
        counted: FieldMisses<'a>,
    ) -> Result<OrderWalk<'a>> {
        let caches = HierarchyWalk::new(std::slice::from_ref(machine), counted)?;
        Ok(OrderWalk { resolver, wanted, order, kernel: Vec::new(), edited: Vec::new(), caches })
    }

    pub(super) fn misses(&self) -> OrderMisses {
        let counted = &self.caches.observer;
        let sum = counted.misses.values().fold([0; 2], |sum, it| [sum[0] + it[0], sum[1] + it[1]]);
        let counts = |[l1d, l2]: [u64; 2]| FieldMissCounts { l1d, l2 };
        OrderMisses { structure: counts(sum), all: counts(counted.all) }
    }
}

impl Observer for OrderWalk<'_> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        self.caches.begin(header, has_data)?;
        // In the new order, two fields of one line may lie in two lines.
        Ok(Wants { data: Some(DataWish::EVERY_ACCESS), ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        for translation in translations {
            self.resolver.define(translation);
            self.kernel.push(translation.is_kernel());
        }
        self.caches.define(translations, codes)
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.resolver.stream(accesses, |_, _| {});
        self.caches.stream(accesses);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(data) = piece.data else { return Ok(()) };
        self.edited.clear();
        for (execution, accesses) in data.executed() {
            let translation = execution.translation.0;
            self.resolver.executed(translation, |_, _| {});
            if !self.kernel[translation as usize] {
                self.edited.extend(accesses);
                continue;
            }
            for access in accesses {
                let asked = Asked::of(&data, access, translation);
                let mut physical = access.physical.0;
                if let Resolved::In(located) = self.resolver.resolve(&asked)?
                    && let Some((_, offset)) = self.wanted.hit(&located)?
                {
                    physical = physical - offset + self.order.place(offset);
                }
                self.edited.push(DataAccess { physical: PhysAddr(physical), ..*access });
            }
        }
        let data = PieceData { accesses: &self.edited, ..data };
        self.caches.piece(&Piece { data: Some(data), ..*piece })
    }
}
