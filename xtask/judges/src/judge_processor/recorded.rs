//! The recordings of guests, and the root file systems in which the same programs run natively.
//!
//! Input: the program of the points, and groups of programs. Output: recordings and directories.
//! Files that exist are not made again.

use crate::judge_processor::programs::{self, ENVIRONMENT, Group};
use anyhow::{Context, Result, ensure};
use guest::{GuestKernel, RecordingRequest, RecordingSummary, Workload};
use host::recording::Recording;
use lab::run;
use road::record;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Long enough for emulation on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// The points run by themselves, between the marks that their program executes.
const POINTS: &str = "about = 'points that are timed on a processor'
packages = []
memory = 1024
marks-itself = true
set-up = ''
run = '/guest/judged record'
check = 'test ! -s /run/output'
";

/// A program that executes a mark.
const MARK: &str = "#include \"bare.h\"
__attribute__((used)) static void run(void)
{
	MARK(NUMBER);
	for (;;)
		call(NR_EXIT, 0, 0, 0, 0, 0, 0);
}
START(run);
";

/// Makes recordings on one kernel.
pub(crate) struct Recorder<'a> {
    /// The kernel's tree.
    pub tree: &'a Path,
    pub directory: &'a Path,
}

impl Recorder<'_> {
    /// The recording of all points. `program`: its bytes.
    pub(super) fn points(&self, program: &[u8]) -> Result<Recording> {
        let files = vec![("/guest/judged".to_owned(), 0o755, program.to_vec())];
        // A recording of other points has another name.
        let name = format!("points-{}", &image::sealed::sha256(program)[..12]);
        self.recording(&name, POINTS, files)
    }

    /// The recording of a group.
    pub(super) fn group(&self, group: &Group) -> Result<Recording> {
        let text = programs::workload(group);
        let mut files = Vec::new();
        for (name, number) in [("begin", super::model::BEGIN), ("end", super::model::END)] {
            let source = MARK.replace("NUMBER", &number.to_string());
            let program = lab::bare::compile(name, &source)?;
            files.push((format!("/guest/{name}"), 0o755, program));
        }
        for (name, text) in group.files {
            files.push((format!("/guest/{name}"), 0o644, text.as_bytes().to_vec()));
        }
        let contents: Vec<u8> = files.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect();
        let hash = image::sealed::sha256(&[text.as_bytes(), &contents].concat());
        self.recording(&format!("{}-{}", group.name, &hash[..12]), &text, files)
    }

    /// The recording `NAME.rec` of a workload with these files: path, mode, contents.
    pub(crate) fn recording(
        &self,
        name: &str,
        workload: &str,
        files: Vec<(String, u32, Vec<u8>)>,
    ) -> Result<Recording> {
        let output = self.directory.join(format!("{name}.rec"));
        if !output.is_dir() {
            eprintln!("recording {}", output.display());
            lab::build_plugin()?;
            let (workload, kernel) =
                (Workload::parse(name, workload)?, GuestKernel::open(self.tree, None)?);
            lab::recording::record(&RecordingRequest {
                files,
                data: true,
                time_limit: TIME_LIMIT,
                ..record::request(workload, kernel, &output)
            })?;
        }
        Ok(Recording::at(&output))
    }

    /// The root file system with the packages and files of a group's recorded guest, and with the
    /// inputs of its programs.
    pub(super) fn root(&self, group: &Group, recording: &Recording) -> Result<PathBuf> {
        let summary = fs::read_to_string(recording.summary())?;
        let summary: RecordingSummary = serde_json::from_str(&summary)?;
        // A recording's name tells what is in its guest.
        let trace = recording.trace();
        let name = trace.parent().and_then(Path::file_stem).context("a recording has no name")?;
        let root = self.directory.join(format!("{}.root", name.to_string_lossy()));
        if root.is_dir() {
            return Ok(root);
        }
        eprintln!("making {}", root.display());
        let made = root.with_extension("new");
        if made.is_dir() {
            fs::remove_dir_all(&made)?;
        }
        for directory in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "tmp", "guest"] {
            fs::create_dir_all(made.join(directory))?;
        }
        for link in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{link}"), made.join(link))?;
        }
        let debs = guest::writable_cache()?.join("debs");
        for package in &summary.conditions.packages {
            unpack(&debs.join(package), &made)?;
        }
        for (name, text) in group.files {
            fs::write(made.join("guest").join(name), text)?;
        }
        let set_up = format!("cd /guest\n{}", group.set_up);
        let mut shell = Command::new("chroot");
        shell.arg(&made).args(["/usr/bin/dash", "-e", "-c", &set_up]);
        run(shell.stdin(Stdio::null()).env_clear().envs(ENVIRONMENT))
            .with_context(|| format!("making the inputs of {}", group.name))?;
        fs::rename(&made, &root)?;
        Ok(root)
    }
}

/// Unpacks a package. A link of the merged `/usr` stays a link.
fn unpack(package: &Path, root: &Path) -> Result<()> {
    ensure!(package.is_file(), "{} is not in the cache any more", package.display());
    let script = "dpkg-deb --fsys-tarfile \"$0\" | tar -x --keep-directory-symlink -C \"$1\"";
    run(Command::new("sh").args(["-e", "-c", script]).arg(package).arg(root))
}
