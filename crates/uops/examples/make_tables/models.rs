//! The processors whose tables are made, and what was measured where LLVM's model is wrong.
//!
//! This module has only data. To add a processor: an entry in [`MODELS`].

/// A processor, and how its model names what the tables need.
pub(crate) struct Model {
    pub cpu: &'static str,
    pub title: &'static str,
    pub source: &'static str,
    /// The units that LLVM's model names, the first bit first. Ports that only execute common uops
    /// come last, because a core prefers them.
    pub units: &'static [&'static str],
    /// The processor's own ports, if LLVM's model is that of the predecessor. `None`: the units are
    /// the ports.
    pub own: Option<OwnPorts>,
    pub load: &'static [&'static str],
    /// The ports of loads into vector registers.
    pub vector_load: &'static [&'static str],
    pub store_address: &'static [&'static str],
    pub store_data: &'static [&'static str],
    /// Where addresses of three parts are computed; empty: where additions are.
    pub three_part_address: &'static [&'static str],
    pub branch: &'static [&'static str],
    pub fusion: &'static str,
    /// Resources that are not ports of computing uops.
    pub ignored: &'static [&'static str],
    /// Cycles of a load in the model.
    pub load_latency: u32,
    /// A load and the uop that uses it, or both parts of a store, count as one slot. The model
    /// counts them as two.
    pub fuses_memory: bool,
    /// Loads of instructions that also compute are renamed as moves are.
    pub renames_operands: bool,
    /// Where the processor was measured and the model is wrong.
    pub measured: &'static [MeasuredEntry],
}

/// The ports of a processor that LLVM gives its predecessor's model.
pub(crate) struct OwnPorts {
    /// The first bit first.
    pub ports: &'static [&'static str],
    /// For units of the predecessor: the ports that execute the same uops.
    pub groups: &'static [(&'static [&'static str], &'static [&'static str])],
    /// Where the groups come from: lines of the table's head.
    pub source: &'static str,
}

/// What `cargo xtask judge-processor` measured: points `latency/...`.
pub(crate) struct MeasuredEntry {
    /// How the instructions' names begin, without the prefix of AVX.
    pub names: &'static [&'static str],
    /// Whether only forms with, or only forms without memory; `None`: both.
    pub memory: Option<bool>,
    /// The entry in place of the model's ports; `None`: the model's.
    pub ports: Option<&'static str>,
    pub latency: u32,
}

const VECTOR_LOADS: [&str; 19] = [
    "Movaps_xmm_",
    "Movapd_xmm_",
    "Movups_xmm_",
    "Movupd_xmm_",
    "Movdqa_xmm_",
    "Movdqu_xmm_",
    "Movaps_ymm_",
    "Movapd_ymm_",
    "Movups_ymm_",
    "Movupd_ymm_",
    "Movdqa_ymm_",
    "Movdqu_ymm_",
    "Movsd_xmm_xmmm64",
    "Movss_xmm_xmmm32",
    "Movsd_xmm_m64",
    "Movss_xmm_m32",
    "Movq_xmm_",
    "Movd_xmm_",
    "Lddqu_",
];

