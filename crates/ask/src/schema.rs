//! The tables of a recording and their columns.
//!
//! `docs/reference/tables.md` is made from these schemas, and a test compares it.

use std::fmt::Write;

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableId {
    /// What the recording depends on.
    Conditions,
    /// Tasks.
    Tasks,
    /// Switches from one task to another.
    Switches,
    /// Invocations of services.
    Services,
    /// Interrupts.
    Interrupts,
    /// Invocations of functions.
    Calls,
    /// The kernel's functions.
    Functions,
    /// Blocks of the kernel.
    Blocks,
    /// Executions of branches.
    Branches,
    /// Loads and stores.
    Accesses,
    /// Cache misses.
    Misses,
    /// Locks.
    Locks,
    /// Hits of probes.
    Probes,
}

/// The type of a column's values. Every value may be null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// An integer.
    Count,
    /// An address: an integer whose bits are those of the address.
    Address,
    /// A real number.
    Real,
    /// Text.
    Text,
}

impl ColumnType {
    /// The name in SQL and in the documentation.
    pub fn sql(self) -> &'static str {
        match self {
            ColumnType::Count => "INTEGER",
            ColumnType::Address => "ADDRESS",
            ColumnType::Real => "REAL",
            ColumnType::Text => "TEXT",
        }
    }

    /// The type with this name in SQL.
    pub fn of_sql(name: &str) -> Option<ColumnType> {
        let all = [ColumnType::Count, ColumnType::Address, ColumnType::Real, ColumnType::Text];
        all.into_iter().find(|of| of.sql() == name)
    }
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSchema {
    /// Its name.
    pub name: &'static str,
    /// The type of its values.
    pub of: ColumnType,
    /// What it says.
    pub about: &'static str,
}

/// A table and its columns.
#[derive(Clone, Copy, Debug)]
pub struct TableSchema {
    /// The table.
    pub id: TableId,
    /// Its name.
    pub name: &'static str,
    /// What a row is, and what the table needs.
    pub about: &'static str,
    /// Its columns, at most 63.
    pub columns: &'static [ColumnSchema],
}

impl TableSchema {
    /// The number of the column with this name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The statement that would make the table.
    pub fn to_sql(&self) -> String {
        let columns = self.columns.iter().map(|it| format!("{} {}", quoted(it.name), it.of.sql()));
        format!("CREATE TABLE {}({})", self.name, columns.collect::<Vec<_>>().join(", "))
    }
}

/// A name for SQL. `end` is a word of the language.
pub fn quoted(name: &str) -> String {
    match name {
        "end" => format!("\"{name}\""),
        _ => name.to_owned(),
    }
}

/// The schema of a table.
pub fn of(id: TableId) -> &'static TableSchema {
    // The tests compare the order of both lists.
    &TABLES[id as usize]
}

/// The table with this name.
pub fn named(name: &str) -> Option<&'static TableSchema> {
    TABLES.iter().find(|table| table.name == name)
}

const fn column(name: &'static str, of: ColumnType, about: &'static str) -> ColumnSchema {
    ColumnSchema { name, of, about }
}

const fn count(name: &'static str, about: &'static str) -> ColumnSchema {
    column(name, ColumnType::Count, about)
}

const fn address(name: &'static str, about: &'static str) -> ColumnSchema {
    column(name, ColumnType::Address, about)
}

const fn real(name: &'static str, about: &'static str) -> ColumnSchema {
    column(name, ColumnType::Real, about)
}

const fn text(name: &'static str, about: &'static str) -> ColumnSchema {
    column(name, ColumnType::Text, about)
}

const START: ColumnSchema = count("start", "where it began, in instructions of the recording");
const END: ColumnSchema =
    count("end", "where it ended, in instructions; null if the recording ended before");
const TASK: ColumnSchema = text("task", "the name of the task that ran");
const PID: ColumnSchema = count("pid", "the pid of that task");
const CPU: ColumnSchema = count("cpu", "the CPU");
const BEGAN_ON: ColumnSchema = count("cpu", "the CPU on which it began");
const FUNCTION: ColumnSchema = text("function", "the function that executed");
const MODULE: ColumnSchema =
    text("module", "the module that has the code; `vmlinux` for the kernel itself");
