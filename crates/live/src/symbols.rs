//! The names of the running kernel, as `/proc/kallsyms` lists them.
//!
//! Input: its text. Output: where KASLR put the kernel, and whether the symbols of a vmlinux are
//! those of the kernel. This module never looks at the kernel's memory.

use anyhow::{Context, Result, bail, ensure};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use std::collections::BTreeMap;

/// What `/proc/kallsyms` lists: `ADDRESS TYPE NAME`, and behind it `[MODULE]` for names that are
/// not the kernel's own.
pub struct KernelSymbols(String);

impl KernelSymbols {
    /// Reads the list.
    ///
    /// # Errors
    /// There is none.
    pub fn read() -> Result<KernelSymbols> {
        let text = std::fs::read_to_string("/proc/kallsyms").context("reading /proc/kallsyms")?;
        Ok(KernelSymbols(text))
    }

    /// A list in the form of `/proc/kallsyms`, or of a `System.map`.
    pub fn from_text(text: String) -> KernelSymbols {
        KernelSymbols(text)
    }

    /// Address and name of each of the kernel's own symbols.
    fn own(&self) -> impl Iterator<Item = (u64, &str)> {
        self.0.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let at = u64::from_str_radix(words.next()?, 16).ok()?;
            let name = words.nth(1)?;
            words.next().is_none().then_some((at, name))
        })
    }

    /// The name at each address, of modules included. Where several names have an address, the
    /// last one of the list. The names of the padding in front of functions are left out.
    pub fn by_address(&self) -> BTreeMap<u64, &str> {
        let rows = self.0.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let at = u64::from_str_radix(words.next()?, 16).ok()?;
            Some((at, words.nth(1)?))
        });
        rows.filter(|(_, name)| !name.starts_with("__pfx_")).collect()
    }

    /// The distance that is added to a link address.
    ///
    /// # Errors
    /// The list shows no addresses to this process.
    pub fn slide(&self, kernel: &LinkedKernel<'_>) -> Result<u64> {
        let link = kernel.address_of("_stext").context("the vmlinux has no symbol _stext")?;
        match self.own().find(|&(_, name)| name == "_stext") {
            None => bail!("/proc/kallsyms has no symbol _stext"),
            Some((0, _)) => bail!("/proc/kallsyms shows no addresses: {}", why_hidden()),
            Some((at, _)) => Ok(at.wrapping_sub(link.0)),
        }
    }

    /// Checks that the vmlinux has each of the kernel's symbols, at its address.
    ///
    /// # Errors
    /// One is missing or is elsewhere: the vmlinux is damaged.
    pub fn verify(&self, kernel: &LinkedKernel<'_>, slide: u64) -> Result<()> {
        for (at, name) in self.own() {
            // Offsets in per-CPU data do not move.
            let link = if at >> 63 == 1 { at.wrapping_sub(slide) } else { at };
            ensure!(
                kernel.has_symbol(name, LinkAddr(link)),
                "the vmlinux is damaged, install or fetch it again: the running kernel's symbol \
                 {name} is not at {} in it",
                LinkAddr(link)
            );
        }
        Ok(())
    }
}

/// Why addresses are hidden, and what to do.
fn why_hidden() -> &'static str {
    let restrict = std::fs::read_to_string("/proc/sys/kernel/kptr_restrict").unwrap_or_default();
    hidden_by(restrict.trim(), rustix::process::geteuid().is_root())
}

/// `restrict` is sysctl kernel.kptr_restrict.
fn hidden_by(restrict: &str, root: bool) -> &'static str {
    match (restrict, root) {
        ("2", _) => {
            "sysctl kernel.kptr_restrict is 2, which hides them from root too; set it to 1 while \
             you work (sysctl kernel.kptr_restrict=1, as root)"
        }
        (_, false) => "run this as root",
        (_, true) => "this root has no CAP_SYSLOG (is it in a container?): run this on the host",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_for_hidden_addresses_says_what_to_do() {
        assert_eq!(hidden_by("0", false), "run this as root");
        assert!(hidden_by("2", true).contains("sysctl kernel.kptr_restrict=1"));
        assert!(hidden_by("2", false).contains("sysctl kernel.kptr_restrict=1"));
        assert!(hidden_by("1", true).contains("CAP_SYSLOG"));
    }

    #[test]
    fn names_of_modules_are_not_the_kernel_s() {
        let text = "ffffffff81000000 T _stext\nffffffffc0000000 t f\t[m]\n\
            0000000000001000 A cpu\ngarbage\n";
        let symbols = KernelSymbols::from_text(text.to_owned());
        let own: Vec<_> = symbols.own().collect();
        assert_eq!(own, [(0xffff_ffff_8100_0000, "_stext"), (0x1000, "cpu")]);
    }

    #[test]
    fn an_address_has_the_last_name_that_is_not_that_of_padding() {
        let text = "ffffffff81000000 T _stext\nffffffff81000010 T __pfx_f\n\
            ffffffff81000020 T alias\nffffffff81000020 t f\nffffffff81000020 T __pfx_g\n\
            ffffffffc0000000 t g\t[m]\ngarbage\n";
        let symbols = KernelSymbols::from_text(text.to_owned());
        let expected = [
            (0xffff_ffff_8100_0000, "_stext"),
            (0xffff_ffff_8100_0020, "f"),
            (0xffff_ffff_c000_0000, "g"),
        ];
        assert_eq!(symbols.by_address(), BTreeMap::from(expected));
    }
}
