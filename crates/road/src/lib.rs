//! The road as a library: what Kernlane's commands do, for programs, studies and tests.
//!
//! Input: workloads, kernels, recordings, profiles and layouts, mostly by their paths. Output:
//! values, and the files of each step. This crate calls the stages of the road in their order. It
//! parses no options and prints nothing: it reports what it does to the observer of the process
//! ([`host::progress`]). An interrupt ends its work with an error once the program has called
//! [`host::interrupt::catch`].
//!
//! | to | see |
//! |---|---|
//! | record a workload | [`workload`], [`record`] |
//! | find the kernel of a recording | [`kernel`] |
//! | make profiles: from recordings, samples, counters | [`counts`], [`import`], [`counters`] |
//! | make layouts, choose the best of several, judge them | [`ground`], [`search`], [`laid_out`] |
//! | say what of the executed code no layout moves | [`staying`] |
//! | read layouts and maps, and place them | [`layout_file`] |
//! | relink a kernel, or give it counters | [`relink`] |
//! | prove that a relinked kernel is the old program | [`proof`] |
//! | replay recordings over layouts and machines | [`replayed`] |
//! | go from a workload to a faster kernel | [`optimization`], [`optimize`], [`rebuild`] |
//! | inline hot calls in a kernel | [`inlined`] |
//! | the same without a build, in a kernel that runs | [`optimize_live`] |
//! | test layouts on other workloads, and as Torrellas did | [`cross_validation`], [`evaluation`] |
//! | open recordings for tables, and what a page shows of them | [`opened`], [`overview`] |
//! | ask recordings in SQL | [`asked`] |
//! | the time of services, by samples | [`service_time`], [`sampling`] |
//! | compare two recordings | [`difference`] |
//! | write counts and tables for other tools | [`export`], [`tables`], [`window`] |
//!
//! The crates of the stages are re-exported, so that a program depends on this crate alone.
//!
//! A layout for a recording, and what it brings on a machine:
//!
//! ```
//! use layout::Algorithm;
//! use profile::ProfileMerge;
//! use profile::collect::ExtraCounts;
//! use replay::ReplayLayout;
//! use replay::results::ResultKind;
//! use road::ground::Ground;
//! use road::replayed::ReplayRequest;
//! use road::{counts, kernel, layout_file};
//!
//! let home = road::examples::home();
//! let recordings = [home.path().join("loop.rec")];
//! let vmlinux = kernel::kernel_of_all(None, &recordings)?;
//! let image = image::vmlinux::read(&vmlinux)?;
//! let whole = execution::part::RecordingPart::WHOLE;
//! let profile =
//!     counts::profile(&recordings, &image, &whole, ProfileMerge::Sum, ExtraCounts::None)?;
//! let (layout, score) = Ground::new(&image, &profile)?.lay_out(Algorithm::default(), 1)?;
//! assert!(score.taken() > 0);
//!
//! let placement = layout_file::placed(&layout, Some(&vmlinux), Some(&image))?;
//! let layouts = [
//!     ReplayLayout::original(),
//!     ReplayLayout::predicted("ext-tsp", image.build_id.clone(), placement),
//! ];
//! let machines = [machines::find("server-32k")?.model];
//! let rows = ReplayRequest::new(&recordings[0], &layouts, &machines).rows()?;
//! assert_eq!(rows[1].kind, ResultKind::Predicted);
//! # anyhow::Ok(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub use check;
pub use coherence;
pub use emit;
pub use exchange;
pub use execution;
pub use guest;
pub use host;
pub use image;
pub use layout;
pub use machines;
pub use memory;
pub use profile;
pub use replay;
pub use report;
pub use services;
pub use sim;
pub use trace;

pub mod asked;
pub mod counters;
pub mod counts;
pub mod cross_validation;
pub mod difference;
pub mod evaluation;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod export;
pub mod ground;
pub mod guests;
pub mod import;
pub mod inlined;
pub mod input_file;
pub mod kernel;
pub mod laid_out;
pub mod layout_file;
pub mod likeness;
mod live_guest;
pub mod modules;
pub mod objtool;
pub mod opened;
pub mod optimization;
pub mod optimize;
pub mod optimize_live;
pub mod overview;
mod page_walk;
pub mod probed;
pub mod proof;
pub mod proven_kernel;
pub mod rebuild;
mod rebuild_steps;
pub mod record;
mod recorded;
pub mod relink;
pub mod replayed;
mod said;
pub mod sampling;
pub mod search;
pub mod service_time;
pub mod staying;
pub mod tables;
pub mod window;
pub mod workload;