const CLASS: ColumnSchema =
    text("class", "the class of the data structure: slab, static, kernel stack …");
const STRUCTURE: ColumnSchema =
    text("structure", "the name of the data structure: a slab cache or a symbol");

/// All tables, in the order of [`TableId`].
pub const TABLES: &[TableSchema] = &[
    TableSchema {
        id: TableId::Conditions,
        name: "conditions",
        about: "What the recording depends on: kernel, workload, seed, machine.",
        columns: &[text("key", "the name of the condition"), text("value", "its value")],
    },
    TableSchema {
        id: TableId::Tasks,
        name: "tasks",
        about: "A row for each name and pid that ran. A task that changes its name (execve) has \
            a row for each name.",
        columns: &[
            text("task", "its name"),
            count("pid", "its pid; null if the recorder could not read it"),
            address("address", "the address of its `task_struct`"),
            count("start", "where it first ran, in instructions of the recording"),
            count("turns", "how often a CPU went on with it"),
            count("instructions", "its instructions, in both modes"),
            count("kernel_instructions", "those in the kernel, with interrupts while it ran"),
        ],
    },
    TableSchema {
        id: TableId::Switches,
        name: "switches",
        about: "A row for each switch from one task to another.",
        columns: &[
            count("start", "where it happened, in instructions of the recording"),
            CPU,
            text("from_task", "the task that ran; null at the beginning of the recording"),
            count("from_pid", "its pid"),
            text("to_task", "the task that runs next"),
            count("to_pid", "its pid"),
        ],
    },
    TableSchema {
        id: TableId::Services,
        name: "services",
        about: "A row for each invocation of a service of the system (system call, page fault, \
            interrupt, softirq, kernel thread …), and for each stay in user mode. The table \
            of services adds them up. Cycles and misses are those of the named machine, and null \
            without one.",
        columns: &[
            count("id", "the number of the invocation, in the order in which they begin"),
            count("parent", "the invocation within which it began"),
            text("kind", "system call, page fault, interrupt, softirq …; user"),
            text("service", "the name of the service; for user mode, of the task"),
            TASK,
            PID,
            BEGAN_ON,
            START,
            END,
            count("depth", "the number of open services of its task when it began"),
            count("instructions", "its own instructions, without services within it"),
            count("latency", "from begin to end, in nanoseconds of the guest's clock"),
            count("ran", "the part of the latency in which its task ran"),
            count("blocked", "the part in which its task could not run"),
            count("waiting", "the part in which its task could run, but another one ran"),
            real("cycles", "its own cycles on the machine"),
            count("l1i_misses", "its own misses of the L1I"),
            count("l1d_misses", "its own misses of the L1D; needs data accesses"),
            count("l2_misses", "its own misses of the L2; needs data accesses"),
        ],
    },
    TableSchema {
        id: TableId::Interrupts,
        name: "interrupts",
        about: "A row for each interrupt of a device, of a timer, or of another processor.",
        columns: &[
            count("id", "its number in `services`"),
            text("interrupt", "its name"),
            text("kind", "interrupt, or IPI if it came from another processor"),
            text("task", "the task that it interrupted"),
            PID,
            BEGAN_ON,
            START,
            END,
            count("instructions", "its own instructions, without softirqs within it"),
            count("latency", "from begin to end, in nanoseconds of the guest's clock"),
        ],
    },
    TableSchema {
        id: TableId::Calls,
        name: "calls",
        about: "A row for each invocation of a function of the kernel. A function that is left by \
            a jump ends, and the function that it jumps to has the same caller. Inlined functions \
            have no row.",
        columns: &[
            count("id", "the number of the invocation, in the order in which they begin"),
            count("parent", "the invocation that called it; null for the first of a service"),
            text("function", "its name, without what compilers append"),
            MODULE,
            address("address", "the address at which it began"),
            text("caller", "the function that called it"),
            count("service_id", "the service in which it ran: `services.id`"),
            TASK,
            PID,
            BEGAN_ON,
            START,
            END,
            count("depth", "the number of functions of its service below it"),
            count("entered", "1 if it began with the function's first instruction, 0 otherwise"),
            count("own", "its own instructions"),
            count(
                "inclusive",
                "its own instructions and those of the functions that it called, without services \
                 that began meanwhile",
            ),
        ],
    },
    TableSchema {
        id: TableId::Functions,
        name: "functions",
        about: "A row for each function of the kernel, whether it ran or not, and for each that \
            ran in a module. Thunks have rows here; in `calls` they belong to the functions that \
            go through them. Code without a symbol has a row without an address.",
        columns: &[
            text("function", "its name, without what compilers append"),
            text("symbol", "its symbol"),
            address("address", "its address"),
            count("size", "its bytes"),
            MODULE,
            text("section", "its section in vmlinux"),
            count("executions", "how often its first instruction was executed"),
            count("instructions", "its own instructions"),
        ],
    },
    TableSchema {
        id: TableId::Blocks,
        name: "blocks",
        about: "A row for each basic block of vmlinux that ran, as `profile` counts them. Needs \
            the kernel's vmlinux.",
        columns: &[
            address("address", "its address"),
            count("size", "its bytes"),
            text("function", "its function, by its symbol"),
            text("section", "its section"),
            count("executions", "how often it was entered at its start"),
        ],
    },
    TableSchema {
        id: TableId::Branches,
        name: "branches",
        about: "A row for each execution of a branch, in both modes.",
        columns: &[
            START,
            CPU,
            TASK,
            PID,
            FUNCTION,
            address("address", "the address of the branch"),
            text(
                "kind",
                "conditional, jump, call, return, indirect jump, indirect call, interrupt return",
            ),
            count("taken", "1 if it was taken, 0 if not; null if an interrupt hides it"),
            address("target", "where it went; null if it was not taken or is unknown"),
        ],
    },
    TableSchema {
        id: TableId::Accesses,
        name: "accesses",
        about: "A row for each load and store, in both modes. One across two pages has two rows. \
            Those of devices have none. Needs data accesses.",
        columns: &[
            START,
            CPU,
            TASK,
            PID,
            FUNCTION,
            address("code", "the address of the instruction"),
            text("kind", "load or store"),
            address("address", "the address that was accessed"),
            count("size", "its bytes"),
            address("physical", "its physical address"),
            CLASS,
            STRUCTURE,
        ],
    },
    TableSchema {
        id: TableId::Misses,
        name: "misses",
        about: "A row for each miss of a cache of the first level on the named machine, as the \
            table of misses counts them. Needs data accesses, a machine and one CPU.",
        columns: &[
            START,
            TASK,
            PID,
            text("mode", "kernel or user"),
            text("kind", "fetch, load or store"),
            FUNCTION,
            address("code", "the address of the instruction, or the one that was fetched"),
            address("address", "the address that was accessed or fetched"),
            address("physical", "the physical address of a load or store"),
            text(
                "cause",
                "why the first level missed: cold (never there), self or other (who evicted it)",
            ),
            text("l2_cause", "why the L2 missed; null if it hit"),
            text("l3_cause", "why the L3 missed; null if it hit, or was not asked"),
            CLASS,
            STRUCTURE,
        ],
    },
    TableSchema {
        id: TableId::Locks,
        name: "locks",
        about: "A row for each lock of the kernel, or for all locks of one name, as the table \
            of locks lists them. Needs data accesses and a machine with coherent caches.",
        columns: &[
            text("kind", "spin, rw, mutex, rwsem or seq"),
            text("class", "the class of the object that holds it"),
            text("name", "the object and the field"),
            address("address", "the address of the first lock"),
            count("locks", "the number of locks"),
            count("acquisitions", "how often they were acquired; of a sequence counter, writes"),
            count("contended", "acquisitions through a slow path"),
            count("slept", "those for which the task left its CPU"),
            count("failed", "attempts of `trylock` functions that failed"),
            real("wait_cycles", "cycles from attempts to acquisitions"),
            real("longest_wait_cycles", "the longest wait"),
            real("hold_cycles", "cycles from acquisitions to releases"),
            real("longest_hold_cycles", "the longest hold"),
            real("awaited_cycles", "cycles for which CPUs waited in simulated time"),
            count("coherence_misses", "coherence misses of their lines"),
            real("coherence_cycles", "the cycles of these misses, and of upgrades"),
        ],
    },
    TableSchema {
        id: TableId::Probes,
        name: "probes",
        about: "A row for each time that an instruction with a probe was reached. Each probe has a \
            view of its own, which has its values by their names: ask that one. Values that cannot \
            be read are null. Needs probes.",
        columns: &[
            text("probe", "the name of the probe"),
            count("start", "the instruction, in instructions of the recording"),
            CPU,
            TASK,
            PID,
            count("ran", "the instructions that its task had run by then, in both modes"),
            real("cycles", "the cycles of its task by then, on the named machine"),
            count("l1i_misses", "the misses of the L1I of its task by then, on that machine"),
            count("l1d_misses", "likewise of the L1D"),
            count("l2_misses", "likewise of the L2"),
            count("number1", "the probe's values that are numbers, by their place in it"),
            count("number2", "the probe's values that are numbers, by their place in it"),
            count("number3", "the probe's values that are numbers, by their place in it"),
            count("number4", "the probe's values that are numbers, by their place in it"),
            count("number5", "the probe's values that are numbers, by their place in it"),
            count("number6", "the probe's values that are numbers, by their place in it"),
            count("number7", "the probe's values that are numbers, by their place in it"),
            count("number8", "the probe's values that are numbers, by their place in it"),
            address("address1", "the probe's values that are addresses, by their place in it"),
            address("address2", "the probe's values that are addresses, by their place in it"),
            address("address3", "the probe's values that are addresses, by their place in it"),
            address("address4", "the probe's values that are addresses, by their place in it"),
            address("address5", "the probe's values that are addresses, by their place in it"),
            address("address6", "the probe's values that are addresses, by their place in it"),
            address("address7", "the probe's values that are addresses, by their place in it"),
            address("address8", "the probe's values that are addresses, by their place in it"),
            text("text1", "the probe's values that are texts, by their place in it"),
            text("text2", "the probe's values that are texts, by their place in it"),
            text("text3", "the probe's values that are texts, by their place in it"),
            text("text4", "the probe's values that are texts, by their place in it"),
            text("text5", "the probe's values that are texts, by their place in it"),
            text("text6", "the probe's values that are texts, by their place in it"),
            text("text7", "the probe's values that are texts, by their place in it"),
            text("text8", "the probe's values that are texts, by their place in it"),
        ],
    },
];

