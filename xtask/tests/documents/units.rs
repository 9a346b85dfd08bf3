//! The units of systemd run commands that the program has.

use crate::book::refused;
use crate::{read, root};

const UNITS: &str = "packaging/systemd";
const PROGRAM: &str = "/usr/bin/";

#[test]
fn the_units_run_commands_that_exist() {
    let units = std::fs::read_dir(root().join(UNITS)).unwrap();
    let names = units.map(|unit| unit.unwrap().file_name().into_string().unwrap());
    let mut commands = 0;
    for name in names.filter(|name| name.ends_with(".service")) {
        for line in read(&format!("{UNITS}/{name}")).lines() {
            let Some(command) = line.strip_prefix("ExecStart=") else { continue };
            let command = command.strip_prefix(PROGRAM).expect("a program of the package");
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(refused(&words, false), None, "{name}: {command}");
            commands += 1;
        }
    }
    assert!(commands >= 2, "{commands} commands");
}

/// What a unit's conditions and directories say is what the program does by default.
#[test]
fn the_unit_at_boot_looks_where_the_program_keeps() {
    let kept = format!("ConditionPathExists={}/kept.json", live::keep::state::DIRECTORY);
    let unit = read(&format!("{UNITS}/kernlane.service"));
    assert!(unit.lines().any(|line| line == kept), "{kept}");
    assert!(unit.contains("ExecStart=/usr/bin/kernlane live restore --guard\n"));
    assert!(unit.contains("SuccessExitStatus=1\n"));
}
