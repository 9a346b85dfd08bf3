//! Kernels that can be booted: boot image, vmlinux, modules, and what the plugin must know.
//!
//! Input: a build tree, or a boot image and its vmlinux. Output: a `GuestKernel`. Its two files are
//! proven, by the build id, to be one kernel. This module never changes the files and never looks
//! into code.

use crate::bzimage::BzImage;
use crate::frame_facts::{FrameTypes, KernelFrameFacts, VALUES};
use crate::headers::Answers;
use crate::kernel_branches::BranchCode;
use crate::module_files;
use crate::module_order::{KernelModule, ModuleChoice};
use crate::refused::RefusedRequest;
use crate::thunks;
use crate::user_programs;
use anyhow::{Context, Result, bail, ensure};
use image::BuildId;
use image::address::LinkAddr;
use image::btf::Btf;
use image::linked::tables;
use image::mapping::map_file;
use image::module::ModuleIdentity;
use image::object::elf::Elf;
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use trace::RunAddr;

/// A kernel that can be booted.
pub struct GuestKernel {
    /// The path of the boot image.
    pub boot_image: PathBuf,
    /// The path of the vmlinux.
    pub vmlinux: PathBuf,
    /// The build id of both.
    pub build_id: BuildId,
    /// What `uname -r` prints.
    pub release: String,
    /// The file of each module. Names have `_` for `-`.
    modules: BTreeMap<String, PathBuf>,
    /// What would be a module in another kernel, and is a part of this one.
    built_in: BTreeSet<String>,
}

/// What the plugin needs to distinguish tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFacts {
    /// `__switch_to`, whose second argument is the next task.
    pub switch_to: LinkAddr,
    /// `__set_task_comm`, whose arguments are the task and its new name. Some kernels lack it.
    pub set_comm: Option<LinkAddr>,
    /// Functions whose second argument is a task that becomes runnable: `enqueue_task_fair` and
    /// similar ones.
    pub wakes: Vec<LinkAddr>,
    /// The offset of `comm` in `struct task_struct`, in bytes.
    pub comm: u64,
    /// The offset of `pid`, in bytes; known for a kernel with BTF or in its build tree.
    pub pid: Option<u64>,
    /// The variable `page_offset_base`, which says where all memory is mapped. In some kernels it
    /// is a constant.
    pub page_offset_base: Option<LinkAddr>,
}

impl GuestKernel {
    /// Opens a kernel. `kernel` is a build tree or a boot image. For a boot image without
    /// `vmlinux`, the vmlinux is searched where distributions install it.
    ///
    /// # Errors
    /// A file is missing or cannot be read, or the two files are not one kernel.
    pub fn open(kernel: &Path, vmlinux: Option<&Path>) -> Result<GuestKernel> {
        ensure!(kernel.exists(), "{}: there is no such file or directory", kernel.display());
        if kernel.is_dir() {
            ensure!(vmlinux.is_none(), RefusedRequest::TreeAndVmlinux);
            return GuestKernel::from_tree(kernel);
        }
        let image = read_boot_image(kernel)?;
        let vmlinux = match vmlinux {
            Some(path) => path.to_path_buf(),
            None => installed_vmlinux(kernel, &image)?,
        };
        let build_id = read_build_id(&vmlinux)?;
        ensure!(
            build_id.0 == image.build_id,
            "{} (build id {}) contains another kernel than {} (build id {}): use files of one \
             build or of one version of the packages",
            kernel.display(),
            image.build_id,
            vmlinux.display(),
            build_id.0
        );
        let modules = module_files::installed(&root_of(kernel)?, &image.release)?;
        Ok(GuestKernel {
            boot_image: kernel.into(),
            vmlinux,
            build_id,
            built_in: module_files::built_in(
                &root_of(kernel)?.join("lib/modules").join(&image.release),
            ),
            release: image.release,
            modules,
        })
    }