/// Breaks a paragraph into lines of at most 100 columns.
pub(crate) fn lines(paragraph: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let width = word.chars().count();
        if column > 0 {
            let fits = column + 1 + width <= 100;
            lines.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        lines.push_str(word);
        column += width;
    }
    lines
}

/// The tables as a page of the book.
pub fn to_markdown() -> String {
    let about = lines(
        "This page is made from the schemas in `crates/ask/src/schema.rs`. Every value may be \
         null. An `ADDRESS` is an integer with the bits of the address: write it as \
         `0xffffffff81000000`. Tables show it in that form.",
    );
    let mut page = format!(
        "# Tables\n\n*For all users, when you [ask a recording](../how-to/ask.md) and want to \
         know what a column means.*\n\n{about}\n"
    );
    for table in TABLES {
        let _ = write!(page, "\n## {}\n\n{}\n\n", table.name, lines(table.about));
        page.push_str("| Column | Type | Meaning |\n|---|---|---|\n");
        for column in table.columns {
            let name = match (table.id, column.name.strip_suffix('1')) {
                (TableId::Probes, Some(group)) => format!("{group}1` … `{group}8"),
                (TableId::Probes, None)
                    if column.name.ends_with(|it: char| it.is_ascii_digit()) =>
                {
                    continue;
                }
                _ => column.name.to_owned(),
            };
            let _ = writeln!(page, "| `{name}` | {} | {} |", column.of.sql(), column.about);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn tables_stand_in_the_order_of_their_ids() {
        for (number, table) in TABLES.iter().enumerate() {
            assert_eq!(table.id as usize, number, "{}", table.name);
            let names: BTreeSet<&str> = table.columns.iter().map(|column| column.name).collect();
            assert_eq!(names.len(), table.columns.len(), "{} names a column twice", table.name);
            assert!(table.columns.len() < 64);
        }
    }

    #[test]
    fn the_reference_is_that_of_the_schemas() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/tables.md");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, to_markdown()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), to_markdown(), "BLESS=1 writes it");
    }
}
