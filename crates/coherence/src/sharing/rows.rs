//! What lies in a line, and who uses it, as rows for reports. These are plain values.

use super::counts::{AccessCounts, LineCounts};
use memory::misses::owners::StructureClass;
use serde::Serialize;

/// An object in a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectRow {
    /// The class, as in the table of misses.
    pub class: StructureClass,
    /// The symbol, the name of the slab cache or, for memory at user addresses, of the task that
    /// first used its dearest field; empty without a name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// For user memory: the variable and its program, `counters of sharer`, or a place in the
    /// program's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The CPU of a per-CPU variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u8>,
    /// Class, name, place and CPU. Also the address, for user memory, for an object without a name,
    /// and when the line holds several objects of the slab cache.
    pub title: String,
    /// The virtual address of the object, in hex. When its beginning is not known, that of the
    /// first access; for user memory that is no variable, that to the dearest field.
    pub addr: String,
    /// The bytes of an object with a symbol, or of a slab cache whose size is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The cycles of its fields.
    pub cycles: f64,
}

/// Bytes of a line that instructions access.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldRow {
    /// Where the field begins in the line.
    pub offset: u32,
    /// The number of bytes that an access uses.
    pub size: u32,
    /// An index into the line's objects.
    pub object: usize,
    /// The object's name and the field's path; for a slab object, the structure's name. Without a
    /// type: the offset in the object. When the object's beginning is not known: the offset in the
    /// line.
    pub name: String,
    /// Loads and stores by CPU.
    pub cpus: Vec<AccessCounts>,
    /// What the accesses asked for. Fetches count only for the line.
    pub counts: LineCounts,
    /// The functions that access the field, descending by accesses.
    pub functions: Vec<FunctionUse>,
}

impl FieldRow {
    /// Loads and stores of all CPUs.
    pub fn accesses(&self) -> AccessCounts {
        let mut all = AccessCounts::default();
        self.cpus.iter().for_each(|&cpu| all += cpu);
        all
    }
}

/// A function that accesses a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionUse {
    /// The function's name, without what compilers append.
    pub function: String,
    /// Loads and stores.
    #[serde(flatten)]
    pub accesses: AccessCounts,
    /// The instruction with the most accesses: `symbol+0x1f`; an address in hex for user code.
    pub most_at: String,
}
