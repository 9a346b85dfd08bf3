//! `cargo xtask like-test KERNEL`: guests like machines run the code that the machines would run.
//!
//! For each machine with a guest, and for this host, a small workload is recorded twice. KERNEL is
//! the argument of `kernlane record --kernel`. Kernlane runs as a user runs it.

use anyhow::{Context, Result, ensure};
use execution::code::TranslatedCode;
use execution::walk::{Observer, Piece, Wants, walk};
use guest::{KernelBranches, RecordingSummary};
use host::recording::Recording;
use lab::score::TestScore;
use machines::BranchMitigation;
use object::{Object, ObjectSymbol};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use trace::{RecordingHeader, RecordingReader, Translation};

/// The machines with a guest.
const LIKE: [&str; 3] = ["golden-cove", "zen4", "zen5"];
/// Forks, file systems, pipes, page faults; a few million instructions.
const RUN: &str = "ls -lR /usr/lib | head -n 400 | sort | sha256sum; dd if=/dev/zero of=/tmp/x bs=64k \
                   count=16; cat /tmp/x | wc -c";

/// A guest of a processor that no machine describes.
struct OtherGuest {
    options: &'static [&'static str],
    /// The thunk of returns.
    returns: &'static str,
    /// Whether some returns stay plain.
    some_plain: bool,
    /// The thunks of indirect branches.
    indirect: &'static [&'static str],
}

const OTHERS: [OtherGuest; 2] = [
    OtherGuest {
        options: &["--cpu-model", "Skylake-Client-v3", "--append", "retbleed=stuff"],
        returns: "call_depth_return_thunk",
        some_plain: false,
        indirect: &["__x86_indirect_call_thunk", "__x86_indirect_jump_thunk"],
    },
    OtherGuest {
        options: &["--cpu-model", "SapphireRapids"],
        returns: "its_return_thunk",
        some_plain: true,
        indirect: &["__x86_indirect_thunk"],
    },
];

struct LikeTests {
    kernlane: PathBuf,
    kernel: PathBuf,
    directory: tempfile::TempDir,
}

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn like_test(kernel: &Path) -> Result<()> {
    let tests = LikeTests {
        kernlane: lab::kernlane()?,
        kernel: kernel.into(),
        directory: tempfile::Builder::new().prefix("kernlane-like-test-").tempdir()?,
    };
    let mut score = TestScore::default();
    for machine in LIKE.into_iter().chain(["host"]) {
        score.count(&format!("a guest like {machine}"), tests.guest_like(machine));
    }
    let plain = tests.record("plain", &[]).map(drop);
    score.count("a guest of all that QEMU emulates", plain);
    for machine in LIKE {
        score.count(
            &format!("replay on {machine} warns of other guests, and not of its own"),
            tests.replay_warns(machine),
        );
    }
    for other in OTHERS {
        score.count(&format!("returns through {}", other.returns), tests.other_returns(&other));
    }
    score.count("the model mispredicts each safe return", tests.safe_returns_fail());
    score.count("the model mispredicts each retpoline", tests.retpolines_fail());
    score.count("page-table isolation hides no task", tests.isolation_hides_no_task());
    score.count(
        "a kernel that chooses otherwise is refused before it works, and nothing stays",
        tests.other_mitigations_are_refused(),
    );
    score.count("what cannot be asked for is an error", tests.impossible_requests());
    score.finish("guests are not like the machines")
}

