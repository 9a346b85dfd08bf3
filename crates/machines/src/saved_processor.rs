//! The processor of this host, or of another one whose files were saved: what a guest's kernel must
//! see to be like it.
//!
//! Input: the text of `/proc/cpuinfo`, and the files of `/sys/devices/system/cpu/vulnerabilities`.
//! Output: a [`GuestProcessor`]. What QEMU cannot show is reached by the kernel's command line
//! (Linux, Documentation/admin-guide/kernel-parameters.txt).

use crate::guest_table::{BranchMitigation, GuestProcessor};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A mitigation that is not wanted, and the word that turns it off.
const TURNED_OFF: [(&str, &str); 13] = [
    ("gather_data_sampling", "gather_data_sampling=off"),
    ("indirect_target_selection", "indirect_target_selection=off"),
    ("l1tf", "l1tf=off"),
    ("mds", "mds=off"),
    ("meltdown", "pti=off"),
    ("mmio_stale_data", "mmio_stale_data=off"),
    ("reg_file_data_sampling", "reg_file_data_sampling=off"),
    ("retbleed", "retbleed=off"),
    ("spec_rstack_overflow", "spec_rstack_overflow=off"),
    ("spectre_v2", "spectre_v2=off"),
    ("srbds", "srbds=off"),
    ("tsa", "tsa=off"),
    ("tsx_async_abort", "tsx_async_abort=off"),
];

/// Flags of `/proc/cpuinfo` that choose kernel code and that QEMU emulates under the same name.
const EMULATED: [&str; 9] =
    ["clwb", "erms", "fsgsbase", "fsrm", "la57", "rdpid", "smap", "smep", "xsaveopt"];

/// Flags that QEMU only shows, each with QEMU's feature for AMD's processors.
const SHOWN_BY_AMD: &[(&str, &str)] = &[
    ("ibrs_enhanced", "auto-ibrs"),
    ("ibrs", "ibrs"),
    ("ibpb", "ibpb"),
    ("stibp", "amd-stibp"),
    ("ssbd", "amd-ssbd"),
];

/// The same for Intel's. Linux takes AMD's bit of automatic IBRS for Intel's of enhanced IBRS,
/// which TCG cannot show (arch/x86/kernel/cpu/common.c, `cpu_set_bug_bits`).
const SHOWN_BY_INTEL: &[(&str, &str)] =
    &[("ibrs_enhanced", "auto-ibrs"), ("ibrs", "spec-ctrl"), ("stibp", "stibp"), ("ssbd", "ssbd")];

/// The processor that the kernel of this host sees.
///
/// # Errors
/// The host is no x86-64 Linux with these files.
pub(crate) fn of_host() -> Result<GuestProcessor> {
    let cpuinfo = Path::new("/proc/cpuinfo");
    read("host", cpuinfo, Path::new("/sys/devices/system/cpu/vulnerabilities"))
}

/// The processor whose files were saved in a directory: `cpuinfo`, and `vulnerabilities/`.
///
/// # Errors
/// A file is missing, or it is not of an x86-64 processor.
pub(crate) fn in_directory(directory: &Path) -> Result<GuestProcessor> {
    let name = directory.display().to_string();
    read(&name, &directory.join("cpuinfo"), &directory.join("vulnerabilities"))
}

fn read(name: &str, cpuinfo: &Path, vulnerabilities: &Path) -> Result<GuestProcessor> {
    let text = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    };
    let mut found = BTreeMap::new();
    let entries = std::fs::read_dir(vulnerabilities)
        .with_context(|| format!("reading {}", vulnerabilities.display()))?;
    for entry in entries {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        found.insert(file, text(&entry.path())?.trim_end().to_owned());
    }
    ensure!(!found.is_empty(), "{} has no file", vulnerabilities.display());
    processor(name, &text(cpuinfo)?, &found).with_context(|| cpuinfo.display().to_string())
}

