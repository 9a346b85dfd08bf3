//! `kernlane live status` and `kernlane live undo`.

use crate::live::device::{self, Device, Installed, Undone};
use crate::live::install;
use anyhow::{Result, bail};
use clap::Args;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Say what is installed, since when, and how the copies are entered
#[derive(Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Restore the kernel's code, byte for byte
///
/// The exit status is 0 when the copies are gone, too, and 1 when a task may still be in one: then the module stays, harmless, until nobody is, and
/// a later `kernlane live undo` removes it.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live undo")]
pub struct UndoArgs {
    /// The group, as `kernlane live status` names it; by default all
    #[arg(value_name = "GROUP")]
    pub group: Option<String>,
}

pub fn status(args: &StatusArgs) -> Result<ExitCode> {
    let groups = device::status()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&groups)?);
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        println!("nothing is installed: the kernel runs its own code");
    }
    let names = names()?;
    for group in &groups {
        print(group, &names);
    }
    let stray: Vec<String> = install::loaded()
        .into_iter()
        .filter(|name| groups.iter().all(|g| g.module != *name))
        .collect();
    if !stray.is_empty() {
        println!(
            "loaded, but not installed: {} (`kernlane live undo` removes them)",
            stray.join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn print(group: &Installed, names: &BTreeMap<u64, String>) {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |t| t.as_secs() as i64);
    println!(
        "{}: {} for {} s, {} functions, {} of {} calls go straight to a copy; written in {} us",
        group.module,
        group.state,
        now.saturating_sub(group.since),
        group.functions.len(),
        group.direct,
        group.calls,
        group.poke_us
    );
    for f in &group.functions {
        let name = names.get(&f.entry).map_or("?", String::as_str);
        let traced = if f.traced { "  traced: entered through the original" } else { "" };
        println!("  {:016x} → {:016x}  {name}{traced}", f.entry, f.copy);
    }
}

fn names() -> Result<BTreeMap<u64, String>> {
    let symbols = std::fs::read_to_string("/proc/kallsyms")?;
    let rows = symbols.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let name = words.nth(1)?;
        Some((address, name.to_owned()))
    });
    Ok(rows.filter(|(_, name)| !name.starts_with("__pfx_")).collect())
}

pub fn run(args: &UndoArgs) -> Result<ExitCode> {
    let groups = device::status()?;
    if let Some(wanted) = &args.group
        && groups.iter().all(|g| g.module != *wanted)
        && !install::loaded().contains(wanted)
    {
        bail!("there is no group {wanted}; kernlane live status lists them");
    }
    let device = Device::open()?;
    let is_wanted = |name: &str| args.group.as_ref().is_none_or(|wanted| wanted == name);
    let mut stays = false;
    for group in groups.iter().filter(|g| is_wanted(&g.module)) {
        match device.undo(&group.module)? {
            Undone::Clean => println!("{}: every byte is restored", group.module),
            Undone::Stays => {
                stays = true;
                println!(
                    "{}: every byte is restored; a task may still be in a copy, so the module stays loaded for now",
                    group.module
                );
            }
        }
    }
    for name in install::loaded().iter().filter(|name| is_wanted(name)) {
        if !install::unload(name)? {
            stays = true;
        }
    }
    Ok(if stays { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
