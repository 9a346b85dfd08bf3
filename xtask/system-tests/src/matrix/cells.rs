//! The cells of the matrix: version × compiler × configuration.
//!
//! Output: for each cell its name, and the recipe of its tree. Builds nothing.

use anyhow::{Context, Result, bail};
use lab::kernel::recipe::{DEMO_LINES, Recipe, TARGETS};
use lab::kernel::source::Source;
use lab::kernel::{self, CONFIG};
use std::path::Path;
use std::{fmt, fs};

/// A version of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Debian 12's.
    V6_1,
    /// The demo kernel's.
    V6_12,
    /// The newest in Debian's archive.
    Newest,
}

/// Who compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compiler {
    Gcc,
    Clang,
}

/// What is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Configuration {
    /// `xtask/demo-kernel.config`; the others are this one and some options.
    Demo,
    ThinLto,
    FullLto,
    /// kCFI, which chooses FineIBT at boot where the processor can.
    Kcfi,
    Size,
    RealTime,
    Lazy,
    NoMitigations,
    /// The configuration that Firecracker publishes for its guests: no modules, no tracers, frame
    /// pointers.
    Firecracker,
}

/// A cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub version: Version,
    pub compiler: Compiler,
    pub configuration: Configuration,
}

const fn cell(version: Version, compiler: Compiler, configuration: Configuration) -> Cell {
    Cell { version, compiler, configuration }
}

/// All cells, in the order in which they are tried.
pub(super) const CELLS: &[Cell] = {
    use Compiler::*;
    use Configuration::*;
    use Version::*;
    &[
        cell(V6_12, Gcc, Demo),
        cell(V6_12, Clang, Demo),
        cell(V6_1, Gcc, Demo),
        cell(Newest, Gcc, Demo),
        cell(V6_12, Clang, ThinLto),
        cell(V6_12, Clang, Kcfi),
        cell(V6_12, Gcc, NoMitigations),
        cell(V6_12, Gcc, Size),
        cell(V6_12, Gcc, RealTime),
        cell(V6_1, Clang, Demo),
        cell(Newest, Clang, Demo),
        cell(Newest, Gcc, Lazy),
        cell(V6_12, Clang, FullLto),
        cell(V6_1, Clang, ThinLto),
        cell(Newest, Clang, ThinLto),
        cell(Newest, Clang, Kcfi),
        cell(Newest, Gcc, NoMitigations),
        cell(Newest, Gcc, RealTime),
        cell(V6_1, Gcc, NoMitigations),
        cell(V6_1, Gcc, Size),
        cell(V6_1, Gcc, Firecracker),
    ]
};

impl Version {
    pub(super) const ALL: [Version; 3] = [Version::V6_1, Version::V6_12, Version::Newest];

    pub(super) fn name(self) -> &'static str {
        match self {
            Version::V6_1 => "6.1",
            Version::V6_12 => "6.12",
            Version::Newest => "newest",
        }
    }

    fn source(self) -> Result<Source> {
        match self {
            Version::V6_1 => Source::fetched("6.1"),
            Version::V6_12 => Source::installed("6.12"),
            Version::Newest => Source::newest(),
        }
    }
}

impl Compiler {
    pub(super) const ALL: [Compiler; 2] = [Compiler::Gcc, Compiler::Clang];

    pub(super) fn name(self) -> &'static str {
        match self {
            Compiler::Gcc => "gcc",
            Compiler::Clang => "clang",
        }
    }
}

impl Configuration {
    pub(super) const ALL: [Configuration; 9] = [
        Configuration::Demo,
        Configuration::ThinLto,
        Configuration::FullLto,
        Configuration::Kcfi,
        Configuration::Size,
        Configuration::RealTime,
        Configuration::Lazy,
        Configuration::NoMitigations,
        Configuration::Firecracker,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Configuration::Demo => "demo",
            Configuration::ThinLto => "thin-lto",
            Configuration::FullLto => "full-lto",
            Configuration::Kcfi => "kcfi",
            Configuration::Size => "size",
            Configuration::RealTime => "real-time",
            Configuration::Lazy => "lazy",
            Configuration::NoMitigations => "no-mitigations",
            Configuration::Firecracker => "firecracker",
        }
    }

    /// What the page says that it is.
    pub(super) fn described(self) -> &'static str {
        match self {
            Configuration::Demo => "the demo kernel's (`xtask/demo-kernel.config`)",
            Configuration::ThinLto => "and `LTO_CLANG_THIN`",
            Configuration::FullLto => "and `LTO_CLANG_FULL`",
            Configuration::Kcfi => "and `CFI_CLANG`, with FineIBT",
            Configuration::Size => "and `CC_OPTIMIZE_FOR_SIZE` (`-Os`)",
            Configuration::RealTime => "and `PREEMPT_RT`",
            Configuration::Lazy => "and `PREEMPT_LAZY`",
            Configuration::NoMitigations => "without `CPU_MITIGATIONS`",
            Configuration::Firecracker => {
                "Firecracker's (`microvm-kernel-ci-x86_64-6.1.config` of its project)"
            }
        }
    }

    /// The options that kconfig must take, as most versions call them.
    fn options(self) -> &'static str {
        match self {
            Configuration::Demo => "",
            Configuration::ThinLto => "CONFIG_LTO_CLANG_THIN=y\n",
            Configuration::FullLto => "CONFIG_LTO_CLANG_FULL=y\n",
            Configuration::Kcfi => "CONFIG_CFI_CLANG=y\nCONFIG_FINEIBT=y\n",
            Configuration::Size => {
                "CONFIG_CC_OPTIMIZE_FOR_PERFORMANCE=n\nCONFIG_CC_OPTIMIZE_FOR_SIZE=y\n"
            }
            Configuration::RealTime => "CONFIG_EXPERT=y\nCONFIG_PREEMPT_RT=y\n",
            Configuration::Lazy => "CONFIG_PREEMPT_VOLUNTARY=n\nCONFIG_PREEMPT_LAZY=y\n",
            // Two names: the newer one since 6.9, the older one before.
            Configuration::NoMitigations => "CONFIG_CPU_MITIGATIONS=n\nCONFIG_RETPOLINE=n\n",
            Configuration::Firecracker => "CONFIG_MODULES=n\nCONFIG_UNWINDER_FRAME_POINTER=y\n",
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, compiler) = (self.version.name(), self.compiler.name());
        write!(f, "{version}/{compiler}/{}", self.configuration.name())
    }
}

