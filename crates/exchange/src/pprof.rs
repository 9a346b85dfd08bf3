//! Profiles of pprof (github.com/google/pprof, `proto/profile.proto`), which `go tool pprof`,
//! Pyroscope, Parca and speedscope open.
//!
//! Input: chains of calls. Output: a protocol buffer, compressed by gzip as the format demands.
//! Functions lie in the mapping `vmlinux` with the kernel's build id; services lie in none. The
//! conditions of the recording are comments.

use crate::stacks::{StackFile, Stacks, Texts};
use crate::{Format, Make};
use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use services::ObservedRecording;
use std::io::Write;

/// The format.
pub(crate) const PPROF: Format = Format {
    name: "pprof",
    about: "A profile of pprof: functions and services with their calls (go tool pprof, Pyroscope, \
        Parca)",
    make: Make::Stacks(pprof),
};

/// The number of the only mapping.
const KERNEL: u64 = 1;

/// # Errors
/// The bytes cannot be compressed.
fn pprof(observed: &ObservedRecording) -> Result<StackFile> {
    let stacks = Stacks::of(observed);
    let conditions = observed.conditions_by_name();
    let profile = profile(&stacks, &observed.table.kernel, &conditions);
    let mut compressor = GzEncoder::new(Vec::new(), Compression::default());
    compressor.write_all(&profile.encode_to_vec())?;
    Ok(StackFile { contents: compressor.finish()?, stacks: stacks.stacks.len() as u64 })
}

fn profile(stacks: &Stacks, build_id: &str, conditions: &[(&str, String)]) -> Profile {
    let mut texts = Texts::new();
    let count = texts.number("count");
    let sample_type: Vec<ValueType> = stacks
        .measures
        .iter()
        .map(|measure| ValueType { r#type: texts.number(measure.name), unit: count })
        .collect();
    // Ids begin with 1, and a frame has the same one as a function and as a location.
    let functions = stacks.frames.iter().zip(1..).map(|(frame, id)| {
        let name = texts.number(&frame.name);
        Function { id, name, system_name: name }
    });
    let function = functions.collect();
    let locations = stacks.frames.iter().zip(1..).map(|(frame, id)| Location {
        id,
        mapping_id: if frame.is_function { KERNEL } else { 0 },
        line: vec![Line { function_id: id }],
    });
    let samples = stacks.stacks.iter().map(|stack| Sample {
        location_id: stack.frames.iter().map(|&frame| u64::from(frame) + 1).collect(),
        value: stack.values.iter().map(|&value| value as i64).collect(),
    });
    let (filename, build_id) = (texts.number("vmlinux"), texts.number(build_id));
    let comment =
        conditions.iter().map(|(name, value)| texts.number(&format!("{name}: {value}"))).collect();
    Profile {
        default_sample_type: sample_type.first().map_or(0, |first| first.r#type),
        period_type: sample_type.first().cloned(),
        period: 1,
        sample_type,
        sample: samples.collect(),
        mapping: vec![Mapping { id: KERNEL, filename, build_id, has_functions: true }],
        location: locations.collect(),
        function,
        comment,
        string_table: texts.into_table(),
    }
}

/// `perftools.profiles.Profile`, as far as it is written. So are the messages below.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
}
