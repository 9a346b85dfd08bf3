//! The commands. Each takes its arguments, calls stages, writes files and prints. The stages know
//! no arguments.

pub mod check;
pub mod checkpoint;
pub mod counts;
pub mod cross_validate;
pub mod diff;
pub mod doctor;
pub mod dump;
pub mod evaluate;
pub mod export;
pub mod import;
pub mod layout;
pub mod live;
pub mod manual;
pub mod objtool;
pub mod optimize;
pub mod profile;
pub mod record;
pub mod relink;
pub mod replay;
pub mod report;
pub mod workload;