    fn from_tree(tree: &Path) -> Result<GuestKernel> {
        let (vmlinux, boot_image) = (tree.join("vmlinux"), tree.join("arch/x86/boot/bzImage"));
        for path in [&vmlinux, &boot_image] {
            ensure!(
                path.is_file(),
                "{} is not a built x86-64 kernel tree: {} is missing (run make in it)",
                tree.display(),
                path.display()
            );
        }
        let build_id = read_build_id(&vmlinux)?;
        let image = read_boot_image(&boot_image)?;
        ensure!(
            build_id.0 == image.build_id,
            "{}: vmlinux (build id {}) and bzImage (build id {}) are from different builds: a \
             build is running or was interrupted (run make in the tree)",
            tree.display(),
            build_id.0,
            image.build_id
        );
        let (modules, built_in) = (module_files::of_tree(tree)?, module_files::built_in(tree));
        Ok(GuestKernel { boot_image, vmlinux, build_id, release: image.release, modules, built_in })
    }

    /// Where the kernel is, in a form that holds from every directory: its build tree, if the boot
    /// image lies in one, otherwise its vmlinux.
    ///
    /// # Errors
    /// The place is gone.
    pub fn place(&self) -> Result<PathBuf> {
        let place = self.tree().unwrap_or(&self.vmlinux);
        place.canonicalize().with_context(|| place.display().to_string())
    }

    /// The build tree of the kernel, if its boot image lies in one.
    pub fn tree(&self) -> Option<&Path> {
        let tree = self.boot_image.ancestors().nth(4)?;
        (self.vmlinux == tree.join("vmlinux")).then_some(tree)
    }

    /// The named modules and the modules that they depend on, in an order in which they can be
    /// loaded. Behind a name may stand the module's parameters, as for insmod. What is built into
    /// the kernel is left out.
    ///
    /// # Errors
    /// The kernel has no such module, or a module cannot be read.
    pub fn modules(&self, names: &[String]) -> Result<Vec<KernelModule>> {
        let Self { release, modules: files, built_in, .. } = self;
        ModuleChoice { release, files, built_in, read: module_files::read }.in_order(names)
    }

    /// Whether the kernel has exactly this build of a module.
    pub(crate) fn has_module(&self, wanted: &ModuleIdentity) -> bool {
        let path = self.modules.get(&wanted.name);
        let data = path.and_then(|path| module_files::read(path).ok());
        let identity = data
            .and_then(|data| Elf::parse(&data).and_then(|elf| image::module::identity(&elf)).ok());
        identity.is_some_and(|identity| identity == *wanted)
    }

    /// Whether the kernel can load or has built in all of these modules.
    pub fn has_modules(&self, names: &[String]) -> bool {
        names.iter().all(|name| {
            let name = name.split(' ').next().unwrap_or_default().replace('-', "_");
            self.modules.contains_key(&name) || self.built_in.contains(&name)
        })
    }

    /// The thunks of mitigations and the static calls in the vmlinux.
    ///
    /// # Errors
    /// The vmlinux cannot be read.
    pub(crate) fn branch_code(&self) -> Result<BranchCode> {
        with_elf(&self.vmlinux, |elf| {
            let code = elf.symbols().filter(|symbol| symbol.section_index().is_some());
            let named = code.filter_map(|symbol| {
                Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned()))
            });
            let thunks = thunks::among(named.collect());
            Ok(BranchCode { thunks, static_calls: static_calls(elf)? })
        })
    }

    /// The function of the vmlinux that an address is in, for a message; else the address alone.
    pub(crate) fn place_of(&self, addr: RunAddr) -> String {
        let function = with_elf(&self.vmlinux, |elf| {
            let mut functions = elf.symbols().filter(|symbol| {
                let reach = symbol.address()..symbol.address().saturating_add(symbol.size().max(1));
                symbol.section_index().is_some() && reach.contains(&addr.0)
            });
            Ok(functions.find_map(|function| Some(function.name().ok()?.to_owned())))
        });
        match function {
            Ok(Some(function)) => format!("at {:#x} in {function}", addr.0),
            _ => format!("at {:#x}", addr.0),
        }
    }

    /// Reads from the vmlinux where tasks are switched and where their names lie.
    ///
    /// # Errors
    /// The vmlinux cannot be read or lacks a symbol.
    pub fn task_facts(&self) -> Result<TaskFacts> {
        with_elf(&self.vmlinux, |elf| {
            let symbol = |name: &str| {
                let mut named = elf.symbols().filter(|symbol| symbol.name() == Ok(name));
                let symbol = named.next().with_context(|| {
                    format!(
                        "has no symbol {name} (was it stripped?): use the vmlinux of the build \
                         tree or of the -dbg package"
                    )
                })?;
                ensure!(named.next().is_none(), "has more than one symbol {name}");
                Ok((symbol.address(), symbol.size(), symbol.section_index()))
            };
            let (switch_to, _, _) = symbol("__switch_to")?;
            let (init_task, size, section) = symbol("init_task")?;
            let section = elf.section_by_index(section.context("init_task is in no section")?)?;
            let task = section
                .data_range(init_task, size)?
                .context("init_task has no bytes in the file")?;
            let comm = comm_offset(task)?;
            Ok(TaskFacts {
                switch_to: LinkAddr(switch_to),
                set_comm: symbol("__set_task_comm").ok().map(|(address, ..)| LinkAddr(address)),
                wakes: WAKES
                    .iter()
                    .filter_map(|name| Some(LinkAddr(symbol(name).ok()?.0)))
                    .collect(),
                comm,
                pid: pid_offset(elf, self.vmlinux.parent(), task, comm)?,
                page_offset_base: symbol("page_offset_base")
                    .ok()
                    .map(|(address, ..)| LinkAddr(address)),
            })
        })
    }
}