impl LikeTests {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.rec"))
    }

    fn attempt(&self, name: &str, more: &[&str]) -> Result<Output> {
        self.attempt_to_run(RUN, name, more)
    }

    fn attempt_to_run(&self, run: &str, name: &str, more: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.kernlane);
        command.args(["record", "--run", run, "--kernel"]).arg(&self.kernel).args(more);
        command.arg("--output").arg(self.path(name)).stdin(Stdio::null());
        Ok(command.output()?)
    }

    fn record(&self, name: &str, more: &[&str]) -> Result<RecordingSummary> {
        let output = self.attempt(name, more)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        RecordingSummary::read(&Recording::at(self.path(name)))
    }

    /// Records twice: equal bytes, and branches in the machine's forms, to the instruction.
    fn guest_like(&self, machine: &str) -> Result<()> {
        let again = format!("{machine}-again");
        let made = self.record(machine, &["--like", machine])?;
        self.record(&again, &["--like", machine])?;
        let bytes = |name: &str| std::fs::read(Recording::at(self.path(name)).trace());
        ensure!(bytes(machine)? == bytes(&again)?, "two recordings differ");
        ensure!(made.conditions.like.as_deref() == Some(machine), "{:?}", made.conditions.like);
        let said = made.vulnerabilities.context("recording.json has no vulnerabilities")?;
        ensure!(said.contains_key("spectre_v2"), "{said:?}");

        let branches = made.kernel_branches.context("recording.json has no kernel_branches")?;
        let processor = machines::guest_like(machine)?;
        let total = |forms: &BTreeMap<BranchMitigation, u64>| forms.values().sum::<u64>();
        ensure!(total(&branches.returns) > 10_000, "{branches:?}");
        ensure!(total(&branches.indirect) > 500, "{branches:?}");
        ensure!(branches.string_instructions > 100, "{branches:?}");
        let of =
            |forms: &BTreeMap<BranchMitigation, u64>, form| forms.get(form) == Some(&total(forms));
        ensure!(of(&branches.returns, &processor.returns), "{branches:?}");
        ensure!(of(&branches.indirect, &processor.indirect_branches), "{branches:?}");
        self.thunks_ran_as_often_as_branches_lead_there(machine, &branches)?;
        println!("    {}", serde_json::to_string(&branches)?);
        Ok(())
    }

    /// Counts how often the first instruction of each thunk ran.
    fn thunks_ran_as_often_as_branches_lead_there(
        &self,
        name: &str,
        branches: &KernelBranches,
    ) -> Result<()> {
        let vmlinux = std::fs::read(image::vmlinux::path(&self.kernel))?;
        let elf = object::File::parse(&*vmlinux)?;
        let forms = branches.returns.iter().chain(&branches.indirect);
        let mut entered: HashMap<String, u64> = HashMap::new();
        let thunks = forms.filter_map(|(form, count)| match form {
            BranchMitigation::Plain => None,
            BranchMitigation::Thunk(symbol) => Some((symbol, count)),
        });
        let thunks: Vec<_> = thunks.collect();
        let mut names: HashMap<u64, String> = HashMap::new();
        for symbol in elf.symbols() {
            let Ok(found) = symbol.name() else { continue };
            let of_register = |thunk: &str| {
                let rest = found.strip_prefix(thunk).and_then(|rest| rest.strip_prefix('_'));
                rest.is_some_and(|register| register != "array" && !register.contains('_'))
            };
            let thunk = thunks.iter().find(|(thunk, _)| found == *thunk || of_register(thunk));
            if let Some((thunk, _)) = thunk {
                names.insert(symbol.address(), (*thunk).clone());
            }
        }
        let file = File::open(Recording::at(self.path(name)).trace())?;
        let mut entries = Entries { names, of_translation: Vec::new(), counts: &mut entered };
        walk(RecordingReader::new(std::io::BufReader::new(file))?, &mut entries)?;
        for (thunk, count) in thunks {
            let ran = entered.get(thunk).copied().unwrap_or(0);
            ensure!(ran == *count, "{count} branches lead to {thunk}, which ran {ran} times");
        }
        Ok(())
    }

    fn replay_warns(&self, machine: &str) -> Result<()> {
        for recording in LIKE.into_iter().chain(["plain"]) {
            let mut command = Command::new(&self.kernlane);
            command.arg("replay").arg(self.path(recording)).args(["--machine", machine]);
            let output = command.args(["--until", "0.1", "--kernel"]).arg(&self.kernel).output()?;
            let messages = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{messages}");
            let machine_of = |name: &str| machines::guest_like(name);
            let alike = recording != "plain" && {
                let (one, other) = (machine_of(recording)?, machine_of(machine)?);
                one.returns == other.returns && one.indirect_branches == other.indirect_branches
            };
            let warned = messages.contains(&format!("Record with --like {machine}"));
            ensure!(warned != alike, "{recording} on {machine}: {messages}");
        }
        Ok(())
    }

    /// Mitigations of processors that no machine describes are recorded and counted.
    fn other_returns(&self, other: &OtherGuest) -> Result<()> {
        let made = self.record(other.returns, other.options)?;
        let branches = made.kernel_branches.context("recording.json has no kernel_branches")?;
        let forms = |names: &[&str]| -> Vec<BranchMitigation> {
            names.iter().map(|&name| BranchMitigation::Thunk(name.to_owned())).collect()
        };
        let mut returns = forms(&[other.returns]);
        returns.extend(other.some_plain.then_some(BranchMitigation::Plain));
        returns.sort();
        let found = |forms: &BTreeMap<BranchMitigation, u64>| -> Vec<BranchMitigation> {
            forms.keys().cloned().collect()
        };
        ensure!(found(&branches.returns) == returns, "{branches:?}");
        ensure!(found(&branches.indirect) == forms(other.indirect), "{branches:?}");
        ensure!(branches.returns.values().all(|&count| count > 10_000), "{branches:?}");
        self.thunks_ran_as_often_as_branches_lead_there(other.returns, &branches)?;
        println!("    {}", serde_json::to_string(&branches)?);
        Ok(())
    }

    /// What the kernel executed, by `recording.json`, and the kernel's returns on the core of a
    /// machine: all, and those that were mispredicted.
    fn returns_on(&self, machine: &str, recording: &str) -> Result<(KernelBranches, u64, u64)> {
        let made = RecordingSummary::read(&Recording::at(self.path(recording)))?;
        let mut command = Command::new(&self.kernlane);
        command.arg("replay").arg(self.path(recording)).args(["--machine", machine, "--json"]);
        let output = command.arg("--kernel").arg(&self.kernel).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let branches = &json["rows"][0]["counters"]["core"]["counters"]["kernel"]["branches"];
        let count = |name: &str| branches[name].as_u64().with_context(|| format!("{name}: {json}"));
        let executed = made.kernel_branches.context("recording.json has no kernel_branches")?;
        Ok((executed, count("returns")?, count("wrong_returns")?))
    }

    fn safe_returns_fail(&self) -> Result<()> {
        let (executed, returns, wrong) = self.returns_on("zen4", "zen4")?;
        let safe: u64 = executed.returns.values().sum();
        ensure!([returns, wrong] == [safe; 2], "{wrong} of {returns}: {executed:?}");
        // Golden Cove returns plainly.
        let (executed, returns, wrong) = self.returns_on("golden-cove", "golden-cove")?;
        ensure!(returns == executed.returns.values().sum::<u64>(), "{returns}: {executed:?}");
        ensure!(wrong < returns / 20, "{wrong} of {returns}");
        Ok(())
    }

    /// A retpoline ends with a return of its own.
    fn retpolines_fail(&self) -> Result<()> {
        let (executed, returns, wrong) = self.returns_on("golden-cove", "plain")?;
        let retpolines: u64 = executed.indirect.values().sum();
        let plain: u64 = executed.returns.values().sum();
        ensure!(returns == plain + retpolines, "{returns}: {executed:?}");
        let others = wrong.checked_sub(retpolines);
        ensure!(others.is_some_and(|others| others < plain / 20), "{wrong}: {executed:?}");
        Ok(())
    }

    /// The recording begins in user code, where such a kernel does not map its tasks.
    fn isolation_hides_no_task(&self) -> Result<()> {
        let output = self.attempt("isolated", &["--cpu-model", "Skylake-Client-v3"])?;
        let messages = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && !messages.contains("cannot be read"), "{messages}");
        let read = |name: &str| RecordingSummary::read(&Recording::at(self.path(name)));
        let (isolated, plain) = (read("isolated")?.totals.tasks, read("plain")?.totals.tasks);
        ensure!(isolated >= plain, "{isolated} tasks, and {plain} without isolation");
        Ok(())
    }

    /// Before the workload runs: this one never ends.
    fn other_mitigations_are_refused(&self) -> Result<()> {
        let words = ["--like", "zen4", "--append", "spectre_v2=off", "--time-limit", "600"];
        let output = self.attempt_to_run("while :; do :; done", "refused", &words)?;
        let messages = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "the recording was made");
        for part in [
            "/sys/devices/system/cpu/vulnerabilities/spectre_v2: \"Vulnerable",
            "does not begin with \"Mitigation: Enhanced / Automatic IBRS\"",
            "than on zen4",
        ] {
            ensure!(messages.contains(part), "{part} is missing: {messages}");
        }
        let left: Vec<_> = std::fs::read_dir(self.directory.path())?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .filter(|name| name.contains("refused"))
            .collect();
        ensure!(left.is_empty(), "{left:?} is left");
        Ok(())
    }

    fn impossible_requests(&self) -> Result<()> {
        let arm = self.directory.path().join("arm");
        std::fs::create_dir_all(arm.join("vulnerabilities"))?;
        std::fs::write(arm.join("cpuinfo"), "processor\t: 0\nFeatures\t: fp asimd\n")?;
        std::fs::write(arm.join("vulnerabilities/spectre_v2"), "Mitigation: CSV2, BHB\n")?;
        let arm = arm.display().to_string();
        for (like, cpu_model, expected) in [
            ("server-32k", None, "has no [guest]"),
            (arm.as_str(), None, "is it of an x86-64 processor?"),
            ("no-such-machine", None, "no machine is called"),
            ("zen4", Some("max,+no-such-feature"), "no-such-feature"),
        ] {
            let model = cpu_model.iter().flat_map(|model| ["--cpu-model", model]);
            let words: Vec<&str> = ["--like", like].into_iter().chain(model).collect();
            let output = self.attempt("impossible", &words)?;
            let messages = String::from_utf8_lossy(&output.stderr);
            ensure!(!output.status.success() && messages.contains(expected), "{like}: {messages}");
        }
        Ok(())
    }
}

/// Counts executions of the translation blocks that begin at given addresses.
struct Entries<'c> {
    names: HashMap<u64, String>,
    of_translation: Vec<Option<String>>,
    counts: &'c mut HashMap<String, u64>,
}

impl Observer for Entries<'_> {
    fn begin(&mut self, _: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        Ok(Wants::default())
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        let names = translations.iter().map(|it| self.names.get(&it.addr.0).cloned());
        self.of_translation.extend(names);
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        for event in piece.events() {
            let Some((id, _)) = event.execution() else { continue };
            if let Some(name) = &self.of_translation[id.0 as usize] {
                *self.counts.entry(name.clone()).or_default() += 1;
            }
        }
        Ok(())
    }
}