/// The processor with these texts.
///
/// # Errors
/// `cpuinfo` is not of an x86-64 processor of AMD or Intel.
fn processor(
    name: &str,
    cpuinfo: &str,
    vulnerabilities: &BTreeMap<String, String>,
) -> Result<GuestProcessor> {
    // Of the first CPU; those of other kinds come later.
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    let fields: BTreeMap<&str, &str> = first
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(k, v)| (k.trim(), v.trim()))
        .collect();
    let field = |key: &str| {
        let value = fields.get(key).copied();
        value.with_context(|| format!("no {key}: is it of an x86-64 processor?"))
    };
    let number = |key: &str| -> Result<u64> {
        let value = field(key)?;
        let hex = value.strip_prefix("0x");
        let number = hex.map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16));
        number.with_context(|| format!("{key} is {value:?}, which is not a number"))
    };
    let vendor_id = field("vendor_id")?;
    let (features, microcode_shift) = match vendor_id {
        "AuthenticAMD" => (SHOWN_BY_AMD, 0),
        "GenuineIntel" => (SHOWN_BY_INTEL, 32),
        other => bail!("the vendor {other} is not known; AuthenticAMD and GenuineIntel are"),
    };
    let flags: BTreeSet<&str> = field("flags")?.split_whitespace().collect();
    let family = number("cpu family")?;
    let mut model = vec![
        "max".to_owned(),
        format!("vendor={vendor_id}"),
        format!("family={family}"),
        format!("model={}", number("model")?),
        format!("stepping={}", number("stepping")?),
        "xlevel=0x80000021".to_owned(),
    ];
    if let Ok(microcode) = number("microcode") {
        model.push(format!("ucode-rev={:#x}", microcode << microcode_shift));
    }
    model.push("x-force-features=on".into());
    let said = |file: &str| vulnerabilities.get(file).map_or("", String::as_str);
    let shown = features.iter().filter(|(flag, _)| flags.contains(flag));
    model.extend(shown.map(|(_, feature)| format!("+{feature}")));
    let mitigations = [
        ("spectre_v2", "BHI_DIS_S", "bhi-ctrl"),
        ("spec_rstack_overflow", "Mitigation: Safe RET", "ibpb-brtype"),
        ("spec_rstack_overflow", "IBPB on VMEXIT only", "srso-user-kernel-no"),
    ];
    let needed = mitigations.iter().filter(|(file, text, _)| said(file).contains(text));
    model.extend(needed.map(|(_, _, feature)| format!("+{feature}")));
    model.extend(
        EMULATED.iter().filter(|flag| !flags.contains(**flag)).map(|flag| format!("-{flag}")),
    );
    if !flags.contains("hypervisor") {
        model.push("-hypervisor".into());
    }
    let is_off =
        |text: &str| text == "Not affected" || text.split(';').next() == Some("Vulnerable");
    let off = TURNED_OFF.iter().filter(|(file, _)| is_off(said(file)));
    let mut command_line: Vec<String> = off.map(|(_, word)| (*word).to_owned()).collect();
    if said("spectre_v2").starts_with("Mitigation: IBRS") {
        command_line.push("spectre_v2=ibrs".into());
    }
    let expected = vulnerabilities.iter().filter(|(file, text)| {
        let is_text = ["spectre_v2", "spec_rstack_overflow", "retbleed", "tsa", "meltdown"];
        is_text.contains(&file.as_str()) && !is_off(text)
    });
    let begins = |text: &String| text.split(';').next().unwrap_or_default().to_owned();
    Ok(GuestProcessor {
        name: name.to_owned(),
        cpu_model: model.join(","),
        command_line,
        returns: returns(family, &said),
        indirect_branches: match said("spectre_v2").contains("Retpolines") {
            true => BranchMitigation::Thunk("__x86_indirect_thunk".into()),
            false => BranchMitigation::Plain,
        },
        vulnerabilities: expected.map(|(file, text)| (file.clone(), begins(text))).collect(),
    })
}

