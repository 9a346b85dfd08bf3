//! Recordings of a program of one's own: copied into the guest, and in an image.
//!
//! A server and its client, and two threads that share a line, are compiled here. Input: the tests'
//! directory. Output: what went wrong.

use super::{GuestTests, images, refused};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How often the client asks.
const ASKED: &str = "./client 300";
const SET_UP: &str = "./server & sleep 1";

/// The server and the client in a directory.
pub(super) struct Programs {
    directory: tempfile::TempDir,
}

impl Programs {
    pub(super) fn compiled() -> Result<Programs> {
        let directory = tempfile::tempdir()?;
        let build = directory.path().join("build");
        std::fs::create_dir(&build)?;
        for (name, text) in [
            ("server", include_str!("server.c")),
            ("client", include_str!("client.c")),
            ("shared", include_str!("shared.c")),
        ] {
            let source = directory.path().join(format!("{name}.c"));
            std::fs::write(&source, text)?;
            for (link, output) in
                [("-static", build.join(name)), ("-Wl,-O1", directory.path().join(name))]
            {
                let mut compiler = Command::new("cc");
                compiler.args(["-O2", "-Wall", "-Werror", link, "-o"]).arg(output).arg(&source);
                lab::run(&mut compiler)?;
            }
        }
        Ok(Programs { directory })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `--copy` of a file or directory.
    fn copy(&self, from: &str, to: &str) -> String {
        format!("{}:{to}", self.at(from).display())
    }
}

impl GuestTests {
    /// `record` of a command.
    fn typed(&self, run: &str, set_up: &str, output: &str, more: &[&str]) -> Command {
        let mut command = Command::new(&self.kernlane);
        command.args(["record", "--run", run, "--set-up", set_up, "--force", "--kernel"]);
        command.arg(&self.kernel).arg("--output").arg(self.path(output)).args(more);
        command
    }

    /// A copied server and its client give the same recording twice.
    pub(super) fn copied_program(&self, programs: &Programs) -> Result<()> {
        let copy = programs.copy("build", "/opt/app");
        let record = |output: &str| {
            self.recorded_by(self.typed(ASKED, SET_UP, output, &["--copy", &copy]), output)
        };
        let one = record("one")?;
        // Times and the order in the directory are not part of the guest.
        for name in ["server", "client"] {
            let path = programs.at("build").join(name);
            let again = programs.at("build").join("again");
            std::fs::copy(&path, &again)?;
            std::fs::remove_file(&path)?;
            std::fs::rename(&again, &path)?;
        }
        self.same(&one, &record("two")?)?;
        let (first, second) = (self.summary("one")?.conditions, self.summary("two")?.conditions);
        ensure!(first == second && first.workload == "client", "{first:?}\n{second:?}");
        let digest = first.copied_sha256.context("the conditions have no digest")?;
        ensure!(first.image_sha256.is_none() && digest.len() == 64, "{digest}");
        let totals = self.summary("one")?.totals;
        ensure!(
            totals.kernel_instructions > 1_000_000 && totals.user_instructions > 20_000,
            "{totals:?}"
        );
        Ok(())
    }

    /// The image of `docker save` and the OCI layout give the same recording, twice.
    pub(super) fn program_in_an_image(&self, programs: &Programs) -> Result<()> {
        let (lower, upper) = (programs.at("lower"), programs.at("upper"));
        std::fs::create_dir_all(lower.join("app"))?;
        std::fs::create_dir_all(lower.join("usr/bin"))?;
        std::fs::create_dir_all(upper.join("app"))?;
        std::fs::copy(programs.at("build/server"), lower.join("app/server"))?;
        std::fs::write(lower.join("app/client"), "an old client")?;
        std::fs::write(lower.join("app/old"), "hidden by the upper layer")?;
        // The names of Kernlane's own programs in other guests.
        std::fs::write(lower.join("init"), "the image's init")?;
        std::fs::write(lower.join("usr/bin/busybox"), "the image's busybox")?;
        std::fs::copy(programs.at("build/client"), upper.join("app/client"))?;
        std::fs::write(upper.join("app/.wh.old"), "")?;
        let (archive, layout) = (programs.at("app.tar"), programs.at("layout"));
        images::docker(&[&lower, &upper], &archive)?;
        images::oci(&[&lower, &upper], &layout)?;

        let set_up = "test \"$GREETING\" = \"it's here\"; test ! -e old; \
            grep -q -x \"the image's init\" /init; \
            grep -q -x \"the image's busybox\" /usr/bin/busybox; ./server & sleep 1";
        let record = |image: &Path, output: &str| {
            let image = image.to_str().context("the temporary directory is not UTF-8")?;
            let command = self.typed("client 300", set_up, output, &["--image", image]);
            self.recorded_by(command, output)
        };
        let one = record(&archive, "one")?;
        self.same(&one, &record(&archive, "two")?)?;
        self.same(&one, &record(&layout, "two")?)?;
        let (first, second) = (self.summary("one")?.conditions, self.summary("two")?.conditions);
        ensure!(first == second, "{first:?}\n{second:?}");
        ensure!(first.image_sha256.is_some() && first.copied_sha256.is_none(), "{first:?}");
        Ok(())
    }