/// A chain of `movq %rax, %xmm0` and back takes 7 cycles; a load into a vector register, 7 cycles
/// by the maker, and `movq` or `pmovmskb` take 9. LLVM's model has 1 cycle for each way. Back and
/// forth by `cvtsi2sd` and `cvttsd2si` takes 12, of which the model gives 5 to the first.
const MEASURED_ZEN4: [MeasuredEntry; 8] = [
    MeasuredEntry {
        names: &["Movd_rm32_", "Movq_rm64_", "Pmovmskb_", "Movmskp"],
        memory: Some(false),
        ports: None,
        latency: 2,
    },
    MeasuredEntry { names: &["Pextr"], memory: Some(false), ports: None, latency: 3 },
    MeasuredEntry {
        names: &["Movd_xmm_rm32", "Movq_xmm_rm64"],
        memory: Some(false),
        ports: None,
        latency: 5,
    },
    MeasuredEntry {
        names: &["Cvttsd2si_", "Cvttss2si_", "Cvtsd2si_", "Cvtss2si_"],
        memory: Some(false),
        ports: None,
        latency: 7,
    },
    MeasuredEntry { names: &["Pshufb_"], memory: Some(false), ports: None, latency: 2 },
    // Divisions take 10 to 17 cycles (`latency/div`, `latency/div-long`), and 6 or 7 when they are
    // independent: those of a value in between stand here.
    MeasuredEntry {
        names: &["Div_rm64", "Idiv_rm64"],
        memory: None,
        ports: Some("200*7"),
        latency: 13,
    },
    MeasuredEntry {
        names: &["Div_rm32", "Idiv_rm32"],
        memory: None,
        ports: Some("200*6"),
        latency: 11,
    },
    // A load alone: the model adds a uop of 4 cycles.
    MeasuredEntry { names: &VECTOR_LOADS, memory: Some(true), ports: Some("-"), latency: 1 },
];

/// Vectors of integers, and logic on all vectors: 2 cycles (`latency/vector-add`, and the same for
/// the others). LLVM's model for Zen 5, under development, agrees.
const TWO_CYCLES_ZEN5: [&str; 38] = [
    "Padd", "Psub", "Pand_", "Pandn", "Por_", "Pxor_", "Pcmpeq", "Pcmpgt", "Pmin", "Pmax", "Pavg",
    "Pabs", "Psign", "Andp", "Andnp", "Orp", "Xorp", "Pack", "Palignr", "Shufp", "Unpck", "Psll",
    "Psrl", "Psra", "Pshufb", "Pmovzx", "Pmovsx", "Movhlps", "Movlhps", "Movddup", "Movshdup",
    "Cmpp", "Cmps", "Maxp", "Maxs", "Minp", "Mins", "Blendp",
];

/// As on Zen 4: `movq %rax, %xmm0` and back take 9 cycles (`latency/to-vector-and-back`), a load
/// and `movq` or `pmovmskb` 9 (`latency/load-vector`), `cvtsi2sd` and `cvttsd2si` 13
/// (`latency/to-double-and-back`), of which the first has the way of `movq`. Divisions take 10 to
/// 16 cycles (`latency/div`, `latency/div-long`), and 7 to 9 when they are independent: those of a
/// value in between stand here.
const MEASURED_ZEN5: [MeasuredEntry; 12] = [
    MeasuredEntry {
        names: &["Movd_rm32_", "Movq_rm64_", "Pmovmskb_", "Movmskp"],
        memory: Some(false),
        ports: None,
        latency: 2,
    },
    MeasuredEntry { names: &["Pextr"], memory: Some(false), ports: None, latency: 4 },
    MeasuredEntry {
        names: &["Movd_xmm_rm32", "Movq_xmm_rm64"],
        memory: Some(false),
        ports: None,
        latency: 7,
    },
    MeasuredEntry {
        names: &["Cvttsd2si_", "Cvttss2si_", "Cvtsd2si_", "Cvtss2si_"],
        memory: Some(false),
        ports: None,
        latency: 6,
    },
    MeasuredEntry { names: &["Cvtsi2s"], memory: Some(false), ports: None, latency: 7 },
    MeasuredEntry { names: &VECTOR_LOADS, memory: Some(true), ports: Some("-"), latency: 1 },
    // `latency/addsd`.
    MeasuredEntry {
        names: &["Addss_", "Addsd_", "Addps_", "Addpd_", "Subss_", "Subsd_", "Subps_", "Subpd_"],
        memory: None,
        ports: None,
        latency: 2,
    },
    // All pipes shuffle: twelve independent ones take 3 cycles.
    MeasuredEntry {
        names: &["Pshufd_", "Pshuflw_", "Pshufhw_", "Punpck"],
        memory: None,
        ports: Some("f0"),
        latency: 2,
    },
    MeasuredEntry { names: &TWO_CYCLES_ZEN5, memory: None, ports: None, latency: 2 },
    MeasuredEntry {
        names: &["Pmulu", "Pmulh", "Pmull", "Pmadd"],
        memory: None,
        ports: None,
        latency: 3,
    },
    MeasuredEntry {
        names: &["Div_rm64", "Idiv_rm64"],
        memory: None,
        ports: Some("100*7"),
        latency: 13,
    },
    MeasuredEntry {
        names: &["Div_rm32", "Idiv_rm32"],
        memory: None,
        ports: Some("100*6"),
        latency: 11,
    },
];