/// How functions return, by what the kernel says (Linux, arch/x86/kernel/cpu/bugs.c:
/// `set_return_thunk`).
fn returns<'a>(family: u64, said: &impl Fn(&str) -> &'a str) -> BranchMitigation {
    let thunk = |symbol: &str| BranchMitigation::Thunk(symbol.into());
    match () {
        () if said("spec_rstack_overflow").contains("Safe RET") => match family {
            0x19 => thunk("srso_alias_return_thunk"),
            _ => thunk("srso_return_thunk"),
        },
        () if said("retbleed").contains("untrained return thunk") => thunk("retbleed_return_thunk"),
        () if said("retbleed").contains("Stuffing") => thunk("call_depth_return_thunk"),
        () if said("indirect_target_selection").contains("return thunks") => {
            thunk("its_return_thunk")
        }
        () => BranchMitigation::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpuinfo(vendor: &str, family: u64, model: u64, flags: &str) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
             stepping\t: 1\nmicrocode\t: 0xa101154\nflags\t\t: {flags}\n\nprocessor\t: 1\n"
        )
    }

    fn texts(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
        texts.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_zen_4_without_hypervisor_is_like_the_shipped_one() {
        let flags = "ibrs ibpb stibp ssbd ibrs_enhanced erms fsrm la57 smap smep fsgsbase rdpid \
                     clwb xsaveopt";
        let vulnerabilities = texts(&[
            ("spectre_v2", "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional"),
            ("spec_rstack_overflow", "Mitigation: Safe RET"),
            ("mds", "Not affected"),
        ]);
        let found =
            processor("host", &cpuinfo("AuthenticAMD", 25, 17, flags), &vulnerabilities).unwrap();
        assert_eq!(
            found.cpu_model,
            "max,vendor=AuthenticAMD,family=25,model=17,stepping=1,xlevel=0x80000021,\
             ucode-rev=0xa101154,x-force-features=on,+auto-ibrs,+ibrs,+ibpb,+amd-stibp,+amd-ssbd,\
             +ibpb-brtype,-hypervisor"
        );
        let zen4 = crate::find("zen4").unwrap().guest.unwrap();
        assert_eq!(
            (&found.returns, &found.indirect_branches),
            (&zen4.returns, &zen4.indirect_branches)
        );
        assert_eq!(found.command_line, ["mds=off"]);
        assert_eq!(
            found.vulnerabilities,
            texts(&[
                ("spec_rstack_overflow", "Mitigation: Safe RET"),
                ("spectre_v2", "Mitigation: Enhanced / Automatic IBRS"),
            ])
        );
    }

    #[test]
    fn what_the_processor_lacks_and_what_its_kernel_turned_off_is_off_in_the_guest() {
        let vulnerabilities = texts(&[
            ("spectre_v2", "Mitigation: Retpolines; IBPB: conditional"),
            ("retbleed", "Mitigation: Stuffing"),
            ("meltdown", "Mitigation: PTI"),
            ("mds", "Vulnerable; SMT vulnerable"),
            ("gather_data_sampling", "Vulnerable: No microcode"),
        ]);
        let cpuinfo = cpuinfo("GenuineIntel", 6, 85, "hypervisor erms smap smep");
        let found = processor("saved", &cpuinfo, &vulnerabilities).unwrap();
        assert!(found.cpu_model.contains("ucode-rev=0xa10115400000000,"), "{}", found.cpu_model);
        assert!(
            found.cpu_model.ends_with("=on,-clwb,-fsgsbase,-fsrm,-la57,-rdpid,-xsaveopt"),
            "{}",
            found.cpu_model
        );
        assert_eq!(found.command_line, ["mds=off"]);
        assert_eq!(found.returns, BranchMitigation::Thunk("call_depth_return_thunk".into()));
        let thunk = BranchMitigation::Thunk("__x86_indirect_thunk".into());
        assert_eq!(found.indirect_branches, thunk);
        assert_eq!(found.vulnerabilities["meltdown"], "Mitigation: PTI");
    }

    #[test]
    fn files_of_another_architecture_are_refused() {
        let arm = "processor\t: 0\nBogoMIPS\t: 48.00\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n";
        let error = processor("saved", arm, &texts(&[("mds", "Not affected")])).unwrap_err();
        assert_eq!(error.to_string(), "no vendor_id: is it of an x86-64 processor?");
        let other = cpuinfo("CentaurHauls", 7, 59, "");
        let error = processor("saved", &other, &texts(&[("mds", "Not affected")])).unwrap_err();
        assert!(error.to_string().contains("CentaurHauls"), "{error}");
        let number = cpuinfo("GenuineIntel", 6, 85, "").replace("stepping\t: 1", "stepping\t: x");
        assert!(processor("saved", &number, &BTreeMap::new()).is_err());
        let nowhere = tempfile::tempdir().unwrap();
        assert!(in_directory(nowhere.path()).is_err());
    }
}
