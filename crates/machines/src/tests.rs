//! Shipped machines, and files that are none.

use super::{BranchMitigation, SHIPPED, models};
use sim::coherent::Protocol;
use sim::{DirectionPrediction, HeldBranches, MachineModel};

/// The tests look at models only.
fn find(name: &str) -> anyhow::Result<MachineModel> {
    Ok(super::find(name)?.model)
}

fn parse(text: &str, file: &str) -> anyhow::Result<MachineModel> {
    Ok(super::Machine::parse(text, file)?.model)
}

fn text_of(name: &str) -> &'static str {
    SHIPPED.iter().find(|(shipped, _)| *shipped == name).unwrap().1
}

#[test]
fn shipped_machines_are_found_by_their_name() {
    for (name, _) in SHIPPED {
        assert_eq!(find(name).unwrap().name, *name);
    }
    let server = find("server-32k").unwrap();
    assert_eq!((server.l1i.sets(), server.l1i.ways(), server.l1i_line), (64, 8, 64));
    assert_eq!(find("torrellas-8k").unwrap().itlb, None);
    let memory = find("simos-1994").unwrap().memory.unwrap();
    assert_eq!((memory.l1d.line, memory.l2.unwrap().geometry.ways(), memory.l3), (16, 1, None));
    assert_eq!((memory.latencies.l2(), memory.latencies.memory()), (10.0, 100.0));
}

#[test]
fn a_core_has_its_table_of_uops_and_cores_of_one_table_share_it() {
    let machines = models(&["golden-cove", "gracemont", "zen4"]).unwrap();
    let uops: Vec<_> = machines.iter().map(|it| it.core.as_ref().unwrap().uops.clone()).collect();
    assert_eq!(format!("{:?}", uops[0]), "UopTable(\"sapphirerapids\")");
    assert_eq!(format!("{:?}", uops[2]), "UopTable(\"znver4\")");
    assert!(uops[0] == uops[1] && uops[0] != uops[2]);
}

#[test]
fn every_file_in_machines_is_shipped() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines");
    let mut found: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let mut shipped: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
    found.sort();
    shipped.sort();
    assert_eq!(found, shipped);
}

#[test]
fn unknown_names_list_the_known_ones() {
    let message = format!("{:#}", find("server").unwrap_err());
    assert!(message.contains("server-32k, server-48k, server-8, simos-1994"), "{message}");
    let message = format!("{:#}", find("no/such.toml").unwrap_err());
    assert!(message.starts_with("no/such.toml: cannot read this machine"), "{message}");
}

#[test]
fn impossible_machines_name_rule_and_line() {
    let text = text_of("server-32k");
    let cases = [
        (
            "value = 32768",
            "value = 30000",
            "m.toml:8: [l1i] cannot be built: the size, 30000 bytes",
        ),
        (
            "value = 32768",
            "value = 49152",
            "m.toml:8: [l1i] cannot be built: the number of sets must be a power of two, because \
             address bits choose the set; not 96",
        ),
        ("value = 4096", "value = 4000", "m.toml:14: [itlb] cannot be built: the size of a page"),
        (
            "value = 0.05",
            "value = 1.05",
            "m.toml:21: [time] is impossible: a share must lie between 0 and 1, not 1.05",
        ),
        ("\"assumed\"", "\" \"", "m.toml:12: every number needs a source"),
        ("\"lru\"", "\"random\"", "m.toml: not a machine: TOML parse error at line 12"),
        ("ways =", "way =", "m.toml: not a machine: TOML parse error at line 10"),
        (
            ", source = \"AMD 57647, L1 ITLB\"",
            "",
            "m.toml: not a machine: TOML parse error at line 15",
        ),
    ];
    for (from, to, expected) in cases {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(text, damaged);
        let message = format!("{:#}", parse(&damaged, "m.toml").unwrap_err());
        assert!(message.starts_with(expected), "{message}\nexpected: {expected}");
    }
}

