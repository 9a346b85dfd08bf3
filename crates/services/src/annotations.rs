//! Annotations: what functions of a kernel mean. Annotations are data; the shipped ones are in
//! `annotations/linux.toml`, which also explains each table.
//!
//! Takes TOML; gives `Annotations` with checked fields. Knows no kernel: `binding` finds the
//! symbols.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The shipped annotations, for the kernels that `README.md` names.
pub const SHIPPED: &str = include_str!("../annotations/linux.toml");

/// The kind of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceKind {
    /// A system call.
    SystemCall,
    /// A page fault.
    PageFault,
    /// Any other exception.
    Exception,
    /// An interrupt of a device or timer.
    Interrupt,
    /// An interrupt from another processor.
    Ipi,
    /// A softirq.
    Softirq,
    /// The callback of a timer.
    Timer,
    /// A context switch.
    ContextSwitch,
    /// The delivery of a signal.
    Signal,
    /// The first instructions of a new task.
    Task,
    /// A kernel thread.
    KernelThread,
    /// An item of a work queue.
    Work,
    /// The idle loop.
    Idle,
    /// Kernel code that no annotation assigns to a service.
    Other,
    /// User mode; its services have the names of tasks.
    User,
}

impl ServiceKind {
    /// The title in reports, in front of the service's name.
    pub fn title(self) -> &'static str {
        match self {
            ServiceKind::SystemCall => "system call",
            ServiceKind::PageFault => "page fault",
            ServiceKind::Exception => "exception",
            ServiceKind::Interrupt => "interrupt",
            ServiceKind::Ipi => "IPI",
            ServiceKind::Softirq => "softirq",
            ServiceKind::Timer => "timer",
            ServiceKind::ContextSwitch => "context switch",
            ServiceKind::Signal => "signal",
            ServiceKind::Task => "task",
            ServiceKind::KernelThread => "kernel thread",
            ServiceKind::Work => "work",
            ServiceKind::Idle => "idle",
            ServiceKind::Other => "other",
            ServiceKind::User => "user",
        }
    }
}

/// The functions that an annotation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnotationSubject {
    /// What cannot be seen when the kernel has none of the symbols.
    pub about: String,
    /// Names of functions; `*` stands for any text.
    pub symbols: Vec<String>,
    /// Whether to use only the first symbol that the kernel has.
    pub first_only: bool,
    pub optional: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Annotation {
    pub subject: AnnotationSubject,
    pub meaning: AnnotationMeaning,
}

/// What entering a function means. In `name`, `*` stands for the text that `*` matched in the
/// symbol, or for the callee's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnnotationMeaning {
    Gate { kind: ServiceKind, name: String, anywhere: bool },
    Enter { kind: ServiceKind, name: String },
    EnterCallee { kind: ServiceKind, name: String },
    Name { of: ServiceKind, when: Vec<String>, name: String, body: bool },
    NameByCallee { of: ServiceKind, name: String },
    Task { name: String },
    Thread { body: bool },
    Thunk,
    Count { name: String },
}

/// The annotations of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// Ordered by kind of table, then as in the file.
    pub(crate) list: Vec<Annotation>,
    /// Names of idle tasks; `*` stands for any text.
    pub(crate) idle: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct AnnotationFile {
    gate: Vec<GateText>,
    #[serde(default)]
    enter: Vec<EnterText>,
    #[serde(default)]
    name: Vec<NameText>,
    #[serde(default)]
    task: Vec<NamedText>,
    #[serde(default)]
    thread: Vec<ThreadText>,
    #[serde(default)]
    idle: Vec<IdleText>,
    #[serde(default)]
    thunk: Vec<PlainText>,
    #[serde(default)]
    count: Vec<NamedText>,
}

/// The keys that every table has. `serde(flatten)` would accept unknown keys, so each kind of table
/// lists its keys.
macro_rules! table {
    ($name:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty),* $(,)? }) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        struct $name {
            about: String,
            #[serde(default)]
            symbols: Vec<String>,
            #[serde(default)]
            first_of: Vec<String>,
            #[serde(default)]
            optional: bool,
            $($(#[$attribute])* $field: $kind,)*
        }

        impl $name {
            fn subject(&self) -> Result<AnnotationSubject> {
                subject(&self.about, &self.symbols, &self.first_of, self.optional)
            }
        }
    };
}