impl GuestKernel {
    /// Where the kernel keeps what its page frames are used for.
    ///
    /// # Errors
    /// The kernel has neither BTF nor a build tree, or it is too old.
    pub(crate) fn frame_facts(&self) -> Result<KernelFrameFacts> {
        with_elf(&self.vmlinux, |elf| {
            let symbol = |name: &str| {
                let found = elf.symbols().find(|symbol| symbol.name() == Ok(name));
                Ok::<_, anyhow::Error>(LinkAddr(
                    found.with_context(|| format!("has no symbol {name}"))?.address(),
                ))
            };
            let types = match (elf.section_by_name(".BTF"), self.vmlinux.parent()) {
                (Some(section), _) => FrameTypes::of_btf(&Btf::parse(section.data()?)?)?,
                (None, Some(tree)) if tree.join("mm").is_dir() => FrameTypes::of_tree(tree)?,
                _ => bail!("has no BTF and is not in a build tree"),
            };
            Ok(KernelFrameFacts {
                array: symbol("vmemmap_base")?,
                count: symbol("max_pfn")?,
                types,
            })
        })
    }

    /// Where the kernel says which files its processes map, as the plugin's argument.
    ///
    /// # Errors
    /// The kernel does not say it, or has neither BTF nor a build tree.
    pub(crate) fn program_places(&self) -> Result<String> {
        with_elf(&self.vmlinux, |elf| {
            let mapped = elf.symbol_by_name("perf_event_mmap");
            let mapped = mapped.context("has no perf_event_mmap (CONFIG_PERF_EVENTS is off)")?;
            let offsets = match (elf.section_by_name(".BTF"), self.vmlinux.parent()) {
                (Some(section), _) => user_programs::offsets_of_btf(&Btf::parse(section.data()?)?)?,
                (None, Some(tree)) if tree.join("mm").is_dir() => {
                    user_programs::offsets_of_tree(tree)?
                }
                _ => bail!("has no BTF and is not in a build tree"),
            };
            Ok(user_programs::argument(LinkAddr(mapped.address()), &offsets))
        })
    }

    /// The address of the table of the bases of the CPUs' own variables.
    ///
    /// # Errors
    /// The vmlinux cannot be read, or the kernel runs on one CPU only.
    pub fn per_cpu_offset(&self) -> Result<LinkAddr> {
        let values = self.values()?;
        let found = values.iter().find(|(name, _)| *name == "__per_cpu_offset");
        found.map(|&(_, place)| place).with_context(|| {
            format!(
                "{} has no variable __per_cpu_offset: the kernel runs on one CPU (CONFIG_SMP is \
                 off)",
                self.vmlinux.display()
            )
        })
    }