#[test]
fn what_lies_behind_the_l1i_is_whole_or_absent() {
    let text = text_of("server-32k");
    let without = |section: &str| {
        let start = text.find(&format!("\n[{section}]\n")).unwrap() + 1;
        let end = text[start + 1..].find("\n[").map_or(text.len(), |at| start + 1 + at + 1);
        let text = format!("{}{}", &text[..start], &text[end..]);
        format!(
            "{:#}",
            parse(&text, "m.toml")
                .map(|_| ())
                .err()
                .map_or(String::new(), |error| format!("{error:#}"))
        )
    };
    for section in ["l1d", "latencies"] {
        let message = without(section);
        assert!(
            message.ends_with("[l1d] or [latencies] is missing; this needs both"),
            "{section}: {message}"
        );
    }
    for section in ["l2", "l3"] {
        let message = without(section);
        assert!(message.ends_with(&format!("and there is no [{section}]")), "{section}: {message}");
    }
    assert_eq!(without("dtlb"), "");
    let whole = text_of("torrellas-8k");
    assert!(parse(whole, "m.toml").unwrap().memory.is_some_and(|memory| memory.l2.is_none()));
    let none = &whole[..whole.find("[l1d]").unwrap()];
    assert_eq!(parse(none, "m.toml").unwrap().memory, None);
}

#[test]
fn impossible_predictors_name_rule_and_line() {
    let text = text_of("server-32k");
    let line = |start: &str| 1 + text[..text.find(start).unwrap()].matches('\n').count();
    let (table, predictor) = (line("\n[branch]") + 1, line("\npredictor =") + 1);
    let cases = [
        (
            "predictor = { value = \"gshare\"",
            "predictor = { value = \"bimodal\"",
            predictor,
            "[branch] does not fit its predictor",
        ),
        (
            "predictor = { value = \"gshare\"",
            "predictor = { value = \"static\"",
            predictor,
            "[branch] does not fit its predictor",
        ),
        (
            "history = { value = 12",
            "history = { value = 15",
            table,
            "[branch] cannot be built: the history must have from 1 to 14 bits",
        ),
        (
            "entries = { value = 16384",
            "entries = { value = 16000",
            table,
            "[branch] cannot be built: the entries of a table of counters",
        ),
        (
            "btb_ways = { value = 7",
            "btb_ways = { value = 6",
            table,
            "[branch] cannot be built: the target buffer: the entries, 7168",
        ),
        ("btb_ways", "#", table, "[branch] must give btb_entries, btb_ways and btb_holds, or none"),
        (
            "return_stack = { value = 32",
            "return_stack = { value = 320000",
            table,
            "[branch] cannot be built: a return stack",
        ),
        (
            "\npenalty = { value = 13",
            "\npenalty = { value = -1",
            table,
            "[branch] cannot be built: a wrong prediction must cost",
        ),
        (
            "predictor = { value = \"gshare\"",
            "predictor = { value = \"oracle\"",
            0,
            "not a machine: TOML parse error",
        ),
    ];
    for (from, to, line, rule) in cases {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(text, damaged, "{from}");
        let at = if line == 0 { "m.toml".to_owned() } else { format!("m.toml:{line}") };
        let message = format!("{:#}", parse(&damaged, "m.toml").unwrap_err());
        assert!(message.starts_with(&format!("{at}: {rule}")), "{message}\nexpected: {at}: {rule}");
    }
    let none = &text[..text.find("[branch]").unwrap()];
    assert_eq!(parse(none, "m.toml").unwrap().branch, None);
}

#[test]
fn shipped_predictors_equal_their_files() {
    let branch = |name| find(name).unwrap().branch;
    assert_eq!([branch("torrellas-8k"), branch("simos-1994")], [None, None]);
    let sparc = branch("ultrasparc-16k").unwrap();
    assert_eq!(sparc.direction(), DirectionPrediction::Bimodal { entries: 2048 });
    assert_eq!((sparc.return_stack(), sparc.penalty()), (4, Some(4.0)));
    assert_eq!(branch("simos-1996").unwrap().penalty(), None);
    assert_eq!(
        branch("small-core").unwrap().targets().map(|targets| targets.holds()),
        Some(HeldBranches::Indirect)
    );
}

