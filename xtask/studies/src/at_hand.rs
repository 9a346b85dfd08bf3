//! Machines that have all code at hand: in the L1I, the uop cache and the first target buffer.
//!
//! A layout chooses where code lies, so it decides how often these lack it. Calls, returns and
//! mispredictions stay, wherever code lies. What the best layout takes on such a machine bounds
//! what placing code could still win.
//!
//! Input: a machine's text. Output: that of the machine with all code at hand, which
//! `bench/studies` has for `kernlane study`. `BLESS=1 cargo test -p xtask-studies` writes it.

use anyhow::{Context, Result};
use lab::machine_file::{self, MachineFile};
use machines::Machine;
use std::path::Path;
use toml::{Table, Value};

/// The machines of `bench/studies/layout-times.toml`.
const MACHINES: [&str; 2] = ["golden-cove", "zen4"];
/// What is added to the name of a machine.
const AT_HAND: &str = "-at-hand";

/// No source gives such sizes.
const SOURCE: &str = "large enough for all code";
/// Sets of the uop cache and of the target buffer.
const SETS: u64 = 65_536;

/// The text of the machine that has all code at hand.
///
/// # Errors
/// `text` does not describe a machine with an L1I, a uop cache and target buffers.
fn at_hand(text: &str, name: &str) -> Result<String> {
    let mut file = MachineFile::named(text, &format!("{name}{AT_HAND}"))?;
    let l1i = file.table(&["l1i"])?;
    let bytes = number(l1i, "ways")? * number(l1i, "line")? * SETS;
    machine_file::set(l1i, "size", bytes, SOURCE)?;
    let fetch = file.table(&["core", "fetch"])?;
    let entries = number(fetch, "uop_cache_ways")? * SETS;
    machine_file::set(fetch, "uop_cache_entries", entries, SOURCE)?;
    let core = file.table(&["core"])?;
    let buffers = core.get_mut("btb").and_then(Value::as_array_mut);
    let buffers = buffers.context("the machine has no [[core.btb]]")?;
    buffers.truncate(1);
    let first = buffers.first_mut().and_then(Value::as_table_mut);
    let first = first.context("the machine has no target buffer")?;
    let entries = number(first, "ways")? * SETS;
    machine_file::set(first, "entries", entries, SOURCE)?;
    file.text()
}

/// A number of a table.
fn number(table: &Table, key: &str) -> Result<u64> {
    let value = table.get(key).and_then(|entry| entry.get("value")).and_then(Value::as_integer);
    u64::try_from(value.with_context(|| format!("the machine has no {key}"))?)
        .with_context(|| format!("{key} is negative"))
}

#[test]
fn all_code_fits() {
    for name in MACHINES {
        let text = at_hand(&machines::find(name).unwrap().text, name).unwrap();
        let parsed = Machine::parse(&text, "at-hand.toml").unwrap().model;
        assert_eq!(parsed.name, format!("{name}{AT_HAND}"));
        assert_eq!(u64::from(parsed.l1i.sets()), SETS);
        let core = parsed.core.unwrap();
        assert_eq!(u64::from(core.front_end.uop_cache.unwrap().geometry.sets()), SETS);
        assert_eq!(core.prediction.targets.len(), 1);
    }
}

#[test]
fn the_files_of_the_study_are_these_machines() {
    for name in MACHINES {
        let made = at_hand(&machines::find(name).unwrap().text, name).unwrap();
        let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/studies");
        let path = studies.join(format!("{name}{AT_HAND}.toml"));
        if std::env::var_os("BLESS").is_some() {
            let about = format!("# machines/{name}.toml with all code at hand, made by a test.\n");
            std::fs::write(&path, about + &made).unwrap();
        }
        let table = |text: &str| toml::from_str::<Table>(text).unwrap();
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(table(&kept) == table(&made), "{}: BLESS=1 writes it", path.display());
    }
}
