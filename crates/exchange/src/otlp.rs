//! Profiles of OpenTelemetry (`opentelemetry/proto/profiles/v1development/profiles.proto`, as of
//! version 1.9), which collectors and their backends take.
//!
//! Input: chains of calls. Output: a protocol buffer, `ProfilesData`: a profile for each count,
//! over one dictionary. Functions lie in the mapping `vmlinux` with the kernel's build id; services
//! lie in none. The conditions of the recording are attributes of the resource.

use crate::stacks::{StackFile, Stacks, Texts};
use crate::{Format, Make};
use anyhow::Result;
use prost::Message;
use services::ObservedRecording;

/// The format.
pub(crate) const OTLP: Format = Format {
    name: "otlp",
    about: "Profiles of OpenTelemetry: functions and services with their calls (collectors)",
    make: Make::Stacks(otlp),
};

/// The number of the kernel's mapping. In every table the number 0 is a value that says nothing.
const KERNEL: i32 = 1;

/// # Errors
/// None; other formats have them.
fn otlp(observed: &ObservedRecording) -> Result<StackFile> {
    let stacks = Stacks::of(observed);
    let conditions = observed.conditions_by_name();
    let data = profiles(&stacks, &observed.table.kernel, &conditions);
    Ok(StackFile { contents: data.encode_to_vec(), stacks: stacks.stacks.len() as u64 })
}

fn profiles(stacks: &Stacks, build_id: &str, conditions: &[(&str, String)]) -> ProfilesData {
    let mut texts = Texts::new();
    let unit_strindex = texts.number("count");
    let mut profiles = Vec::new();
    for (at, measure) in stacks.measures.iter().enumerate() {
        let kind = ValueType { type_strindex: texts.number(measure.name), unit_strindex };
        let counted = stacks.stacks.iter().zip(1..).filter(|(stack, _)| stack.values[at] > 0);
        let samples = counted.map(|(stack, stack_index)| Sample {
            stack_index,
            values: vec![stack.values[at] as i64],
        });
        profiles.push(Profile {
            sample_type: Some(kind),
            samples: samples.collect(),
            period_type: Some(kind),
            period: 1,
            profile_id: profile_id(build_id, conditions, at),
        });
    }
    let (mut functions, mut locations) = (vec![Function::default()], vec![Location::default()]);
    for (frame, function_index) in stacks.frames.iter().zip(1..) {
        let name = texts.number(&frame.name);
        functions.push(Function { name_strindex: name, system_name_strindex: name });
        locations.push(Location {
            mapping_index: if frame.is_function { KERNEL } else { 0 },
            lines: vec![Line { function_index }],
        });
    }
    let table = stacks.stacks.iter().map(|stack| StackFrames {
        location_indices: stack.frames.iter().map(|&frame| frame as i32 + 1).collect(),
    });
    let build = KeyValueAndUnit {
        key_strindex: texts.number("process.executable.build_id.gnu"),
        value: Some(AnyValue { string_value: Some(build_id.to_owned()) }),
    };
    let kernel = Mapping { filename_strindex: texts.number("vmlinux"), attribute_indices: vec![1] };
    let attributes = conditions.iter().map(|(name, value)| KeyValue {
        key: format!("kernlane.{name}"),
        value: Some(AnyValue { string_value: Some(value.clone()) }),
    });
    let scope = InstrumentationScope {
        name: "kernlane".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    ProfilesData {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource { attributes: attributes.collect() }),
            scope_profiles: vec![ScopeProfiles { scope: Some(scope), profiles }],
        }],
        dictionary: Some(ProfilesDictionary {
            mapping_table: vec![Mapping::default(), kernel],
            location_table: locations,
            function_table: functions,
            link_table: vec![Link {}],
            attribute_table: vec![KeyValueAndUnit::default(), build],
            stack_table: std::iter::once(StackFrames::default()).chain(table).collect(),
            string_table: texts.into_table(),
        }),
    }
}

/// 16 bytes that are the same for the same recording and count.
fn profile_id(build_id: &str, conditions: &[(&str, String)], measure: usize) -> Vec<u8> {
    use md5::Digest;
    let text = format!("{build_id} {conditions:?} {measure}");
    md5::Md5::digest(text).to_vec()
}

/// `opentelemetry.proto.profiles.v1development.ProfilesData`, as far as it is written. So are the
/// messages below.
#[derive(Clone, PartialEq, Message)]
struct ProfilesData {
    #[prost(message, repeated, tag = "1")]
    resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<ProfilesDictionary>,
}

#[derive(Clone, PartialEq, Message)]
struct ProfilesDictionary {
    #[prost(message, repeated, tag = "1")]
    mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    function_table: Vec<Function>,
    #[prost(message, repeated, tag = "4")]
    link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    attribute_table: Vec<KeyValueAndUnit>,
    #[prost(message, repeated, tag = "7")]
    stack_table: Vec<StackFrames>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    profiles: Vec<Profile>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, optional, tag = "5")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "6")]
    period: i64,
    #[prost(bytes = "vec", tag = "7")]
    profile_id: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int32, tag = "1")]
    type_strindex: i32,
    #[prost(int32, tag = "2")]
    unit_strindex: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int32, tag = "1")]
    stack_index: i32,
    #[prost(int64, repeated, tag = "4")]
    values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(int32, tag = "4")]
    filename_strindex: i32,
    #[prost(int32, repeated, tag = "5")]
    attribute_indices: Vec<i32>,
}

/// `Stack`.
#[derive(Clone, PartialEq, Message)]
struct StackFrames {
    #[prost(int32, repeated, tag = "1")]
    location_indices: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(int32, tag = "1")]
    mapping_index: i32,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(int32, tag = "1")]
    function_index: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(int32, tag = "1")]
    name_strindex: i32,
    #[prost(int32, tag = "2")]
    system_name_strindex: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Link {}

#[derive(Clone, PartialEq, Message)]
struct KeyValueAndUnit {
    #[prost(int32, tag = "1")]
    key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

/// A text, the only kind of value that is written.
#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string_value: Option<String>,
}