#[test]
fn damaged_files_are_errors_or_machines_never_panics() {
    let text = text_of("ultrasparc-16k").as_bytes();
    let mut state = 0x0123_4567_89AB_CDEF_u64;
    for _ in 0..2000 {
        let mut bytes = text.to_vec();
        for _ in 0..3 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            match state >> 20 & 3 {
                0 => bytes[at] = (state >> 24) as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, b"0123456789\"={}\n"[at % 15]),
            }
        }
        let _ = parse(&String::from_utf8_lossy(&bytes), "damaged");
    }
}

#[test]
fn machines_of_today_have_a_core() {
    let core = |name| find(name).unwrap().core;
    assert_eq!(core("server-32k"), None);
    let golden = core("golden-cove").unwrap();
    assert_eq!((golden.window.reorder_buffer, golden.window.schedulers.len()), (512, 3));
    let zen = core("zen4").unwrap();
    assert_eq!((zen.prediction.mispredict_penalty, zen.window.dispatch), (12, 6));
    assert_eq!(zen.fixed_data.l2, 30_000);
    assert_eq!(core("gracemont").unwrap().front_end.uop_cache, None);
    let zen = core("zen5").unwrap();
    assert_eq!((zen.window.reorder_buffer, zen.front_end.targets_in_a_cycle), (448, 2));
    let cache = zen.front_end.uop_cache.unwrap();
    assert!(cache.by_start);
    assert_eq!((cache.pair_interval, cache.single_lines), (Some(2), 3));
    let names =
        ["golden-cove", "zen4", "zen5", "gracemont", "simos-1996", "simos-1998", "pentium4"];
    for name in names {
        assert!(sim::core::Core::new(&find(name).unwrap()).unwrap().is_some());
    }
}

/// Rosenblum 1995, section 3.3: a window of 64, 4 instructions a cycle, 4 outstanding misses, a
/// table of 1024 entries. Nellans 2005, section 3: a Pentium 4 of 31 stages, and a 486.
#[test]
fn machines_of_the_papers_have_the_papers_numbers() {
    for (name, l2, memory) in [("simos-1996", 10.0, 60.0), ("simos-1998", 15.0, 125.0)] {
        let machine = find(name).unwrap();
        let core = machine.core.clone().unwrap();
        let window = &core.window;
        assert_eq!((window.dispatch, window.retire, window.reorder_buffer), (4, 4, 64));
        assert_eq!((window.loads, window.stores), (32, 32));
        assert_eq!(core.prediction.direction.base_entries, 1024);
        assert!(core.prediction.direction.tables.is_empty() && core.front_end.uop_cache.is_none());
        let misses = [core.front_end.l1i_misses, core.memory.l1d_misses, core.memory.l2_misses];
        assert_eq!(misses, [4; 3]);
        let latencies = machine.memory.unwrap().latencies;
        assert_eq!((latencies.l2(), latencies.memory()), (l2, memory));
    }
    let pentium = find("pentium4").unwrap().core.unwrap();
    assert_eq!((pentium.prediction.mispredict_penalty, pentium.window.dispatch), (31, 3));
    assert_eq!(find("i486").unwrap().core, None);
}

