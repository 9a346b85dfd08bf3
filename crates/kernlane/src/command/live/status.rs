//! `kernlane live status`: what is installed, and where inlined code lies.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use host::outln;
use live::device::{self, GroupStatus};
use live::inlined_table::{InlinedFunction, InlinedTable, Names};
use live::install;
use live::symbols::KernelSymbols;
use live::undo;
use std::process::ExitCode;
use std::time::SystemTime;

/// Say what is installed, since when, how the copies are entered, and what is inlined in them
///
/// --address translates addresses of stacks and samples as for inlined code of a compiler; --ranges
/// prints a table of inlined code for scripts.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live status --address vfs_read.kernlane+0x4c")]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Say which functions an address in a copy belongs to: in hexadecimal, or as
    /// `NAME.kernlane+0xOFFSET`. Return addresses of stacks lie behind the call: subtract 1
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with = "json")]
    pub address: Vec<String>,

    /// Print a line for each range of inlined code: its first address, the address behind it, and
    /// the functions, the copy first, separated by semicolons
    #[arg(long, conflicts_with_all = ["json", "address"])]
    pub ranges: bool,
}

/// A group, as JSON.
#[derive(serde::Serialize)]
struct InlinedStatus<'a> {
    #[serde(flatten)]
    group: &'a GroupStatus,
    inlined: Vec<InlinedFunction>,
}

pub(super) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let groups = device::status()?;
    let tables: Vec<InlinedTable> =
        groups.iter().map(|group| InlinedTable::read(&group.id)).collect::<Result<_>>()?;
    let symbols = KernelSymbols::read()?;
    let names = symbols.by_address();
    if args.json {
        let with_table = groups.iter().zip(&tables);
        let status: Vec<_> = with_table
            .map(|(group, table)| InlinedStatus { group, inlined: table.functions(&names) })
            .collect();
        outln!("{}", serde_json::to_string_pretty(&status)?)?;
    } else if args.ranges {
        print_ranges(&tables, &names)?;
    } else if args.address.is_empty() {
        print_all(&groups, &tables, &names)?;
    } else {
        for address in &args.address {
            outln!("{address}: {}", translated(address, &tables, &names)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_all(groups: &[GroupStatus], tables: &[InlinedTable], names: &Names<'_>) -> Result<()> {
    if groups.is_empty() {
        outln!("nothing is installed: the kernel runs its own code")?;
    }
    for (group, table) in groups.iter().zip(tables) {
        print(group, names)?;
        for inlined in table.functions(names) {
            outln!("  {}", inlined_line(&inlined))?;
        }
    }
    let stray = undo::stray_modules(groups);
    if !stray.is_empty() {
        let then = if install::modules_are_disabled() {
            "they stay until the next boot: sysctl kernel.modules_disabled"
        } else {
            "`kernlane live undo` removes them"
        };
        outln!("loaded, but not installed: {} ({then})", stray.join(", "))?;
    }
    Ok(())
}

fn print(group: &GroupStatus, names: &Names<'_>) -> Result<()> {
    outln!(
        "{}: {} for {} s, {} functions, {} of {} calls go straight to a copy; written in {} us; \
         in pages of {}",
        group.id,
        group.state,
        group.age(SystemTime::now()),
        group.functions.len(),
        group.direct,
        group.calls,
        group.poke_us,
        super::apply::page(group.page)
    )?;
    for f in &group.functions {
        let name = names.get(&f.entry).unwrap_or(&"?");
        let entered = match (f.carried, f.traced, f.away) {
            (_, _, true) => {
                "  gave way to the original: a tracer came to a function whose code it runs"
            }
            (_, true, _) => "  traced: entered through the original",
            (true, ..) => "  entered from copies only",
            _ => "",
        };
        outln!("  {:016x} → {:016x}  {name}{entered}", f.entry, f.copy)?;
    }
    Ok(())
}

fn inlined_line(inlined: &InlinedFunction) -> String {
    let InlinedFunction { function, copy, calls, ranges } = inlined;
    let ranges: Vec<String> =
        ranges.iter().map(|range| format!(" {:016x}-{:016x}", range.start, range.end)).collect();
    let plural = if *calls == 1 { "" } else { "s" };
    format!("inlined: {function} in {copy}: {calls} call{plural}{}", ranges.concat())
}

fn print_ranges(tables: &[InlinedTable], names: &Names<'_>) -> Result<()> {
    for (range, stack) in tables.iter().flat_map(|table| table.ranges(names)) {
        outln!("{:016x} {:016x} {}", range.start, range.end, stack.join(";"))?;
    }
    Ok(())
}

/// What an address, or a symbol with an offset, belongs to.
fn translated(text: &str, tables: &[InlinedTable], names: &Names<'_>) -> Result<String> {
    let at = address(text, names)?;
    let found = tables.iter().find_map(|table| table.frames(at, names));
    let found = found.with_context(|| {
        format!("{text} is in no copy of a group with inlined calls: `kernlane live status`")
    })?;
    Ok(found.to_string())
}

/// An address in hexadecimal, or that of `NAME+0xOFFSET`, behind which a stack has `/0xSIZE`.
fn address(text: &str, names: &Names<'_>) -> Result<u64> {
    let hex = |digits: &str| u64::from_str_radix(digits.trim_start_matches("0x"), 16);
    let Some((name, offset)) = text.split_once('+') else {
        return hex(text).with_context(|| {
            format!("{text} is no address: give hexadecimal digits, or NAME.kernlane+0xOFFSET")
        });
    };
    let offset = offset.split('/').next().unwrap_or_default();
    let offset = hex(offset).with_context(|| format!("{text}: {offset} is no offset"))?;
    let found: Vec<u64> =
        names.iter().filter(|&(_, &symbol)| symbol == name).map(|(&at, _)| at).collect();
    ensure!(!found.is_empty(), "{text}: the kernel has no symbol {name}");
    let [at] = found[..] else {
        bail!("{text}: {} symbols are called {name}; give the address", found.len());
    };
    Ok(at.wrapping_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_given_in_digits_or_by_a_symbol() {
        let names = Names::from([(0x1000, "f.kernlane"), (0x2000, "g"), (0x3000, "g")]);
        let of = |text| address(text, &names).map_err(|error| format!("{error:#}"));
        assert_eq!(of("ffffffffc0000010"), Ok(0xffff_ffff_c000_0010));
        assert_eq!(of("0x10"), Ok(0x10));
        assert_eq!(of("f.kernlane+0x1f"), Ok(0x101f));
        assert_eq!(of("f.kernlane+0x1f/0x200"), Ok(0x101f));
        for (text, words) in [
            ("f.kernlane", "is no address: give hexadecimal digits"),
            ("h+0x1", "the kernel has no symbol h"),
            ("g+0x1", "2 symbols are called g; give the address"),
            ("g+z", "z is no offset"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_line_says_calls_and_ranges() {
        let mut inlined = InlinedFunction {
            function: "g".into(),
            copy: "f.kernlane".into(),
            calls: 2,
            ranges: vec![0x10..0x18, 0x28..0x30],
        };
        let line = "inlined: g in f.kernlane: 2 calls 0000000000000010-0000000000000018 \
                    0000000000000028-0000000000000030";
        assert_eq!(inlined_line(&inlined), line);
        (inlined.calls, inlined.ranges) = (1, Vec::new());
        assert_eq!(inlined_line(&inlined), "inlined: g in f.kernlane: 1 call");
    }
}