impl Cell {
    /// The cell with this name.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn named(name: &str) -> Result<Cell> {
        let found = CELLS.iter().find(|cell| cell.to_string() == name);
        found.copied().with_context(|| {
            let names: Vec<String> = CELLS.iter().map(Cell::to_string).collect();
            format!("{name}: no cell of the matrix; these are: {}", names.join(", "))
        })
    }

    /// The options that kconfig must take.
    pub(super) fn options(self) -> &'static str {
        match (self.version, self.configuration) {
            // The newest calls it otherwise, and no longer writes the older name.
            (Version::Newest, Configuration::Kcfi) => "CONFIG_CFI=y\nCONFIG_FINEIBT=y\n",
            _ => self.configuration.options(),
        }
    }

    /// The demo kernel that it is.
    pub(super) fn demo_kernel(self) -> Option<kernel::Compiler> {
        let is_demo = (self.version, self.configuration) == (Version::V6_12, Configuration::Demo);
        is_demo.then_some(match self.compiler {
            Compiler::Gcc => kernel::Compiler::Gcc,
            Compiler::Clang => kernel::Compiler::Clang,
        })
    }

    /// Whether the configuration is a file that somebody else publishes.
    pub(super) fn needs_config(self) -> bool {
        self.configuration == Configuration::Firecracker
    }

    /// Whether the kernel has what most tests of a guest use: modules and tracers.
    pub(super) fn is_plain(self) -> bool {
        self.configuration == Configuration::Firecracker
    }

    /// What make builds. Without modules in the configuration, it has no target for them.
    fn targets(self) -> &'static [&'static str] {
        match self.is_plain() {
            true => &["bzImage"],
            false => TARGETS,
        }
    }

    /// What its tree is made of. `config`: the file with the configuration, if the cell needs one.
    ///
    /// # Errors
    /// The sources or the configuration cannot be had.
    pub(super) fn recipe(self, config: Option<&Path>) -> Result<Recipe> {
        let make_arguments: &[&str] = match self.compiler {
            Compiler::Gcc => &[],
            Compiler::Clang => &["LLVM=-22"],
        };
        let published = config.filter(|_| self.needs_config());
        let config = match published {
            Some(file) => fs::read_to_string(file).with_context(|| file.display().to_string())?,
            None if self.needs_config() => bail!("{self}: give its configuration by --config"),
            None => [CONFIG, self.options()].concat(),
        };
        Ok(Recipe {
            name: self.to_string(),
            source: self.version.source()?,
            config,
            is_complete: self.needs_config(),
            compiler: match self.compiler {
                Compiler::Gcc => "gcc",
                Compiler::Clang => "clang-22",
            },
            make_arguments: make_arguments.iter().map(|&word| word.to_owned()).collect(),
            targets: self.targets().iter().map(|&target| target.to_owned()).collect(),
            expected_lines: DEMO_LINES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_has_a_name_of_its_own() {
        for (number, cell) in CELLS.iter().enumerate() {
            assert_eq!(Cell::named(&cell.to_string()).unwrap(), *cell);
            assert!(!CELLS[..number].contains(cell), "{cell} is there twice");
        }
        let error = Cell::named("2.6/gcc/demo").unwrap_err().to_string();
        let begin = "2.6/gcc/demo: no cell of the matrix; these are: 6.12/gcc/demo, 6.12/clang/";
        assert!(error.starts_with(begin), "{error}");
    }

    #[test]
    fn a_published_configuration_is_a_file() {
        let cell = Cell::named("6.1/gcc/firecracker").unwrap();
        assert!(cell.needs_config() && !Cell::named("6.1/gcc/demo").unwrap().needs_config());
    }
}
