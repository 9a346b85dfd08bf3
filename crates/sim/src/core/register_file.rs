//! The files of registers that a core renames.
//!
//! This module has only data.

/// Registers that a core renames together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterFile {
    /// General registers.
    Integer,
    /// Registers for floating point and vectors.
    Vector,
    /// All of them, the flags, and the values within an instruction.
    Any,
}

impl RegisterFile {
    /// All files, in the order of their indices.
    pub const ALL: [RegisterFile; 3] =
        [RegisterFile::Integer, RegisterFile::Vector, RegisterFile::Any];

    /// Its place in [`RegisterFile::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name of its size in a machine's file.
    pub const fn name(self) -> &'static str {
        match self {
            RegisterFile::Integer => "integer_results",
            RegisterFile::Vector => "vector_results",
            RegisterFile::Any => "results",
        }
    }
}

/// A set of register files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterFiles(u8);

impl RegisterFiles {
    /// The empty set.
    pub const NONE: RegisterFiles = RegisterFiles(0);

    /// The same set and `file`.
    #[must_use]
    pub const fn with(self, file: RegisterFile) -> RegisterFiles {
        RegisterFiles(self.0 | 1 << file as u8)
    }

    /// Whether the set has `file`.
    #[inline]
    pub const fn has(self, file: RegisterFile) -> bool {
        self.0 >> file as u8 & 1 != 0
    }

    /// The files that are in both sets.
    #[inline]
    pub(crate) const fn common(self, other: RegisterFiles) -> RegisterFiles {
        RegisterFiles(self.0 & other.0)
    }

    /// The files of both sets.
    #[inline]
    #[must_use]
    pub const fn and(self, other: RegisterFiles) -> RegisterFiles {
        RegisterFiles(self.0 | other.0)
    }
}
