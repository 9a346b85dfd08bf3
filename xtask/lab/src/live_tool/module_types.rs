//! A description of `struct module` for kernels that have none: those of a build tree, which are
//! built without debug information, since that takes the build twice as long.
//!
//! Takes the tree; compiles a module that uses the structure, with gcc's own BTF, and adds that as
//! `.BTF` to a copy of the vmlinux, where `kernlane live` looks for it.

use crate::run;
use anyhow::Result;
use std::fs;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "#include <linux/module.h>
struct module kernlane_types;
MODULE_DESCRIPTION(\"Has a struct module\");
MODULE_LICENSE(\"GPL\");
";

/// A section is part of the kernel only with an address; nothing else lies at this one.
const ADDRESS: &str = ".BTF=0x1000";

pub(super) fn describe(tree: &Path, directory: &Path, vmlinux: &Path) -> Result<()> {
    let build = directory.join("types");
    fs::create_dir(&build)?;
    fs::write(build.join("Kbuild"), "obj-m := types.o\n")?;
    fs::write(build.join("types.c"), SOURCE)?;
    run(Command::new("make")
        .args(["-s", "-C"])
        .arg(tree)
        .arg(format!("M={}", build.display()))
        .args(["KCFLAGS=-gbtf", "types.o"]))?;
    let types = build.join("types.btf");
    let section = |prefix: &str| format!("{prefix}{}", types.display());
    run(Command::new("objcopy")
        .args(["--dump-section", &section(".BTF=")])
        .arg(build.join("types.o"))
        .arg(build.join("unused.o")))?;
    run(Command::new("objcopy")
        .args(["--add-section", &section(".BTF=")])
        .args(["--set-section-flags", ".BTF=alloc,readonly,data"])
        .args(["--change-section-address", ADDRESS])
        .arg(vmlinux))
}