#[test]
fn impossible_cores_name_rule_and_line() {
    let text = text_of("zen4");
    let line = |start: &str| 1 + text[..text.find(start).unwrap()].matches('\n').count();
    let core = line("\n[core]") + 1;
    let cases = [
        (
            "retire = { value = 8",
            "retire = { value = 4",
            core,
            "[core] cannot be built: the retirement of 4",
        ),
        (
            "\nloads = { value = 300",
            "\nloads = { value = 888",
            core,
            "[core] cannot be built: the reorder buffer of 320",
        ),
        (
            "waiting_loads = { value = 48",
            "waiting_loads = { value = 301",
            core,
            "[core] cannot be built: waiting_loads",
        ),
        (
            "integer_results = { value = 196",
            "integer_results = { value = 4",
            core,
            "[core] cannot be built: integer_results",
        ),
        (
            "stages = { value = 8",
            "stages = { value = 0",
            core,
            "[core] cannot be built: the stages of a scheduler",
        ),
        (
            "depth = { value = 9",
            "depth = { value = 15",
            core,
            "[core] cannot be built: mispredict_penalty, 12",
        ),
        ("[4, 7, 46", "[4, 3, 46", core, "[core] cannot be built: the histories of direction"),
        (
            "[4, 7, 46, 46]",
            "[4, 7, 46]",
            line("\ndirection_outcomes") + 1,
            "there are 3 tables, as their histories say, and outcomes of 4",
        ),
        (
            "[5, 9, 4, 200]",
            "[5, 9, 4, 4]",
            core,
            "[core] cannot be built: the histories of direction",
        ),
        (
            "l2 = { value = 14,",
            "l2 = { value = 14.5,",
            core,
            "[core] cannot be built: the latency l2",
        ),
        ("\"znver4\"", "\"z80\"", core + 1, "no table of uops is called z80"),
        (", \"Zn4BRU1\"", "", line("[[core.scheduler]]"), "no scheduler has Zn4BRU1"),
        ("\"Zn4FP0\", ", "\"Zn4FP9\", ", line("\"Zn4FP0\""), "the table of uops has the ports"),
        (
            "uop_cache_ways",
            "#",
            line("\ntargets =") + 1,
            "[core.fetch] must give uop_cache_entries",
        ),
        (
            "memory = { value = 0.002",
            "memory = { value = 2.0",
            line("memory = { value = 0.002"),
            "a share must lie",
        ),
    ];
    for (from, to, line, rule) in cases {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(text, damaged, "{from}");
        let message = format!("{:#}", parse(&damaged, "m.toml").map(|_| ()).unwrap_err());
        let expected = format!("m.toml:{line}: {rule}");
        assert!(message.starts_with(&expected), "{message}\nexpected: {expected}");
    }
    let whole = parse(text, "m.toml").unwrap();
    let without = &text[..text.find("[core]").unwrap()];
    assert_eq!(parse(without, "m.toml").unwrap(), MachineModel { core: None, ..whole });
}

#[test]
fn a_multiprocessor_that_contradicts_itself_names_the_rule() {
    let of_paper = find("simos-1994-8").unwrap().coherence.unwrap();
    assert_eq!((of_paper.cores(), of_paper.clusters()), (8, 1));
    assert_eq!(of_paper.protocol(), Protocol::ThreeStates);
    let of_today = find("server-8").unwrap().coherence.unwrap();
    assert_eq!((of_today.cores(), of_today.clusters()), (8, 2));
    let text = text_of("server-8");
    let cases = [
        ("cores = { value = 8", "cores = { value = 9", "a multiprocessor has 2 to 8 cores, not 9"),
        ("cores = { value = 8", "cores = { value = 1", "a multiprocessor has 2 to 8 cores, not 1"),
        ("clusters = { value = 2", "clusters = { value = 3", "8 cores cannot be divided into 3"),
        ("clusters = { value = 2", "clusters = { value = 1", "exactly when there are several"),
        ("clusters = { value = 2", "clusters = { value = 0", "exactly when there are several"),
        ("cluster = { value = 400", "cluster = { value = 70", "a latency must lie between"),
        ("core = { value = 80", "core = { value = 10001", "a latency must lie between"),
        ("\"mesi\"", "\"moesi\"", "there is no protocol `moesi`; there are mesi, three-states"),
        (
            "core = { value = 80, source = \"assumed",
            "core = { value = 80, source = \" \" }#",
            "needs",
        ),
        (
            "line = { value = 64, source = \"AMD 57647, L3 cache\" }",
            "line = { value = 128, source = \"assumed\" }",
            "a line of the L3, 128 bytes, must be as long as the L2's, 64 bytes",
        ),
        (
            "line = { value = 64, source = \"AMD 57647, L1 data cache\" }",
            "line = { value = 128, source = \"assumed\" }",
            "a line of the L1D, 128 bytes, must not be longer than the L2's, 64 bytes",
        ),
        ("value = \"lru\"", "value = \"tree-plru\"", "need the replacement lru, not tree-plru"),
    ];
    for (from, to, expected) in cases {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(text, damaged, "{from}");
        let message = format!("{:#}", parse(&damaged, "m.toml").unwrap_err());
        assert!(message.contains(expected), "{message}\nexpected: {expected}");
    }
    let coherence = &text[text.find("[coherence]").unwrap()..];
    let message = |text: String| format!("{:#}", parse(&text, "m.toml").unwrap_err());
    let out_of_order = message(format!("{}\n{coherence}", text_of("zen4")));
    assert!(out_of_order.contains("an out-of-order core has no coherence"), "{out_of_order}");
    let by_start = "\nby_start = { value = true";
    let random = text_of("zen4").replacen(by_start, "\nby_start = { value = false", 1);
    let random = message(random);
    assert!(random.contains("random or returns_with_calls = true needs by_start"), "{random}");
    let without_l2 = message(format!("{}\n{coherence}", text_of("torrellas-8k")));
    assert!(without_l2.contains("a multiprocessor needs [l2]"), "{without_l2}");
}

