//! The commands. Each takes its arguments, calls the road or a stage, and prints. Neither the road
//! nor the stages know arguments.

pub(crate) mod ask;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod counts;
pub(crate) mod cross_validate;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod evaluate;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod layout;
pub(crate) mod live;
pub(crate) mod manual;
pub(crate) mod objtool;
pub(crate) mod optimize;
pub(crate) mod order;
pub(crate) mod part;
pub(crate) mod profile;
pub(crate) mod record;
pub(crate) mod relink;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod sampling;
pub(crate) mod study;
pub(crate) mod trial;
pub(crate) mod workload;
