//! Which modules a guest loads, and in which order.
//!
//! Input: names of modules with their parameters, and the modules of a kernel. Output: the modules
//! and those that they depend on, each behind what it needs. This module reads files and changes
//! none.

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A module's bytes, decompressed, with its name.
#[derive(Debug)]
pub struct KernelModule {
    /// Its name, with `_` for `-`.
    pub name: String,
    /// Its parameters, as for insmod.
    pub parameters: String,
    /// Its bytes, decompressed.
    pub data: Vec<u8>,
}

/// The modules that a kernel has.
pub(crate) struct ModuleChoice<'a> {
    /// The kernel's release, for messages.
    pub release: &'a str,
    /// The file of each module. Names have `_` for `-`.
    pub files: &'a BTreeMap<String, PathBuf>,
    /// What would be a module in another kernel, and is a part of this one.
    pub built_in: &'a BTreeSet<String>,
    pub read: fn(&std::path::Path) -> Result<Vec<u8>>,
}

impl ModuleChoice<'_> {
    /// The wanted modules, each a name and parameters, and what they depend on.
    ///
    /// # Errors
    /// The kernel has no such module, or a module cannot be read.
    pub(crate) fn in_order(&self, wanted: &[String]) -> Result<Vec<KernelModule>> {
        let mut loaded = Vec::new();
        for wanted in wanted {
            let (name, parameters) = wanted.split_once(' ').unwrap_or((wanted, ""));
            let name = name.replace('-', "_");
            let is_built_in = self.built_in.contains(&name);
            ensure!(
                !is_built_in || parameters.is_empty(),
                "{name} is no module of the kernel {} but a part of it: it takes its parameters \
                 from the kernel's command line, as {name}.NAME=VALUE",
                self.release
            );
            self.add(&name, &mut loaded, 0)?;
            if let Some(module) = loaded.iter_mut().find(|module| module.name == name) {
                module.parameters = parameters.trim().to_owned();
            }
        }
        Ok(loaded)
    }

    fn add(&self, name: &str, loaded: &mut Vec<KernelModule>, depth: usize) -> Result<()> {
        if self.built_in.contains(name) || loaded.iter().any(|module| module.name == name) {
            return Ok(());
        }
        ensure!(depth <= self.files.len(), "the module {name} depends on itself");
        let path = self
            .files
            .get(name)
            .with_context(|| format!("the kernel {} has no module {name}", self.release))?;
        let data =
            (self.read)(path).with_context(|| format!("reading the module {}", path.display()))?;
        let needs = needs(&data).with_context(|| format!("the module {}", path.display()))?;
        for needed in needs.modules {
            self.add(&needed, loaded, depth + 1)?;
        }
        for wish in needs.wishes {
            // The kernel asks for a crypto algorithm by its name; the portable module of it has
            // the ending (crypto/crc32c_generic.c: `MODULE_ALIAS_CRYPTO("crc32c")`).
            let known = [wish.clone(), format!("{wish}_generic")];
            if let Some(known) = known.iter().find(|name| self.files.contains_key(*name)) {
                self.add(known, loaded, depth + 1)?;
            }
        }
        loaded.push(KernelModule { name: name.into(), parameters: String::new(), data });
        Ok(())
    }
}

/// What a module needs.
#[derive(Debug, Default, PartialEq)]
struct Needs {
    /// Modules whose symbols it uses.
    modules: Vec<String>,
    /// Names that modprobe loads before it, if there are such modules.
    wishes: Vec<String>,
}