    /// The functions of the kernel at which the loaded modules change: `module_finalize`, then
    /// `module_arch_cleanup`. `None`: the kernel has no such function.
    ///
    /// # Errors
    /// The vmlinux cannot be read.
    pub(crate) fn module_functions(&self) -> Result<[Option<LinkAddr>; 2]> {
        with_elf(&self.vmlinux, |elf| {
            let address = |name| elf.symbol_by_name(name).map(|it| LinkAddr(it.address()));
            Ok(["module_finalize", "module_arch_cleanup"].map(address))
        })
    }

    /// The addresses of the variables in [`VALUES`] that the kernel has.
    ///
    /// # Errors
    /// The vmlinux cannot be read.
    pub(crate) fn values(&self) -> Result<Vec<(&'static str, LinkAddr)>> {
        with_elf(&self.vmlinux, |elf| {
            let found = elf.symbols().filter_map(|symbol| {
                let name = VALUES.into_iter().find(|name| symbol.name() == Ok(name))?;
                Some((name, LinkAddr(symbol.address())))
            });
            let mut found: Vec<_> = found.collect();
            found.sort_unstable();
            Ok(found)
        })
    }
}

/// The sites of static calls, ascending. A kernel without such a table has none.
fn static_calls(elf: &object::File<'_>) -> Result<Vec<LinkAddr>> {
    let (start, end) = tables::STATIC_CALL_BOUNDS;
    let (Some(start), Some(end)) = (elf.symbol_by_name(start), elf.symbol_by_name(end)) else {
        return Ok(Vec::new());
    };
    let (start, end) = (start.address(), end.address());
    let section =
        elf.sections().find_map(|it| it.data_range(start, end.checked_sub(start)?).ok()?);
    let entries = section.context("has no contents of the table of static calls")?;
    let calls = tables::static_call_entries(start, entries);
    Ok(calls.into_iter().map(|call| LinkAddr(call.site)).collect())
}

/// The functions `enqueue_task` of the scheduler's classes (struct sched_class,
/// kernel/sched/sched.h). Every task that becomes runnable passes through one of them.
const WAKES: [&str; 4] =
    ["enqueue_task_fair", "enqueue_task_rt", "enqueue_task_dl", "enqueue_task_stop"];

/// The offset of `pid` in `task_struct`: from BTF, or from the headers of the build tree in which
/// the vmlinux lies. `None`: the kernel has neither. The source must be right about `comm`, and the
/// first task's pid must be 0.
fn pid_offset(
    elf: &object::File<'_>,
    tree: Option<&Path>,
    init_task: &[u8],
    comm: u64,
) -> Result<Option<u64>> {
    let (source, found, pid) = match (elf.section_by_name(".BTF"), tree) {
        (Some(section), _) => {
            let btf = Btf::parse(section.data()?)?;
            let field = |name: &str| {
                let offset = btf.offset("task_struct", name)?;
                offset.with_context(|| format!("BTF has no {name} in task_struct"))
            };
            ("BTF", field("comm")?, field("pid")?)
        }
        (None, Some(tree)) if tree.join("mm").is_dir() => {
            let answers = Answers::of_tree(tree, &TASK_QUESTIONS)?;
            ("the build tree", answers.number("comm")?, answers.number("pid")?)
        }
        _ => return Ok(None),
    };
    ensure!(
        found == comm,
        "{source} has comm at {found} of task_struct, init_task has it at {comm}"
    );
    ensure!(
        init_task.get(pid as usize..pid as usize + 4) == Some(&[0; 4]),
        "the pid of init_task is not 0 at {pid}, where {source} has it"
    );
    Ok(Some(pid))
}

const TASK_QUESTIONS: [(&str, &str); 2] =
    [("comm", "offsetof(struct task_struct, comm)"), ("pid", "offsetof(struct task_struct, pid)")];

/// The offset of `comm`. `init_task.comm` is "swapper" (INIT_TASK_COMM, include/linux/init_task.h)
/// in an array of sixteen bytes. Exactly one place in `init_task` may have these bytes.
fn comm_offset(init_task: &[u8]) -> Result<u64> {
    const COMM: &[u8; 16] = b"swapper\0\0\0\0\0\0\0\0\0";
    let mut places = init_task.windows(COMM.len()).enumerate().filter(|(_, bytes)| bytes == COMM);
    let (offset, _) = places.next().context(
        "init_task does not contain the name \"swapper\": Kernlane does not support this kernel",
    )?;
    ensure!(places.next().is_none(), "init_task contains the name \"swapper\" more than once");
    Ok(offset as u64)
}

