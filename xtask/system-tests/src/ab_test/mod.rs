//! `cargo xtask ab-test`: runs `kernlane-bench --ab --kernels` in guests with Debian 12, two
//! kernels of it, systemd and its boot loaders.
//!
//! Input: names of trials, or none for all of them. Each begins on the image in the cache, in a
//! guest of its own, without KVM. Output: a line for each test. Trials that passed with the same
//! program are not made again; consoles and results are in `target/ab-test`.

mod left;
mod trial;

use crate::debian::disk::{self, Image};
use anyhow::{Context, Result, bail};
use lab::kept::Kept;
use lab::score::TestScore;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trial::{Left, Method, Next, Trial};

/// Longer than a run waits before it boots the next kernel.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is tested of what a run left.
type Test = (&'static str, fn(&Left) -> Result<()>);

struct TrialKind {
    name: &'static str,
    method: Method,
    play: fn(&mut Trial) -> Result<()>,
    tests: &'static [Test],
}

const WHOLE: &[Test] = &[
    ("--dry-run names every step, and changes nothing", left::only_planned),
    ("the order of boots is A B B A", |left| left::booted(left, &[0, 1, 1, 0])),
    ("each boot has a result with the build id of its kernel", left::measured),
    ("before.json is of A, after.json of B", left::merged),
    ("A runs, no unit is left, the default entry is as before", left::as_before),
];

const TRIALS: [TrialKind; 6] = [
    TrialKind { name: "kexec", method: Method::Kexec, play: whole, tests: WHOLE },
    TrialKind { name: "grub", method: Method::Grub, play: whole, tests: WHOLE },
    TrialKind { name: "systemd-boot", method: Method::SystemdBoot, play: whole, tests: WHOLE },
    TrialKind {
        name: "wrong-kernel",
        method: Method::Grub,
        play: wrong_kernel,
        tests: &[
            ("A boots again, and nothing after it", |left| left::booted(left, &[0, 0])),
            ("the journal names the wrong kernel", left::names_wrong_kernel),
            ("A runs, no unit is left, the default entry is as before", left::as_before),
        ],
    },
    TrialKind {
        name: "power-loss",
        method: Method::Kexec,
        play: power_loss,
        tests: &[
            ("power is lost while B boots: the run ends on A, and names it", |left| {
                left::named(left, "the wrong kernel runs: /boot/vmlinuz-")
            }),
            ("power is lost while B is measured: the run ends on A, and names it", |left| {
                left::named(left, "the last boot was interrupted while /boot/vmlinuz-")
            }),
            ("each boot has a result with the build id of its kernel", left::measured),
            ("before.json is of A, after.json of B", left::merged),
            ("A runs, no unit is left, the default entry is as before", left::as_before),
        ],
    },
    TrialKind {
        name: "stop",
        method: Method::Kexec,
        play: stop,
        tests: &[
            ("B boots, and nothing after it", |left| left::booted(left, &[0, 1])),
            ("no unit is left, no kernel is loaded, the first result is there", left::stopped),
        ],
    },
];

/// A run that nothing disturbs.
fn whole(trial: &mut Trial) -> Result<()> {
    trial.begin_run()?;
    trial.watch().map(drop)
}

/// GRUB does not know of the entry for the next boot.
fn wrong_kernel(trial: &mut Trial) -> Result<()> {
    trial.tell("ignore")?;
    trial.wait_for("the entry will be ignored\r\n")?;
    trial.begin_run()?;
    trial.watch()?;
    stays(trial)
}

/// Power is lost while the second kernel boots, and again while it is measured.
fn power_loss(trial: &mut Trial) -> Result<()> {
    trial.begin_run()?;
    booted(trial)?;
    trial.lose_power()?;
    trial.switch_on()?;
    trial.watch()?;
    trial.tell("resume")?;
    booted(trial)?;
    trial.tell("measuring")?;
    trial.wait_for("a benchmark runs\r\n")?;
    trial.lose_power()?;
    trial.switch_on()?;
    trial.watch()?;
    trial.tell("resume")?;
    trial.watch().map(drop)
}

/// A user ends the run while its unit waits for the machine to settle.
fn stop(trial: &mut Trial) -> Result<()> {
    trial.begin_run()?;
    booted(trial)?;
    trial.tell("stop")?;
    if trial.next()? == Next::Booted {
        bail!("the machine has booted");
    }
    stays(trial)
}

fn booted(trial: &mut Trial) -> Result<()> {
    match trial.next()? {
        Next::Booted => Ok(()),
        Next::Ended => bail!("the run has ended too early"),
    }
}

fn stays(trial: &mut Trial) -> Result<()> {
    match trial.stays(PATIENCE)? {
        true => Ok(()),
        false => bail!("the machine has booted again"),
    }
}

/// The trials that passed, with the seconds that they took.
#[derive(Default, Serialize, Deserialize)]
struct Passed {
    trials: BTreeMap<String, f64>,
}

/// The trials.
pub fn names() -> impl Iterator<Item = &'static str> {
    TRIALS.iter().map(|trial| trial.name)
}

/// `names` are names of trials. Without names, all are made.
///
/// # Errors
/// A test fails, or the image cannot be made.
pub fn ab_test(names: &[String]) -> Result<()> {
    host::interrupt::catch()?;
    let suite = lab::static_suite()?;
    let image = disk::image()?;
    let [first, second] = &image.kernels;
    println!("A is Debian's {first}, B is {second}");
    let directory = PathBuf::from("target/ab-test");
    std::fs::create_dir_all(&directory).context("target/ab-test")?;
    let program = std::fs::read(&suite).with_context(|| suite.display().to_string())?;
    let made_for = format!("{} {}", image.made_by, image::sealed::sha256(&program));
    let mut kept = Kept::<Passed>::open(directory.join("passed.json"), &made_for)?;
    let mut score = TestScore::default();
    for kind in
        TRIALS.iter().filter(|kind| names.is_empty() || names.iter().any(|name| name == kind.name))
    {
        if let Some(seconds) = kept.results.trials.get(kind.name) {
            println!("{}: passed before, in {seconds:.0} s", kind.name);
            continue;
        }
        let begun = Instant::now();
        let log = directory.join(format!("{}.console", kind.name));
        let has_passed = tried(kind, &image, &suite, log, &mut score)?;
        let seconds = begun.elapsed().as_secs_f64();
        println!("{}: {seconds:.0} s", kind.name);
        if has_passed {
            kept.results.trials.insert(kind.name.to_owned(), seconds);
            kept.save()?;
        }
    }
    score.finish("`kernlane bench --ab` does not do what it says; see target/ab-test")
}

/// Makes a trial and its tests. Whether all passed.
fn tried(
    kind: &TrialKind,
    image: &Image,
    suite: &Path,
    log: PathBuf,
    score: &mut TestScore,
) -> Result<bool> {
    let played = Trial::begin(image, kind.method, suite, log).and_then(|mut trial| {
        (kind.play)(&mut trial)?;
        trial.end()
    });
    host::interrupt::check()?;
    let left = match played {
        Ok(left) => left,
        Err(error) => {
            score.count(kind.name, Err(error));
            return Ok(false);
        }
    };
    let mut has_passed = true;
    for (name, test) in kind.tests {
        let result = test(&left);
        has_passed &= result.is_ok();
        score.count(&format!("{}: {name}", kind.name), result);
    }
    Ok(has_passed)
}