/// Reads `depends=a,b` and `softdep=pre: c d post: e` in the section `.modinfo`, which is a
/// sequence of NUL-terminated `key=value`.
fn needs(module: &[u8]) -> Result<Needs> {
    let elf = object::File::parse(module).context("not a readable ELF file")?;
    let section = elf.section_by_name(".modinfo").context("has no section .modinfo")?;
    let info = String::from_utf8_lossy(section.data()?);
    let mut needs = Needs::default();
    let name = |word: &str| word.replace('-', "_");
    for entry in info.split('\0') {
        if let Some(names) = entry.strip_prefix("depends=") {
            needs.modules.extend(names.split(',').filter(|name| !name.is_empty()).map(name));
        } else if let Some(text) = entry.strip_prefix("softdep=") {
            let mut is_before = false;
            for word in text.split_whitespace() {
                match word {
                    "pre:" => is_before = true,
                    "post:" => is_before = false,
                    word if is_before => needs.wishes.push(name(word)),
                    _ => {}
                }
            }
        }
    }
    Ok(needs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::write::Object as Written;
    use object::{Architecture, BinaryFormat, Endianness, SectionKind};
    use std::path::Path;

    /// A module that says this of itself.
    fn module(info: &str) -> Vec<u8> {
        let mut file = Written::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let name = b".modinfo".to_vec();
        let section = file.add_section(Vec::new(), name, SectionKind::ReadOnlyData);
        file.append_section_data(section, info.as_bytes(), 1);
        file.write().unwrap()
    }

    struct Kernel {
        directory: tempfile::TempDir,
        files: BTreeMap<String, PathBuf>,
    }

    impl Kernel {
        fn new(modules: &[(&str, &str)]) -> Kernel {
            let directory = tempfile::tempdir().unwrap();
            let mut files = BTreeMap::new();
            for (name, info) in modules {
                let path = directory.path().join(name);
                std::fs::write(&path, module(info)).unwrap();
                files.insert((*name).to_owned(), path);
            }
            Kernel { directory, files }
        }

        fn in_order(&self, wanted: &[&str]) -> Result<Vec<String>> {
            let built_in = BTreeSet::from(["ext4".to_owned()]);
            let read = |path: &Path| Ok(std::fs::read(path)?);
            let choice =
                ModuleChoice { release: "6.12", files: &self.files, built_in: &built_in, read };
            let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
            let loaded = choice.in_order(&wanted)?;
            let words = |module: KernelModule| format!("{} {}", module.name, module.parameters);
            Ok(loaded.into_iter().map(|module| words(module).trim().to_owned()).collect())
        }
    }

    #[test]
    fn a_module_comes_behind_what_it_depends_on() {
        let kernel = Kernel::new(&[
            ("nf_tables", "license=GPL\0depends=nfnetlink,libcrc32c\0name=nf_tables\0"),
            ("nfnetlink", "depends=\0"),
            // As in Debian's kernel.
            ("libcrc32c", "softdep=pre: crc32c post: later\0depends=\0"),
            ("crc32c_generic", "alias=crypto-crc32c\0depends=\0"),
            ("later", "depends=\0"),
        ]);
        let order = ["nfnetlink", "crc32c_generic", "libcrc32c", "nf_tables"];
        assert_eq!(kernel.in_order(&["nf-tables", "libcrc32c"]).unwrap(), order);
        drop(kernel.directory);
    }

    #[test]
    fn a_module_gets_its_parameters() {
        let kernel = Kernel::new(&[("brd", "depends=\0"), ("top", "depends=brd,ext4\0")]);
        let order = ["brd rd_nr=3 rd_size=4096", "top"];
        assert_eq!(kernel.in_order(&["top", "brd rd_nr=3 rd_size=4096"]).unwrap(), order);
    }

    #[test]
    fn what_the_kernel_has_built_in_is_not_loaded() {
        let kernel = Kernel::new(&[]);
        assert_eq!(kernel.in_order(&["ext4"]).unwrap(), [""; 0]);
        let message = |wanted| kernel.in_order(&[wanted]).unwrap_err().to_string();
        assert!(message("ext4 x=1").contains("as ext4.NAME=VALUE"), "{}", message("ext4 x=1"));
        assert_eq!(message("brd"), "the kernel 6.12 has no module brd");
    }

    #[test]
    fn a_loop_of_dependencies_ends() {
        let kernel = Kernel::new(&[("a", "depends=b\0"), ("b", "depends=a\0")]);
        let message = kernel.in_order(&["a"]).unwrap_err().to_string();
        assert!(message.contains("depends on itself"), "{message}");
    }
}