const ZEN4_UNITS: [&str; 12] = [
    "Zn4AGU0", "Zn4AGU1", "Zn4AGU2", "Zn4FP1", "Zn4FP0", "Zn4FP2", "Zn4FP3", "Zn4BRU1", "Zn4ALU1",
    "Zn4ALU0", "Zn4ALU2", "Zn4ALU3",
];

const ZEN4_IGNORED: [&str; 7] =
    ["Zn4LSU", "Zn4Load", "Zn4Store", "Zn4FP45", "Zn4FPOpMask4", "Zn4FPSt", "Zn4Int"];

/// LLVM 22 uses Zen 4's model for Zen 5. Its version under development has a model of its own
/// (llvm/lib/Target/X86/X86ScheduleZnver5.td), which quotes AMD, "Software Optimization Guide for
/// the AMD Zen5 Microarchitecture", 58455: six ALUs, of which 0 to 2 multiply, shift and rotate, 3
/// to 5 execute branches, and 3 divides; four AGUs. The FP pipes are Zen 4's.
const OWN_ZEN5: OwnPorts = OwnPorts {
    ports: &[
        "Zn5AGU0", "Zn5AGU1", "Zn5AGU2", "Zn5AGU3", "Zn5FP1", "Zn5FP0", "Zn5FP2", "Zn5FP3",
        "Zn5ALU3", "Zn5ALU4", "Zn5ALU5", "Zn5ALU0", "Zn5ALU1", "Zn5ALU2",
    ],
    groups: &[
        (
            &["Zn4ALU0", "Zn4ALU1", "Zn4ALU2", "Zn4ALU3"],
            &["Zn5ALU0", "Zn5ALU1", "Zn5ALU2", "Zn5ALU3", "Zn5ALU4", "Zn5ALU5"],
        ),
        // Conditional moves.
        (
            &["Zn4ALU0", "Zn4ALU3"],
            &["Zn5ALU0", "Zn5ALU1", "Zn5ALU2", "Zn5ALU3", "Zn5ALU4", "Zn5ALU5"],
        ),
        // Shifts.
        (&["Zn4ALU1", "Zn4ALU2"], &["Zn5ALU0", "Zn5ALU1", "Zn5ALU2"]),
        // Products.
        (&["Zn4ALU1"], &["Zn5ALU0", "Zn5ALU1", "Zn5ALU2"]),
        // Divisions.
        (&["Zn4ALU0"], &["Zn5ALU3"]),
        (&["Zn4ALU3"], &["Zn5ALU3"]),
        (&["Zn4ALU0", "Zn4BRU1"], &["Zn5ALU3", "Zn5ALU4", "Zn5ALU5"]),
        (&["Zn4AGU0", "Zn4AGU1", "Zn4AGU2"], &["Zn5AGU0", "Zn5AGU1", "Zn5AGU2", "Zn5AGU3"]),
        (&["Zn4FP0"], &["Zn5FP0"]),
        (&["Zn4FP1"], &["Zn5FP1"]),
        (&["Zn4FP2"], &["Zn5FP2"]),
        (&["Zn4FP0", "Zn4FP1"], &["Zn5FP0", "Zn5FP1"]),
        (&["Zn4FP0", "Zn4FP3"], &["Zn5FP0", "Zn5FP3"]),
        (&["Zn4FP1", "Zn4FP2"], &["Zn5FP1", "Zn5FP2"]),
        (&["Zn4FP2", "Zn4FP3"], &["Zn5FP2", "Zn5FP3"]),
        (&["Zn4FP1", "Zn4FP2", "Zn4FP3"], &["Zn5FP1", "Zn5FP2", "Zn5FP3"]),
        (&["Zn4FP0", "Zn4FP1", "Zn4FP2", "Zn4FP3"], &["Zn5FP0", "Zn5FP1", "Zn5FP2", "Zn5FP3"]),
    ],
    source: "\n# LLVM 22 has Zen 4's model for Zen 5. The ports are Zen 5's, of \
             X86ScheduleZnver5.td in the\n# version of LLVM under development.",
};

