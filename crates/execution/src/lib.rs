//! Follows a recorded execution step by step: the way of control, the fetches and the data
//! accesses.
//!
//! ```text
//! trace → walk ─┬→ flow: fragments ─→ moved: fetches under a layout ─→ fetched: lines, pages
//!               └→ data: executions with their loads and stores ─→ hierarchy_run: misses
//! ```
//!
//! Input: the events of a recording, and [`image::place::Placement`]s. Output: what an analysis
//! counts. This crate counts nothing itself, and never looks at ELF.
//!
//! ```
//! # use kernlane_execution as execution;
//! use execution::flow::{ExecutionFlow, FragmentExit};
//! use trace::{RunAddr, StreamEvent, Translation, TranslationId};
//!
//! // A conditional jump over two bytes that is taken, and the code at its target.
//! let mut flow = ExecutionFlow::default();
//! let translation = |id, addr, code: &[u8]| Translation {
//!     id: TranslationId(id),
//!     addr: RunAddr(addr),
//!     lengths: [code.len() as u8].into(),
//!     code: code.into(),
//! };
//! flow.define(&translation(0, 0x1000, &[0x74, 0x02]))?;
//! flow.define(&translation(1, 0x1004, &[0x90]))?;
//! let events = [0, 1].map(|id| StreamEvent::Executed(TranslationId(id)));
//! let mut fragments = Vec::new();
//! flow.follow(events.into_iter(), &mut fragments, |_| {})?;
//! flow.finish_cpu(flow.cpu(), &mut fragments);
//! let exits: Vec<_> = fragments.iter().map(|id| flow.fragments[id.0 as usize].exit).collect();
//! assert_eq!(exits, [FragmentExit::Taken, FragmentExit::Interrupted]);
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod branches;
pub mod code;
pub mod coherent_run;
pub mod coherent_step;
pub mod coherent_walk;
pub mod core_code;
pub mod core_run;
pub mod cpu_order;
pub mod data;
pub mod division;
pub mod executions;
pub mod fetched;
pub mod flow;
pub mod hierarchy_run;
mod module_addresses;
pub mod moved;
pub mod numbering;
pub mod opened;
pub mod part;
pub mod per_cpu;
pub mod sampling;
pub mod served_log;
pub mod slices;
pub mod walk;
