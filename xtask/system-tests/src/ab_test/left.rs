//! What is tested of what a run left.
//!
//! Each function takes the files of a guest and says what is wrong. None of them runs anything.

use super::trial::Left;
use anyhow::{Context, Result, bail, ensure};

const UNIT: &str = "kernlane-bench-ab";
const FIRST: usize = 0;
const SECOND: usize = 1;
/// Boots of each kernel, as guest.sh asks for.
const BOOTS: usize = 2;
const BENCHMARKS: usize = 2;

/// One boot, as the guest noted it.
struct Boot {
    release: String,
    id: String,
    /// The kernel's own notes, in hex.
    notes: String,
}

fn boots(left: &Left) -> Result<Vec<Boot>> {
    let text = left.text("boots")?;
    let boot = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [release, id, notes] => {
            Ok(Boot { release: release.into(), id: id.into(), notes: notes.into() })
        }
        _ => bail!("a line of the guest's boots is {line:?}"),
    };
    text.lines().map(boot).collect()
}

/// The kernels that booted, in this order: 0 is the first of the two.
pub(super) fn booted(left: &Left, order: &[usize]) -> Result<()> {
    let boots = boots(left)?;
    let wanted: Vec<&String> = order.iter().map(|kernel| &left.kernels[*kernel]).collect();
    let seen: Vec<&String> = boots.iter().map(|boot| &boot.release).collect();
    ensure!(seen == wanted, "the kernels {seen:?} booted, not {wanted:?}");
    for pair in boots.windows(2) {
        ensure!(pair[0].id != pair[1].id, "a boot was noted twice");
    }
    Ok(())
}

/// Every boot has a result of the kernel that ran, in the order A B B A.
pub(super) fn measured(left: &Left) -> Result<()> {
    let boots = boots(left)?;
    let order = [FIRST, SECOND, SECOND, FIRST];
    let state = left.json("state.json")?;
    ensure!(state["measured"] == serde_json::json!(order), "measured: {}", state["measured"]);
    for (number, kernel) in order.into_iter().enumerate() {
        let name = format!("boot-{number}.json");
        let conditions = &left.json(&name)?["conditions"];
        let release = &left.kernels[kernel];
        ensure!(conditions["kernel_release"] == **release, "{name} is not of {release}");
        let build_id = build_id(conditions).with_context(|| name.clone())?;
        let boot =
            boots.iter().find(|boot| boot.release == *release).context("a boot is missing")?;
        ensure!(
            boot.notes.contains(&build_id),
            "{name} has the build id {build_id}, which is not in the notes of {release}"
        );
    }
    Ok(())
}

fn build_id(conditions: &serde_json::Value) -> Result<String> {
    let id = conditions["kernel_build_id"].as_str().context("there is no build id")?;
    ensure!(id.len() == 40, "the build id is {id:?}");
    Ok(id.to_owned())
}

/// before.json is of the first kernel, after.json of the second one, with a value for each boot.
pub(super) fn merged(left: &Left) -> Result<()> {
    let names = ["before.json", "after.json"];
    let mut ids = Vec::new();
    for (name, release) in names.into_iter().zip(&left.kernels) {
        let results = left.json(name)?;
        ids.push(build_id(&results["conditions"])?);
        ensure!(results["conditions"]["kernel_release"] == **release, "{name}: not of {release}");
        let benchmarks = results["benchmarks"].as_array().context("no benchmarks")?;
        ensure!(benchmarks.len() == BENCHMARKS, "{name} has {} benchmarks", benchmarks.len());
        for benchmark in benchmarks {
            let rounds = benchmark["rounds"].as_array().map_or(0, Vec::len);
            ensure!(rounds == BOOTS, "{name}: {benchmark} has {rounds} rounds, not {BOOTS}");
        }
    }
    ensure!(ids[0] != ids[1], "both results are of one kernel");
    Ok(())
}

/// --dry-run said what it would do, and did nothing.
pub(super) fn only_planned(left: &Left) -> Result<()> {
    let plan = left.text("plan")?;
    let measured = plan.lines().filter(|line| line.starts_with("measure ")).count();
    ensure!(measured == 2 * BOOTS && plan.contains(UNIT), "the plan is: {plan}");
    same(&left.text("before")?, &left.text("planned")?)?;
    let touched = left.text("touched")?;
    ensure!(touched.is_empty(), "--dry-run has changed: {touched}");
    Ok(())
}

/// The first kernel runs, no unit is left, and boot loaders boot by default what they did.
pub(super) fn as_before(left: &Left) -> Result<()> {
    let after = left.text("after")?;
    ensure!(after.starts_with(&format!("{}\n", left.kernels[FIRST])), "another kernel: {after}");
    same(&left.text("before")?, &after)
}

fn same(before: &str, after: &str) -> Result<()> {
    let differ: Vec<String> = before
        .lines()
        .filter(|line| !after.lines().any(|other| other == *line))
        .map(|line| format!("- {line}"))
        .chain(
            after
                .lines()
                .filter(|line| !before.lines().any(|other| other == *line))
                .map(|line| format!("+ {line}")),
        )
        .collect();
    ensure!(differ.is_empty(), "the machine is not as before:\n{}", differ.join("\n"));
    Ok(())
}

/// No unit is left.
pub(super) fn no_unit(left: &Left) -> Result<()> {
    let after = left.text("after")?;
    ensure!(!after.contains(UNIT), "a unit is left: {after}");
    Ok(())
}

/// The journal of the unit and the state say why the run ended.
pub(super) fn named(left: &Left, why: &str) -> Result<()> {
    let journal = left.text("journal")?;
    ensure!(journal.contains(why), "{why:?} is not in the journal of {UNIT}:\n{journal}");
    Ok(())
}

/// A wrong kernel is named, and the state says which boots were measured before.
pub(super) fn names_wrong_kernel(left: &Left) -> Result<()> {
    let [first, second] = &left.kernels;
    let title =
        format!("Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {second}");
    named(left, &format!("the wrong kernel runs: {title} was to run, but {first} ("))?;
    let state = left.json("state.json")?;
    ensure!(state["measured"] == serde_json::json!([FIRST]), "measured: {}", state["measured"]);
    ensure!(state["ended"].is_string(), "the state does not say why the run ended");
    Ok(())
}

/// What was measured before a user ended the run is there; the run is not.
pub(super) fn stopped(left: &Left) -> Result<()> {
    no_unit(left)?;
    ensure!(left.has("boot-0.json"), "the result of the first boot is lost");
    ensure!(!left.has("boot-1.json"), "the second boot was measured");
    ensure!(!left.has("state.json"), "the run goes on");
    let after = left.text("after")?;
    ensure!(after.starts_with(&format!("{}\n", left.kernels[SECOND])), "it booted: {after}");
    ensure!(after.contains("kexec: 0\n"), "a kernel is loaded: {after}");
    Ok(())
}