pub(crate) const MODELS: [Model; 3] = [
    Model {
        cpu: "sapphirerapids",
        title: "Golden Cove (Sapphire Rapids)",
        source: "llvm/lib/Target/X86/X86SchedSapphireRapids.td",
        units: &[
            "SPRPort02",
            "SPRPort03",
            "SPRPort10",
            "SPRPort07",
            "SPRPort08",
            "SPRPort04",
            "SPRPort09",
            "SPRPort01",
            "SPRPort05",
            "SPRPort00",
            "SPRPort06",
            "SPRPort11",
        ],
        own: None,
        load: &["SPRPort02", "SPRPort03", "SPRPort10"],
        vector_load: &["SPRPort02", "SPRPort03", "SPRPort10"],
        store_address: &["SPRPort07", "SPRPort08"],
        store_data: &["SPRPort04", "SPRPort09"],
        three_part_address: &[],
        branch: &["SPRPort00", "SPRPort06"],
        fusion: "intel",
        ignored: &["SPRPortAny", "SPRPortInvalid"],
        load_latency: 5,
        fuses_memory: true,
        renames_operands: false,
        measured: &[],
    },
    Model {
        cpu: "znver4",
        title: "Zen 4",
        source: "llvm/lib/Target/X86/X86ScheduleZnver4.td",
        units: &ZEN4_UNITS,
        own: None,
        load: &["Zn4AGU0", "Zn4AGU1", "Zn4AGU2"],
        // Measured: two loads into vector registers a cycle, three into others.
        vector_load: &["Zn4AGU0", "Zn4AGU1"],
        store_address: &["Zn4AGU0", "Zn4AGU1", "Zn4AGU2"],
        store_data: &[],
        // Measured: two a cycle, and no rotation beside (`throughput/lea-three`).
        three_part_address: &["Zn4ALU1", "Zn4ALU2"],
        branch: &["Zn4ALU0", "Zn4BRU1"],
        fusion: "amd",
        ignored: &ZEN4_IGNORED,
        load_latency: 4,
        fuses_memory: false,
        renames_operands: false,
        measured: &MEASURED_ZEN4,
    },
    Model {
        cpu: "znver5",
        title: "Zen 5",
        source: "llvm/lib/Target/X86/X86ScheduleZnver4.td",
        units: &ZEN4_UNITS,
        own: Some(OWN_ZEN5),
        load: &["Zn5AGU0", "Zn5AGU1", "Zn5AGU2", "Zn5AGU3"],
        // Measured: two loads into vector registers a cycle, four into others, two stores. That
        // stores use the other two ports is assumed.
        vector_load: &["Zn5AGU0", "Zn5AGU1"],
        store_address: &["Zn5AGU2", "Zn5AGU3"],
        store_data: &[],
        three_part_address: &[],
        branch: &["Zn5ALU3", "Zn5ALU4", "Zn5ALU5"],
        fusion: "amd-moves",
        ignored: &ZEN4_IGNORED,
        load_latency: 4,
        fuses_memory: false,
        renames_operands: true,
        measured: &MEASURED_ZEN5,
    },
];
