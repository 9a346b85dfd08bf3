//! Kernlane's own programs and scripts in a guest, and where they are.
//!
//! Output: scripts. A guest of Debian packages has `/init` and `/usr/bin/busybox`. In the guest of
//! an image these names belong to the image, and all of Kernlane's own files are below `/kernlane`.

use crate::like;
use anyhow::{Result, ensure};

const INIT: &str = include_str!("init.sh");
const WORKLOAD: &str = include_str!("workload.sh");
const TRIAL: &str = include_str!("trial.sh");
/// The line of `workload.sh` before which a guest says what its kernel does: what it says, ends
/// with [`like::SAID`].
const SETTLE: &str = "say \"phase settle\"\n";

/// The script that runs in the guest as `/kernlane/main`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MainScript {
    /// Runs a workload between the marks.
    Recording {
        /// Prints the kernel's mitigations first, see [`crate::like`].
        shows_mitigations: bool,
    },
    /// Runs a workload without marks and prints everything at once. With the name of a script: that
    /// script prints the number of each line that it executes.
    Trial { traced: Option<&'static str> },
}

impl MainScript {
    /// The script, for a guest of Debian packages.
    pub(crate) fn text(self) -> String {
        match self {
            MainScript::Recording { shows_mitigations: false } => WORKLOAD.to_owned(),
            MainScript::Recording { shows_mitigations: true } => {
                WORKLOAD.replacen(SETTLE, &format!("{}{SETTLE}", like::SHOW_MITIGATIONS), 1)
            }
            MainScript::Trial { traced } => {
                TRIAL.replace("traced=\n", &format!("traced={}\n", traced.unwrap_or_default()))
            }
        }
    }
}

/// Where busybox is in a guest of Debian packages.
pub(crate) const BUSYBOX: &str = "usr/bin/busybox";
/// Where busybox is in the guest of an image.
pub(crate) const BUSYBOX_OF_IMAGE: &str = "kernlane/busybox";
/// How the kernel learns that the first process is not `/init`.
pub(crate) const INIT_WORD: &str = "rdinit=/";
pub(crate) const INIT_PATH: &str = "init";
pub(crate) const INIT_PATH_OF_IMAGE: &str = "kernlane/init";

/// Directories whose content the image's programs may need: nothing is mounted over them. They are
/// in memory anyway.
const MOUNTED_OVER: [&str; 2] = [" /tmp\n", " /run\n"];

pub(crate) fn init() -> &'static str {
    INIT
}

/// The first process of an image's guest. Its own programs come first, whatever the image has.
pub(crate) fn init_of_image() -> String {
    let lines = INIT.split_inclusive('\n').filter(|line| {
        !(line.starts_with("mount -t tmpfs ") && MOUNTED_OVER.iter().any(|end| line.ends_with(end)))
    });
    of_image(&lines.collect::<String>()).replacen("PATH=", "PATH=/kernlane/bin:", 1)
}

/// The directories of programs in an image that does not name them, as in a container.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// `/kernlane/main` in the guest of an image with this environment.
pub(crate) fn main_of_image(main: &str, environment: &[(String, String)]) -> Result<String> {
    let main = of_image(main);
    let (first, rest) = main.split_once('\n').unwrap_or((&main, ""));
    let mut text = format!("{first}\n");
    if !environment.iter().any(|(name, _)| name == "PATH") {
        text.push_str(&format!("export PATH={DEFAULT_PATH}:/kernlane/bin\n"));
    }
    for (name, value) in environment {
        ensure!(!value.contains('\0'), "the image's variable {name} contains NUL");
        // Programs that the image lacks are busybox's.
        let more = if name == "PATH" { ":/kernlane/bin" } else { "" };
        text.push_str(&format!("export {name}={}\n", quoted(&format!("{value}{more}"))));
    }
    Ok(text + rest)
}

fn of_image(script: &str) -> String {
    script.replace("/usr/bin/busybox", "/kernlane/busybox")
}

/// The text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_keeps_its_own_init_busybox_tmp_and_run() {
        let init = init_of_image();
        assert!(init.starts_with("#!/kernlane/busybox sh\n"));
        assert!(init.contains("export PATH=/kernlane/bin:/usr/local/sbin:"));
        assert!(!init.contains("/usr/bin/busybox"));
        assert!(!init.contains(" tmpfs /tmp") && !init.contains(" tmpfs /run\n"));
        assert!(init.contains("mount -t tmpfs tmpfs /dev/shm"), "{init}");
        assert_eq!(INIT.lines().count() - init.lines().count(), 2);
    }

    #[test]
    fn the_environment_is_exported_word_by_word() {
        let environment = [
            ("PATH".to_owned(), "/usr/local/bin:/bin".to_owned()),
            ("NAME".to_owned(), "it's $HOME".to_owned()),
        ];
        for main in
            [MainScript::Recording { shows_mitigations: true }, MainScript::Trial { traced: None }]
        {
            let text = main_of_image(&main.text(), &environment).unwrap();
            let expected = "#!/kernlane/busybox sh\n\
                export PATH='/usr/local/bin:/bin:/kernlane/bin'\n\
                export NAME='it'\\''s $HOME'\n#";
            assert!(text.starts_with(expected), "{text}");
        }
        let plain = main_of_image("#!x\nrest\n", &[]).unwrap();
        let usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        assert_eq!(plain, format!("#!x\nexport PATH={usual}:/kernlane/bin\nrest\n"));
        assert!(main_of_image("x", &[("A".into(), "\0".into())]).is_err());
    }

    #[test]
    fn the_mitigations_are_said_before_the_workload_is_set_up() {
        let text = MainScript::Recording { shows_mitigations: true }.text();
        let at = |what: &str| text.find(what).unwrap();
        let order = [
            at("say() {"),
            at(like::SHOW_MITIGATIONS),
            at(&format!("say \"{}\"", like::SAID)),
            at("/kernlane/set-up"),
        ];
        assert!(order.is_sorted(), "{text}");
        let plain = MainScript::Recording { shows_mitigations: false }.text();
        assert_eq!(text.replacen(like::SHOW_MITIGATIONS, "", 1), plain);
    }

    #[test]
    fn one_script_is_traced_or_none() {
        assert!(MainScript::Trial { traced: Some("run") }.text().contains("\ntraced=run\n"));
        assert!(MainScript::Trial { traced: None }.text().contains("\ntraced=\n"));
    }
}