#[test]
fn a_clock_is_a_number_of_megahertz() {
    assert_eq!(find("i486").unwrap().clock.map(|clock| clock.get()), Some(33));
    assert_eq!(find("simos-1998").unwrap().clock.map(|clock| clock.get()), Some(500));
    assert_eq!(find("torrellas-8k").unwrap().clock, None);
    let text = text_of("i486");
    let line = 1 + text[..text.find("megahertz").unwrap()].matches('\n').count();
    let too_fast = "a clock must lie between 1 and 100000 MHz, not 100001";
    let cases = [
        ("value = 33,", "value = 0,", "a clock must lie between 1 and 100000 MHz, not 0"),
        ("value = 33,", "value = 100001,", too_fast),
        (
            "value = 33, source = \"N",
            "value = 33, source = \" \" }#",
            "every number needs a source",
        ),
    ];
    for (from, to, rule) in cases {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(text, damaged, "{from}");
        let message = format!("{:#}", parse(&damaged, "m.toml").unwrap_err());
        let expected = format!("m.toml:{line}: {rule}");
        assert!(message.starts_with(&expected), "{message}\nexpected: {expected}");
    }
}

#[test]
fn the_guest_of_a_machine_is_read_with_its_sources() {
    let guest = super::guest_like("zen4").unwrap();
    assert_eq!(guest.name, "zen4");
    assert_eq!(guest.returns, BranchMitigation::Thunk("srso_alias_return_thunk".into()));
    assert_eq!(guest.indirect_branches, BranchMitigation::Plain);
    assert_eq!(guest.vulnerabilities["spec_rstack_overflow"], "Mitigation: Safe RET");
    let golden_cove = super::guest_like("golden-cove").unwrap();
    assert_eq!(golden_cove.command_line, ["pti=off", "mds=off", "mmio_stale_data=off"]);
    assert_eq!(golden_cove.returns, BranchMitigation::Plain);
    let message = super::guest_like("server-32k").unwrap_err().to_string();
    assert!(message.ends_with("golden-cove, zen4, zen5 have one"), "{message}");
}

#[test]
fn a_guest_without_a_source_or_with_an_impossible_word_is_refused() {
    let refused = |from: &str, to: &str| {
        let text = text_of("golden-cove").replacen(from, to, 1);
        assert_ne!(text, text_of("golden-cove"));
        super::Machine::parse(&text, "m.toml").unwrap_err().to_string()
    };
    let message = refused("[\"pti=off\", ", "[\"pti off\", ");
    assert!(message.ends_with("each word of a command line is ASCII without spaces"), "{message}");
    let message = refused(
        "{ value = \"plain\", source = \"as on zen4\" }",
        "{ value = \"plain\", source = \"\" }",
    );
    assert!(message.contains("needs a source"), "{message}");
    let message = refused("retbleed = { value = \"Not affected\"", "retbleed = { value = \"\"");
    assert!(message.ends_with("the text of retbleed is empty"), "{message}");
}