    /// A dynamic program is refused with the package that it needs, and runs with it.
    pub(super) fn lacking_program(&self, programs: &Programs) -> Result<()> {
        let copy = programs.copy("client", "/opt/app/");
        let without = self.typed("./client 0", "", "other", &["--copy", &copy]).output()?;
        let message = refused(&without)?;
        for printed in
            ["needs libc.so.6", "/lib64/ld-linux-x86-64.so.2", "add libc6 to the guest's"]
        {
            ensure!(message.contains(printed), "the message lacks {printed:?}:\n{message}");
        }
        let with = ["--copy", &copy, "--packages", "libc6"];
        self.recorded_by(self.typed("./client 0", "", "one", &with), "one").map(drop)
    }

    /// A line that two threads write has the name of the program's variable, whether the program
    /// is linked for one address or not.
    pub(super) fn named_variables(&self, programs: &Programs) -> Result<()> {
        for (from, more) in [("build/shared", &[][..]), ("shared", &["--packages", "libc6"][..])] {
            let copy = programs.copy(from, "/opt/app/");
            let mut options = vec!["--copy", &copy, "--data", "--cpus", "2", "--turn", "2000"];
            options.extend(more);
            self.recorded_by(self.typed("./shared", "", "one", &options), "one")?;
            let mut report = Command::new(&self.kernlane);
            report.args(["report", "sharing", "--json", "--top", "1", "--kernel"]);
            let printed = lab::succeeded(report.arg(&self.kernel).arg(self.path("one")))?.stdout;
            let table: serde_json::Value = serde_json::from_slice(&printed)?;
            let table = table.get(0).unwrap_or(&table);
            let line = &table["lines"][0];
            // The kernel also clears the page, byte by byte.
            let named = |name: &str| {
                let mut fields = line["fields"].as_array().into_iter().flatten();
                fields.any(|field| field["name"] == name && field["size"] == 8)
            };
            ensure!(
                line["objects"][0]["place"] == "counters of shared"
                    && named("counters+0x0")
                    && named("counters+0x8"),
                "{from}: {}",
                line["objects"]
            );
        }
        Ok(())
    }

    /// `workload check` shows what happens, and names the line that fails.
    pub(super) fn checked_workload(&self, programs: &Programs) -> Result<()> {
        let path = programs.at("mine.toml");
        let check =
            |set_up: &str, run: &str, check: &str| -> Result<(Option<i32>, String, String)> {
                let text = format!(
                    "about = 'a test'\npackages = []\ncopy = ['./build:/opt/app']\nmemory = 256\n\
                 set-up = '''\n{set_up}'''\nrun = '''\n{run}'''\ncheck = '''\n{check}'''\n"
                );
                std::fs::write(&path, text)?;
                let mut command = Command::new(&self.kernlane);
                command.args(["workload", "check"]).arg(&path).arg("--kernel").arg(&self.kernel);
                let ended = command.output()?;
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                Ok((ended.status.code(), text(ended.stdout), text(ended.stderr)))
            };
        let set_up = "/opt/app/server &\nsleep 1\necho set up\n";
        let run = "/opt/app/client 3\n/opt/app/client stop\n";
        let asked = "grep -q -x '3 answers' /run/output\n";
        let (status, shown, printed) = check(set_up, run, asked)?;
        ensure!(status == Some(0), "{shown}{printed}");
        let steps = ["== set-up\nset up\n", "== run\n3 answers\n", "== check\n", "did its work"];
        ensure!(steps.iter().all(|step| shown.contains(step)), "{shown}");
        // The shell's own trap runs after the command that failed.
        let trapped =
            format!("trap 'echo over' EXIT\n{set_up}\nfor file in a b; do\n  cat $file\ndone\n");
        for (scripts, named) in [
            (
                [trapped.as_str(), run, asked],
                "set-up failed with status 1 in its line 7: cat $file",
            ),
            (
                [set_up, "echo begun\n\nfalse | cat nothing 2>&1\n", asked],
                "run failed with status 1 in its line 3: false | cat nothing",
            ),
            (
                [set_up, run, "true\ngrep -q -x '4 answers' /run/output\n"],
                "check failed with status 1 in its line 2: grep",
            ),
        ] {
            let [set_up, run, asked] = scripts;
            let (status, shown, printed) = check(set_up, run, asked)?;
            ensure!(status == Some(1) && printed.contains(named), "{named}:\n{shown}{printed}");
            let printed = !printed.starts_with("run") || printed.contains("begun\ncat: can't open");
            ensure!(printed, "{printed}");
        }
        Ok(())
    }
}
