//! Folded stacks for `flamegraph.pl`, inferno, speedscope and the Firefox profiler: one line for
//! each chain of calls, `frame;frame;… count`.
//!
//! Input: chains of calls. Output: text. Counts go out as they are.

use crate::{Format, Make};
use services::annotations::ServiceKind;
use services::calls::{CallTree, ServiceCalls};
use std::fmt::Write;

/// The format.
pub(crate) const FOLDED: Format = Format {
    name: "folded",
    about: "Folded stacks of services and functions (flamegraph.pl, inferno, speedscope)",
    make: Make::Calls(|observed| Ok(folded(&observed.calls))),
};

/// Instructions of each chain itself; lines ascending. The first frame is user, kernel or idle, the
/// second the service, then come functions.
pub(crate) fn folded(tree: &CallTree) -> String {
    let mut lines: Vec<String> = Vec::new();
    for service in &tree.services {
        for (node, cost) in service.costs.iter().filter(|(_, cost)| cost.instructions > 0) {
            let mut line = frames(service).join(";");
            for function in tree.chain(*node) {
                line.push(';');
                line += &frame(function);
            }
            let _ = write!(line, " {}", cost.instructions);
            lines.push(line);
        }
    }
    lines.sort();
    lines.push(String::new());
    lines.join("\n")
}

/// The two outermost frames of a service.
pub(crate) fn frames(service: &ServiceCalls) -> [String; 2] {
    [mode(service).to_owned(), frame(&title(service))]
}

/// Where a service executes.
pub(crate) fn mode(service: &ServiceCalls) -> &'static str {
    mode_of(service.kind)
}

/// Where services of this kind execute.
pub(crate) fn mode_of(kind: ServiceKind) -> &'static str {
    match kind {
        ServiceKind::User => "user",
        ServiceKind::Idle => "idle",
        _ => "kernel",
    }
}

/// The name of a service for people.
pub(crate) fn title(service: &ServiceCalls) -> String {
    service_title(service.kind, &service.name)
}

/// The name, for people, of a service of this kind.
pub(crate) fn service_title(kind: ServiceKind, name: &str) -> String {
    match kind {
        ServiceKind::Idle => name.to_owned(),
        kind => format!("{} {name}", kind.title()),
    }
}

/// A name with characters replaced that would end the frame or the line. Names of processes may
/// contain any character.
pub(crate) fn frame(name: &str) -> String {
    let safe = |character: char| match character {
        ';' => ':',
        character if character.is_control() => '?',
        character => character,
    };
    name.chars().map(safe).collect()
}