fn read_boot_image(path: &Path) -> Result<BzImage> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    BzImage::parse(&bytes).with_context(|| path.display().to_string())
}

pub(crate) fn read_build_id(path: &Path) -> Result<BuildId> {
    with_elf(path, |elf| {
        ensure!(
            elf.architecture() == object::Architecture::X86_64,
            "made for {:?}; Kernlane reads kernels for x86-64",
            elf.architecture()
        );
        let id = elf.build_id().context("its notes cannot be read")?;
        let id = id.context("has no build id: link the kernel with --build-id, as kbuild does")?;
        Ok(BuildId::from_bytes(id))
    })
}

/// Whether an ELF file has the bytes of its code. A file with debugging information only does not.
pub(crate) fn has_code(path: &Path) -> Result<bool> {
    with_elf(path, |elf| {
        let text = elf.section_by_name(".text");
        Ok(text.is_some_and(|text| text.file_range().is_some_and(|(_, bytes)| bytes > 0)))
    })
}

fn with_elf<T>(path: &Path, read: impl FnOnce(&object::File<'_>) -> Result<T>) -> Result<T> {
    let bytes = map_file(path)?;
    let elf = object::File::parse(&*bytes)
        .with_context(|| format!("{}: not a readable ELF file", path.display()))?;
    read(&elf).with_context(|| path.display().to_string())
}

/// The vmlinux of a boot image. In a build tree, `vmlinux` lies beside the directory `arch` of
/// `arch/x86/boot/bzImage`. On Debian it is `usr/lib/debug/boot/vmlinux-R` below the root that
/// contains `boot/vmlinuz-R`. The root is `/`, or a directory into which packages were unpacked.
fn installed_vmlinux(boot_image: &Path, image: &BzImage) -> Result<PathBuf> {
    let name = format!("vmlinux-{}", image.release);
    let canonical =
        boot_image.canonicalize().with_context(|| format!("reading {}", boot_image.display()))?;
    let tree = canonical
        .ends_with("arch/x86/boot/bzImage")
        .then(|| canonical.ancestors().nth(4))
        .flatten();
    let candidates = [
        tree.map(|tree| tree.join("vmlinux")),
        Some(root_of(boot_image)?.join("usr/lib/debug/boot").join(&name)),
        Some(Path::new("/usr/lib/debug/boot").join(&name)),
    ];
    let candidates: Vec<PathBuf> = candidates.into_iter().flatten().collect();
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => {
            let (boot_image, release) = (boot_image.into(), image.release.clone());
            Err(RefusedRequest::NoVmlinux { boot_image, release }.into())
        }
    }
}

/// The directory that contains the boot image's directory `boot`.
fn root_of(boot_image: &Path) -> Result<PathBuf> {
    let image =
        boot_image.canonicalize().with_context(|| format!("reading {}", boot_image.display()))?;
    Ok(image.parent().and_then(Path::parent).unwrap_or(Path::new("/")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comm_is_found_if_it_occurs_once() {
        let mut task = vec![0xffu8; 200];
        assert!(comm_offset(&task).is_err());
        task[96..112].copy_from_slice(b"swapper\0\0\0\0\0\0\0\0\0");
        assert_eq!(comm_offset(&task).unwrap(), 96);
        task[120..136].copy_from_slice(b"swapper\0\0\0\0\0\0\0\0\0");
        assert!(comm_offset(&task).is_err());
    }

    #[test]
    fn an_unbuilt_tree_gives_an_error_with_what_is_missing() {
        let tree = tempfile::tempdir().unwrap();
        let message = format!("{:#}", GuestKernel::open(tree.path(), None).err().unwrap());
        assert!(message.contains("vmlinux is missing") && message.contains("make"), "{message}");
        assert!(GuestKernel::open(&tree.path().join("nothing"), None).is_err());
        let file = tree.path().join("vmlinuz");
        std::fs::write(&file, "no kernel").unwrap();
        assert!(format!("{:#}", GuestKernel::open(&file, None).err().unwrap()).contains("HdrS"));
    }
}