table!(GateText {
    kind: ServiceKind,
    name: String,
    #[serde(default)]
    anywhere: bool
});
table!(EnterText { kind: ServiceKind, name: String, #[serde(default)] by: Option<NamedBy> });
table!(NameText {
    of: ServiceKind,
    name: String,
    #[serde(default)] when: Vec<String>,
    #[serde(default)] body: bool,
    #[serde(default)] by: Option<NamedBy>
});
table!(NamedText { name: String });
table!(ThreadText {
    #[serde(default)]
    body: bool
});
table!(PlainText {});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IdleText {
    tasks: Vec<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum NamedBy {
    Callee,
}

fn subject(
    about: &str,
    symbols: &[String],
    first_of: &[String],
    optional: bool,
) -> Result<AnnotationSubject> {
    ensure!(
        symbols.is_empty() != first_of.is_empty(),
        "{about:?}: give either symbols or first-of, and at least one"
    );
    for symbol in symbols.iter().chain(first_of) {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '*';
        ensure!(
            !symbol.is_empty() && symbol.chars().all(good),
            "{about:?}: {symbol:?} is not the name of a function"
        );
        ensure!(symbol.matches('*').count() <= 1, "{about:?}: {symbol:?} has more than one *");
    }
    Ok(AnnotationSubject {
        about: about.to_owned(),
        symbols: symbols.iter().chain(first_of).cloned().collect(),
        first_only: symbols.is_empty(),
        optional,
    })
}

impl Annotations {
    /// The annotations that Kernlane ships.
    ///
    /// # Errors
    /// The shipped annotations are invalid.
    pub fn shipped() -> Result<Annotations> {
        Annotations::parse(SHIPPED).context("the shipped annotations")
    }

    /// Parses a file of annotations.
    ///
    /// # Errors
    /// The text is not TOML, has an unknown key or kind, or has a table without symbols. The error
    /// names the line, or the table's `about`.
    pub fn parse(text: &str) -> Result<Annotations> {
        let text: AnnotationFile = toml::from_str(text)?;
        let mut list = Vec::new();
        let mut add = |subject: Result<AnnotationSubject>, meaning| -> Result<()> {
            list.push(Annotation { subject: subject?, meaning });
            Ok(())
        };
        for table in &text.gate {
            let (kind, name, anywhere) = (table.kind, table.name.clone(), table.anywhere);
            add(table.subject(), AnnotationMeaning::Gate { kind, name, anywhere })?;
        }
        for table in &text.enter {
            let (kind, name) = (table.kind, table.name.clone());
            let meaning = match table.by {
                None => AnnotationMeaning::Enter { kind, name },
                Some(NamedBy::Callee) => AnnotationMeaning::EnterCallee { kind, name },
            };
            add(table.subject(), meaning)?;
        }
        for table in &text.name {
            let (of, when, name, body) =
                (table.of, table.when.clone(), table.name.clone(), table.body);
            let meaning = match table.by {
                None => AnnotationMeaning::Name { of, when, name, body },
                Some(NamedBy::Callee) if when.is_empty() && !body => {
                    AnnotationMeaning::NameByCallee { of, name }
                }
                Some(NamedBy::Callee) => {
                    bail!("{:?}: by = \"callee\" goes with neither when nor body", table.about)
                }
            };
            add(table.subject(), meaning)?;
        }
        for table in &text.task {
            add(table.subject(), AnnotationMeaning::Task { name: table.name.clone() })?;
        }
        for table in &text.thread {
            add(table.subject(), AnnotationMeaning::Thread { body: table.body })?;
        }
        for table in &text.thunk {
            add(table.subject(), AnnotationMeaning::Thunk)?;
        }
        for table in &text.count {
            add(table.subject(), AnnotationMeaning::Count { name: table.name.clone() })?;
        }
        Ok(Annotations {
            list,
            idle: text.idle.into_iter().flat_map(|table| table.tasks).collect(),
        })
    }
}

/// The text that `*` of `pattern` matches in `name`, or all of `name` when `pattern` has no `*`;
/// `None` when `name` does not match.
pub(crate) fn fit<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(name),
        Some((before, behind)) => name.strip_prefix(before)?.strip_suffix(behind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_annotations_are_valid() {
        let annotations = Annotations::shipped().unwrap();
        assert!(annotations.list.len() > 30);
        assert_eq!(annotations.idle, ["swapper/*"]);
    }

    #[test]
    fn a_star_stands_for_any_text() {
        assert_eq!(fit("__x64_sys_*", "__x64_sys_read"), Some("read"));
        assert_eq!(fit("a*z", "abz"), Some("b"));
        assert_eq!(fit("a*a", "a"), None);
        assert_eq!(fit("do_exit", "do_exit"), Some("do_exit"));
        assert_eq!(fit("do_exit", "do_exit2"), None);
    }

    const GOOD: &str =
        "[[gate]]\nabout = 'calls'\nsymbols = ['f']\nkind = 'system-call'\nname = 'x'\n";

    #[test]
    fn broken_rules_are_named() {
        assert!(Annotations::parse(GOOD).is_ok());
        let error = |from: &str, to: &str| {
            format!("{:#}", Annotations::parse(&GOOD.replace(from, to)).unwrap_err())
        };
        assert!(error("'system-call'", "'syscall'").contains("line 4"));
        assert!(error("name =", "nam =").contains("unknown field `nam`"));
        assert!(error("['f']", "[]").contains("\"calls\": give either symbols or first-of"));
        assert!(error("['f']", "['f g']").contains("\"f g\" is not the name of a function"));
        assert!(error("['f']", "['*f*']").contains("more than one *"));
        let callee_and_body = format!(
            "{GOOD}[[name]]\nabout = 'n'\nsymbols = ['g']\nof = 'interrupt'\nname = '*'\n\
             by = 'callee'\nbody = true\n"
        );
        assert!(
            format!("{:#}", Annotations::parse(&callee_and_body).unwrap_err())
                .contains("neither when nor body")
        );
    }

    /// TOML allows no control character anywhere, so each damaged byte must be found.
    #[test]
    fn a_file_with_a_damaged_byte_is_refused() {
        for at in (0..SHIPPED.len()).step_by(31) {
            let mut bytes = SHIPPED.as_bytes().to_vec();
            bytes[at] = 1;
            let damaged = Annotations::parse(&String::from_utf8_lossy(&bytes));
            assert!(damaged.is_err(), "byte {at}");
        }
    }
}
